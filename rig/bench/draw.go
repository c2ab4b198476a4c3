package main

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	drawnWidth    = vg.Length(600) // points
	drawnHeight   = vg.Length(330) // of the plot, without its title, legend and caption
	titleHeight   = vg.Length(30)
	legendLine    = vg.Length(15)
	captionSize   = vg.Length(9)
	captionLine   = vg.Length(12)
	captionLength = 118 // characters of a line
)

// lineColors tell series apart, also for people who see few colours. They are dark enough for a white page.
var lineColors = []color.Color{color.RGBA{0, 90, 160, 255}, color.RGBA{200, 80, 0, 255}, color.RGBA{0, 130, 90, 255}}

// ticks are the marks of an axis, decided in axes.go.
type ticks []tick

func (t ticks) Ticks(float64, float64) (marks []plot.Tick) {
	for _, one := range t {
		marks = append(marks, plot.Tick{Value: one.value, Label: one.label})
	}
	return marks
}

// svg draws a curve on a white page, with its caption below. What was measured is a line with filled points; what arithmetic
// has made is dashed, with hollow points.
func (c curve) svg() ([]byte, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = c.X.String(), c.Y.String()
	var ys []float64
	for _, s := range c.Series {
		for _, at := range s.Points {
			ys = append(ys, at.Y)
		}
	}
	if len(ys) == 0 {
		return nil, fmt.Errorf("draw %s: it has no points", c.Name)
	}
	acrossScale(c.xs()).set(&p.X)
	upScale(ys).set(&p.Y)
	for _, style := range []*draw.TextStyle{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font = sans(style.Font.Size)
	}
	p.X.Label.Padding = 4
	p.Add(plotter.NewGrid())
	legend := plot.NewLegend()
	legend.TextStyle.Font, legend.Top, legend.Left = sans(10), true, true
	legend.ThumbnailWidth, legend.Padding = 28, 3
	entries := 0
	for i, s := range c.Series {
		named, err := c.drawSeries(p, &legend, s, i)
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", c.Name, err)
		}
		entries += named
	}

	// The page is cut into title, legend, plot and caption.
	var caption []string
	for _, line := range c.lines() {
		caption = append(caption, wrapped(line, captionLength)...)
	}
	below := captionLine*vg.Length(len(caption)) + 10
	above := titleHeight + legendLine*vg.Length(entries)
	canvas := vgsvg.New(drawnWidth, above+drawnHeight+below)
	page := draw.New(canvas)
	page.FillPolygon(color.White, []vg.Point{page.Min, {X: page.Max.X, Y: page.Min.Y}, page.Max, {X: page.Min.X, Y: page.Max.Y}})
	title := draw.TextStyle{
		Color:   color.Black,
		Font:    sans(14),
		XAlign:  draw.XCenter,
		Handler: plot.DefaultTextHandler,
	}
	page.FillText(title, vg.Point{X: drawnWidth / 2, Y: page.Max.Y - 20}, c.Title)
	legend.Draw(draw.Crop(page, 60, 0, below+drawnHeight, -titleHeight))
	p.Draw(draw.Crop(page, 8, -20, below, -above))
	text := draw.TextStyle{
		Color:   color.Gray{60},
		Font:    sans(captionSize),
		Handler: plot.DefaultTextHandler,
	}
	for i, line := range caption {
		page.FillText(text, vg.Point{X: 12, Y: below - captionLine*vg.Length(i+1)}, line)
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("draw %s: %w", c.Name, err)
	}
	// Where the font that the text was measured with is not installed, one that is as wide takes its place.
	return bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")), nil
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// set makes an axis show the scale.
func (s scale) set(a *plot.Axis) {
	a.Min, a.Max = s.min, s.max
	a.Tick.Marker = ticks(s.ticks)
	a.Padding = 6
	if s.log {
		a.Scale = plot.LogScale{}
	}
}

// drawSeries adds the lines, the points and their numbers, and names the lines in the legend.
func (c curve) drawSeries(p *plot.Plot, legend *plot.Legend, s series, i int) (entries int, err error) {
	ink := lineColors[i%len(lineColors)]
	measured := s.measured()
	estimated := s.Points[len(measured):]
	for _, part := range []struct {
		points []point
		name   string // in the legend
		style  draw.LineStyle
		shape  draw.GlyphDrawer
		joined []point // begins the line
	}{
		{measured, s.Name, draw.LineStyle{Color: ink, Width: 1.8}, draw.CircleGlyph{}, nil},
		{estimated, strings.TrimPrefix(s.Name+", by arithmetic", ", "), draw.LineStyle{
			Color:  ink,
			Width:  1.4,
			Dashes: []vg.Length{5, 4},
		}, draw.RingGlyph{}, measured[max(0, len(measured)-1):]},
	} {
		if len(part.points) == 0 {
			continue
		}
		line, err := plotter.NewLine(places(slices.Concat(part.joined, part.points)))
		if err != nil {
			return 0, err
		}
		line.LineStyle = part.style
		dots, err := plotter.NewScatter(places(part.points))
		if err != nil {
			return 0, err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: ink, Radius: 3.5, Shape: part.shape}
		p.Add(line, dots)
		if part.name != "" {
			legend.Add(part.name, line)
			entries++
		}
	}
	for _, at := range s.Points {
		number, err := plotter.NewLabels(plotter.XYLabels{XYs: places([]point{at}), Labels: []string{short(at.Y)}})
		if err != nil {
			return 0, err
		}
		number.TextStyle[0].Font, number.TextStyle[0].Color, number.TextStyle[0].XAlign = sans(9), ink, draw.XCenter
		number.Offset.Y = 6
		if c.below(at, i) {
			number.Offset.Y, number.TextStyle[0].YAlign = -6, draw.YTop
		}
		p.Add(number)
	}
	return entries, nil
}

func places(points []point) (all plotter.XYs) {
	for _, at := range points {
		all = append(all, plotter.XY{X: at.X, Y: at.Y})
	}
	return all
}
