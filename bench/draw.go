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
	drawnHeight   = vg.Length(340) // of the plot, without its caption
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
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X.String(), c.Y.String()
	p.Title.Padding = 8
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
	for _, style := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font = sans(style.Font.Size)
	}
	p.Title.TextStyle.Font.Size = 14
	p.Legend.TextStyle.Font.Size = 10
	p.Legend.Top, p.Legend.ThumbnailWidth, p.Legend.YOffs = true, 28, 2
	p.Add(plotter.NewGrid())
	for i, s := range c.Series {
		if err := c.drawSeries(p, s, i); err != nil {
			return nil, fmt.Errorf("draw %s: %w", c.Name, err)
		}
	}

	var caption []string
	for _, line := range c.lines() {
		caption = append(caption, wrapped(line, captionLength)...)
	}
	below := captionLine*vg.Length(len(caption)) + 10
	canvas := vgsvg.New(drawnWidth, drawnHeight+below)
	page := draw.New(canvas)
	page.FillPolygon(color.White, []vg.Point{page.Min, {X: page.Max.X, Y: page.Min.Y}, page.Max, {X: page.Min.X, Y: page.Max.Y}})
	p.Draw(draw.Crop(page, 8, -14, below, -8))
	text := draw.TextStyle{Color: color.Gray{60}, Font: sans(captionSize), Handler: plot.DefaultTextHandler}
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

// drawSeries adds the lines, the points and their numbers. The first series has its numbers above, the others below.
func (c curve) drawSeries(p *plot.Plot, s series, i int) error {
	ink := lineColors[i%len(lineColors)]
	measured := s.measured()
	estimated := s.Points[len(measured):]
	if len(measured) > 0 {
		line, err := plotter.NewLine(places(measured))
		if err != nil {
			return err
		}
		line.LineStyle = draw.LineStyle{Color: ink, Width: 1.8}
		p.Add(line)
		if len(c.Series) > 1 {
			p.Legend.Add(s.Name, line)
		}
	}
	if len(estimated) > 0 {
		from := estimated
		if len(measured) > 0 {
			from = slices.Concat(measured[len(measured)-1:], estimated)
		}
		line, err := plotter.NewLine(places(from))
		if err != nil {
			return err
		}
		line.LineStyle = draw.LineStyle{Color: ink, Width: 1.4, Dashes: []vg.Length{5, 4}}
		p.Add(line)
		p.Legend.Add(strings.TrimPrefix(s.Name+", by arithmetic", ", "), line)
	}
	for _, points := range []struct {
		of    []point
		shape draw.GlyphDrawer
	}{{measured, draw.CircleGlyph{}}, {estimated, draw.RingGlyph{}}} {
		if len(points.of) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(places(points.of))
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: ink, Radius: 3.5, Shape: points.shape}
		p.Add(dots)
	}
	labels := plotter.XYLabels{XYs: places(s.Points)}
	for _, at := range s.Points {
		labels.Labels = append(labels.Labels, short(at.Y))
	}
	numbers, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	numbers.Offset.Y = 6
	for n := range numbers.TextStyle {
		style := &numbers.TextStyle[n]
		style.Font, style.Color, style.XAlign = sans(9), ink, draw.XCenter
		if i > 0 {
			numbers.Offset.Y, style.YAlign = -6, draw.YTop
		}
	}
	p.Add(numbers)
	return nil
}

func places(points []point) (all plotter.XYs) {
	for _, at := range points {
		all = append(all, plotter.XY{X: at.X, Y: at.Y})
	}
	return all
}
