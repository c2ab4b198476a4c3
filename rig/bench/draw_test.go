package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// parsedPlot is what a reader sees of an SVG.
type parsedPlot struct {
	texts          []string
	filled, hollow int // points
	dashed         int // lines
	first          string
}

// parsePlot reads an SVG. A point is a path with an arc.
func parsePlot(t *testing.T, svg []byte) (p parsedPlot) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	inText := false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return p
		}
		if err != nil {
			t.Fatalf("the plot is no XML: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
			if inText {
				p.texts = append(p.texts, "")
			}
			if token.Name.Local == "path" {
				p.path(attribute(token, "d"), attribute(token, "style"))
			}
		case xml.CharData:
			if inText {
				p.texts[len(p.texts)-1] += string(token)
			}
		case xml.EndElement:
			inText = false
		}
	}
}

func (p *parsedPlot) path(d, style string) {
	if p.first == "" {
		p.first = d + " " + style
	}
	switch arc, outlined := strings.Contains(d, "A"), strings.Contains(style, "fill:none"); {
	case arc && outlined:
		p.hollow++
	case arc:
		p.filled++
	case strings.Contains(style, "stroke-dasharray:") && !strings.Contains(style, "stroke-dasharray:none"):
		p.dashed++
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func TestDraw_APlotHasItsLabelsAndAllPoints(t *testing.T) {
	c := rising()
	c.extend(fixedAndEach, 1e7, 1e8)
	svg, err := c.svg()
	if err != nil {
		t.Fatal(err)
	}
	p := parsePlot(t, svg)
	for _, want := range []string{
		"Drain rate against backlog", "backlog, events", "drain rate, events/s", // title and axes, with their units
		"10 k", "100 k", "1 M", "10 M", "100 M", // ticks
		"relay", "bare loop", "relay, by arithmetic", "bare loop, by arithmetic", // legend
		"2 cores, load 1 to 2", "1 January, `go run ./rig/bench`", // caption
		"9.09 k", "90.9 k", // numbers at points
	} {
		if !slices.Contains(p.texts, want) {
			t.Errorf("the plot does not say %q", want)
		}
	}
	if !strings.Contains(strings.Join(p.texts, " "), "by arithmetic, not measured") {
		t.Error("the caption does not say what the dashed lines are")
	}
	if p.filled != 6 || p.hollow != 4 {
		t.Errorf("it has %d filled and %d hollow points, want 6 measured and 4 by arithmetic", p.filled, p.hollow)
	}
	if p.dashed != 4 { // and two in the legend
		t.Errorf("it has %d dashed lines, want 4", p.dashed)
	}
}

// A page may be dark: what is black on nothing would vanish there.
func TestDraw_APlotIsOnAWhitePage(t *testing.T) {
	svg, err := rising().svg()
	if err != nil {
		t.Fatal(err)
	}
	p := parsePlot(t, svg)
	if !strings.Contains(p.first, "fill:#FFFFFF") || !strings.HasPrefix(p.first, "M0,0L600,0L600,") {
		t.Errorf("it begins with %q, want a white rectangle as large as the plot", p.first)
	}
}

func TestDraw_APlotThatIsAllMeasuredHasNothingDashed(t *testing.T) {
	svg, err := rising().svg()
	if err != nil {
		t.Fatal(err)
	}
	if p := parsePlot(t, svg); p.hollow != 0 || p.dashed != 0 || p.filled != 6 || strings.Contains(strings.Join(p.texts, " "), "arithmetic") {
		t.Errorf("it shows %+v", p)
	}
}

func TestDraw_ACurveWithoutPointsIsNotDrawn(t *testing.T) {
	if _, err := (curve{Name: "empty", Series: []series{{}}}).svg(); err == nil {
		t.Error("it was drawn")
	}
}
