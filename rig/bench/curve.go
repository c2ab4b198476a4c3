package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
)

// curve is how a cost grows with one number. The same curve is printed as a table, kept as JSON, and drawn.
type curve struct {
	Name       string   `json:"name"` // of its files, and what -only selects by
	Title      string   `json:"title"`
	X          axis     `json:"x"`
	Y          axis     `json:"y"`
	Series     []series `json:"series"`
	Arithmetic string   `json:"arithmetic,omitempty"` // how the points that were not measured were computed
	Caption    []string `json:"caption"`              // machine, date, load and command
}

// axis is what one number of a point means.
type axis struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
}

func (a axis) String() string { return a.Name + ", " + a.Unit }

// series is one line of a curve. Invariant: its points are in the order of X.
type series struct {
	Name   string  `json:"name"` // "" if it is the only one
	Points []point `json:"points"`
}

// point is a measurement, or an estimate that arithmetic has made of some.
type point struct {
	X        float64 `json:"x"`
	Y        float64 `json:"y"`
	Measured bool    `json:"measured"`
}

// add appends a measurement.
func (s *series) add(x, y float64) { s.Points = append(s.Points, point{x, y, true}) }

// measured returns the points that are measurements.
func (s series) measured() (points []point) {
	for _, p := range s.Points {
		if p.Measured {
			points = append(points, p)
		}
	}
	return points
}

// extrapolation continues a series past what was measured. It needs two measurements, and looks at the last two.
type extrapolation struct {
	how string // part of the caption
	at  func(before, last point, x float64) (y float64)
}

var (
	// fixedAndEach is for a rate: so many events a second, of a run of x events.
	fixedAndEach = extrapolation{"a run takes a fixed time, and a time for each event, as in the last two measurements", func(before, last point, x float64) float64 {
		each := (last.X/last.Y - before.X/before.Y) / (last.X - before.X)
		fixed := last.X/last.Y - each*last.X
		if each <= 0 { // The larger run was the shorter one: the time does not show what an event costs.
			return last.Y
		}
		return x / (fixed + each*x)
	}}
	// sameStep is for a cost. A step down counts as none, because a cost does not fall for ever.
	sameStep = extrapolation{"a factor in x costs what it cost between the last two measurements, and no less than nothing", func(before, last point, x float64) float64 {
		exponent := max(0, math.Log(last.Y/before.Y)/math.Log(last.X/before.X))
		return last.Y * math.Pow(x/last.X, exponent)
	}}
)

// extend adds to each series the points of xs that lie past its last measurement.
func (c *curve) extend(by extrapolation, xs ...float64) {
	for i := range c.Series {
		s := &c.Series[i]
		known := s.measured()
		if len(known) < 2 {
			continue
		}
		before, last := known[len(known)-2], known[len(known)-1]
		for _, x := range xs {
			if x > last.X {
				s.Points = append(s.Points, point{X: x, Y: by.at(before, last, x)})
				c.Arithmetic = by.how
			}
		}
	}
}

// xs are all numbers that the curve has a point for.
func (c curve) xs() []float64 {
	all := map[float64]bool{}
	for _, s := range c.Series {
		for _, p := range s.Points {
			all[p.X] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// print writes the curve as a table: a row for each x, a column for each series.
func (c curve) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s (%s)\n", c.Title, c.Name)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, c.X, "\t")
	for _, s := range c.Series {
		fmt.Fprint(table, named(c.Y, s), "\t")
	}
	for _, x := range c.xs() {
		fmt.Fprint(table, "\n", number(x), "\t")
		for _, s := range c.Series {
			fmt.Fprint(table, s.cell(x), "\t")
		}
	}
	fmt.Fprintln(table)
	if err := table.Flush(); err != nil {
		return err
	}
	for _, line := range c.lines() {
		fmt.Fprintln(w, line)
	}
	return nil
}

// named is the heading of a column.
func named(a axis, s series) string {
	if s.Name == "" {
		return a.String()
	}
	return s.Name + ": " + a.String()
}

// cell is what the table says of the series at x.
func (s series) cell(x float64) string {
	for _, p := range s.Points {
		if p.X == x && p.Measured {
			return number(p.Y)
		}
		if p.X == x {
			return number(p.Y) + " by arithmetic"
		}
	}
	return ""
}

// lines are the caption, with the arithmetic if there is any.
func (c curve) lines() []string {
	lines := slices.Clone(c.Caption)
	if c.Arithmetic != "" {
		lines = append(lines, "Dashed and hollow: by arithmetic, not measured. "+upperFirst(c.Arithmetic)+".")
	}
	return lines
}
