package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// figure is one line of the result. A figure without a goal is context for those that have one.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal"`
	OK    bool    `json:"ok"`

	// Of a ratio, what it is made of.
	*spread
}

// spread is the lowest and the highest of the ratios of the rounds, and the medians of what was compared.
type spread struct {
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Ours   float64 `json:"ours"`
	Beside float64 `json:"beside"`
	Of     string  `json:"of"` // unit of both
}

// report collects figures, and shows on standard error how the run goes.
type report struct {
	json    bool
	figures []figure
	costs   map[string]cost // of events, by what each is compared with
	curves  []curve         // of a run with -plot, in place of figures
	notes   []string        // printed below the table
	began   time.Time
}

func newReport(json bool) *report {
	return &report{json: json, costs: map[string]cost{}, began: time.Now()}
}

// goal is what a figure should be.
type goal struct {
	sign  string // ">=", "<=", "<", "="
	limit float64
}

func atLeast(limit float64) goal { return goal{">=", limit} }
func atMost(limit float64) goal  { return goal{"<=", limit} }
func exactly(limit float64) goal { return goal{"=", limit} }
func below(limit float64) goal   { return goal{"<", limit} }

// noGoal is that of a ratio that explains others.
var noGoal goal

func (g goal) String() string {
	if g == noGoal {
		return ""
	}
	return g.sign + " " + number(g.limit)
}

func (g goal) met(value float64) bool {
	switch g.sign {
	case ">=":
		return value >= g.limit
	case "<=":
		return value <= g.limit
	case "=":
		return value == g.limit
	case "":
		return true
	default:
		return value < g.limit
	}
}

// goal adds a figure that has a goal.
func (r *report) goal(name string, value float64, unit string, g goal) {
	r.figures = append(r.figures, figure{
		Name:  name,
		Value: value,
		Unit:  unit,
		Goal:  g.String(),
		OK:    g.met(value),
	})
}

// ratio adds a figure that compares runs in turns: the median of the ratios of the rounds. unit is that of the runs.
func (r *report) ratio(name string, ours, beside []float64, unit string, g goal) {
	all := ratios(ours, beside)
	r.goal(name, median(all), "x", g)
	low, high := bounds(all)
	if math.IsInf(low, 0) || math.IsInf(high, 0) || math.IsNaN(low) { // of no rounds, or by nothing
		return
	}
	r.figures[len(r.figures)-1].spread = &spread{
		Low:    low,
		High:   high,
		Ours:   median(ours),
		Beside: median(beside),
		Of:     unit,
	}
}

// info adds a figure that explains others.
func (r *report) info(name string, value float64, unit string) {
	r.figures = append(r.figures, figure{Name: name, Value: value, Unit: unit, OK: true})
}

// cost adds the CPU time of an event beside a yardstick's. Without CPU times there is none.
func (r *report) cost(name string, ours, yardstick samples) {
	c := costOf(ours, yardstick)
	if median(ours.postgres) == 0 || median(yardstick.postgres) == 0 {
		return
	}
	r.costs[name] = c
	r.info(name, c.Against, "x")
}

// note adds lines below the table.
func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// progress says on standard error what happens, with the load, because a figure means little on a busy machine.
func (r *report) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs%s  %s\n", time.Since(r.began).Seconds(), load(), fmt.Sprintf(format, args...))
}

// load is how many processes wanted a core over the last minute, if the system says so.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), " ")
	return "  load " + first
}

func (r *report) print(w io.Writer) error {
	if r.curves != nil {
		return r.printCurves(w)
	}
	if r.json {
		figures := r.figures
		if figures == nil {
			figures = []figure{}
		}
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(figures)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nfigure\tvalue\tgoal\t")
	for _, f := range r.figures {
		met := ""
		if f.Goal != "" {
			met = "ok"
			if !f.OK {
				met = "short"
			}
		}
		between := ""
		if f.spread != nil && f.Low < f.High {
			between = fmt.Sprintf(" (%s to %s)", number(f.Low), number(f.High))
		}
		fmt.Fprintf(table, "%s\t%s %s%s\t%s\t%s\n", f.Name, number(f.Value), f.Unit, between, f.Goal, met)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.costs) > 0 {
		was, err := accepted(acceptedJSON)
		if err == nil {
			err = printCosts(w, r.costs, was)
		}
		if err != nil {
			return err
		}
	}
	for _, n := range r.notes {
		fmt.Fprintf(w, "\n%s\n", n)
	}
	return nil
}

// printCurves prints tables, or an array of the curves.
func (r *report) printCurves(w io.Writer) error {
	if r.json {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r.curves)
	}
	for _, c := range r.curves {
		if err := c.print(w); err != nil {
			return err
		}
	}
	for _, n := range r.notes {
		fmt.Fprintf(w, "\n%s\n", n)
	}
	return nil
}

// number writes a value with a sensible number of digits.
func number(v float64) string {
	switch {
	case v == float64(int64(v)) && v < 1000, v >= 1000:
		digits := fmt.Sprintf("%.0f", v)
		for i := len(digits) - 3; i > 0; i -= 3 {
			digits = digits[:i] + "," + digits[i:]
		}
		return digits
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// ratios divides the runs of one round by each other, so that anything that slows a whole round cancels out.
func ratios(of, by []float64) []float64 {
	out := make([]float64, min(len(of), len(by)))
	for i := range out {
		out[i] = of[i] / by[i]
	}
	return out
}
