package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// rising is a curve of two series, of which the first has a point that was not measured.
func rising() curve {
	c := curve{
		Name: "drain-by-backlog", Title: "Drain rate against backlog", X: axis{"backlog", "events"}, Y: axis{"drain rate", "events/s"},
		Series:  []series{{Name: "relay"}, {Name: "bare loop"}},
		Caption: []string{"2 cores, load 1 to 2", "1 January, `go run ./rig/bench`"},
	}
	for _, x := range []float64{1e4, 1e5, 1e6} {
		c.Series[0].add(x, x/(1+x/1e5))
		c.Series[1].add(x, x/(2+x/2e5))
	}
	c.Series = c.Series[:2]
	return c
}

func TestCurve_ARateGoesOnWithAFixedTimeAndOneForEachEvent(t *testing.T) {
	c := rising()
	c.extend(fixedAndEach, 1e7, 1e8)
	for i, want := range []func(x float64) float64{
		func(x float64) float64 { return x / (1 + x/1e5) },
		func(x float64) float64 { return x / (2 + x/2e5) },
	} {
		points := c.Series[i].Points
		if len(points) != 5 {
			t.Fatalf("series %d has the points %v", i, points)
		}
		for n, p := range points {
			if math.Abs(p.Y/want(p.X)-1) > 1e-9 || p.Measured != (n < 3) {
				t.Errorf("series %d: %+v, want y %v", i, p, want(p.X))
			}
		}
	}
	if c.Arithmetic != fixedAndEach.how {
		t.Errorf("the caption says %q", c.Arithmetic)
	}
}

func TestCurve_ACostGoesOnByTheLastStepAndNeverFalls(t *testing.T) {
	for name, test := range map[string]struct{ before, last, want float64 }{
		"it doubled in each decade": {50, 100, 400},
		"it stayed":                 {100, 100, 100},
		"it fell":                   {200, 100, 100},
	} {
		c := curve{Series: []series{{Points: []point{{1e3, 1, true}, {1e5, test.before, true}, {1e6, test.last, true}}}}}
		c.extend(sameStep, 1e4, 1e6, 1e8)
		points := c.Series[0].Points
		if last := points[len(points)-1]; len(points) != 4 || last.Measured || last.X != 1e8 || math.Abs(last.Y-test.want) > 1e-6 {
			t.Errorf("%s: %v, want %v at 1e8 and nothing else", name, points, test.want)
		}
	}
}

func TestCurve_ARateThatRoseWithTheTimeOfNothingStays(t *testing.T) {
	if got := fixedAndEach.at(point{X: 10, Y: 1}, point{X: 100, Y: 100}, 1000); got != 100 {
		t.Errorf("the rate is %v, want that of the last run", got)
	}
}

func TestCurve_OneMeasurementIsNotContinued(t *testing.T) {
	c := curve{Series: []series{{Points: []point{{10, 1, true}}}, {}}}
	c.extend(sameStep, 100)
	if len(c.Series[0].Points) != 1 || len(c.Series[1].Points) != 0 || c.Arithmetic != "" {
		t.Errorf("the curve is %+v", c)
	}
}

func TestCurve_TheTableOfACurveMarksWhatWasNotMeasured(t *testing.T) {
	c := rising()
	c.Series[1].Points = c.Series[1].Points[1:]
	c.extend(fixedAndEach, 1e7)
	var out bytes.Buffer
	if err := c.print(&out); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(out.String()) {
		if words := strings.Fields(line); len(words) > 0 {
			rows = append(rows, strings.Join(words, " "))
		}
	}
	want := []string{
		"Drain rate against backlog (drain-by-backlog)",
		"backlog, events relay: drain rate, events/s bare loop: drain rate, events/s",
		"10,000 9,091",
		"100,000 50,000 40,000",
		"1,000,000 90,909 142,857",
		"10,000,000 99,010 by arithmetic 192,308 by arithmetic",
		"2 cores, load 1 to 2",
		"1 January, `go run ./rig/bench`",
		"Dashed and hollow: by arithmetic, not measured. A run takes a fixed time, and a time for each event, as in the last two measurements.",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the table is\n%s", strings.Join(rows, "\n"))
	}
}

func TestCurve_ACurveIsJSONThatReadsBackAsItself(t *testing.T) {
	c := rising()
	c.extend(fixedAndEach, 1e7)
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back curve
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(back); err != nil || !bytes.Equal(text, again) {
		t.Errorf("%s became %s, %v", text, again, err)
	}
	if !strings.Contains(string(text), `"unit":"events/s"`) || strings.Count(string(text), `"measured":false`) != 2 {
		t.Errorf("the JSON is %s", text)
	}
}

// The plots of the page are those of the numbers beside them.
func TestCurve_ThePlotsOfThePageShowTheirNumbers(t *testing.T) {
	const dir = "../../docs/performance"
	kept, err := curvesIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, g := range growths {
		known = append(known, g.curves...)
	}
	page, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range known {
		if !slices.ContainsFunc(kept, func(c curve) bool { return c.Name == name }) {
			t.Errorf("%s lacks the curve %s: run go run ./rig/bench -plot docs/performance -only %s", dir, name, name)
		}
		if !strings.Contains(string(page), "](performance/"+name+".svg)") {
			t.Errorf("docs/performance.md does not show %s.svg", name)
		}
	}
	for _, c := range kept {
		if !slices.Contains(known, c.Name) {
			t.Errorf("%s has the curve %s, which the bench does not measure", dir, c.Name)
		}
	}
	for _, c := range kept {
		drawn, err := c.svg()
		if err != nil {
			t.Fatal(err)
		}
		plot, err := os.ReadFile(dir + "/" + c.Name + ".svg")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := parsePlot(t, plot), parsePlot(t, drawn); !slices.Equal(got.texts, want.texts) || got.filled != want.filled || got.hollow != want.hollow {
			t.Errorf("%s.svg is not what its numbers draw: run go run ./rig/bench -plot docs/performance -redraw", c.Name)
		}
	}
}
