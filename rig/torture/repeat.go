//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// Repeated sums up runs that were made one after another.
type Repeated struct {
	Options Options // of all of them, with the seed that theirs were drawn from
	reports []*Report
	failed  []string // runs that could not be judged, or that do not hold: their commands
}

// Holds says whether all runs that were asked for were made, and each holds.
func (re *Repeated) Holds() bool {
	return len(re.failed) == 0 && len(re.reports) == re.Options.Repeat
}

// Repeat makes o.Repeat runs on one broker, each with its own seed and until it has made every chosen fault. It writes a
// report of each run to o.Out. It goes on after a run that does not hold, and ends with ctx. The error says that there
// could be no run at all.
func Repeat(ctx context.Context, o Options) (*Repeated, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	s := &Repeated{Options: o}
	broker, err := startBrokers(ctx, o.Brokers, "")
	if err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	defer broker.Stop()
	for n := range o.Repeat {
		one := o
		one.Repeat, one.shared, one.prefix = 1, broker, fmt.Sprintf("run%d-", n)
		one.Seed = drawn(o.Seed, "run", n).Uint64()
		if o.Dir != "" {
			one.Dir = filepath.Join(o.Dir, fmt.Sprint("run-", n))
		}
		fmt.Fprintf(o.Out, "\nrun %d of %d\n", n+1, o.Repeat)
		report, err := Run(ctx, one)
		s.add(report, err)
		if err != nil {
			fmt.Fprintf(o.Out, "%v\n", err)
		}
		if report != nil && report.Judged() {
			fmt.Fprintf(o.Out, "\n%s", report)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return s, nil
}

func (re *Repeated) add(report *Report, err error) {
	if report == nil {
		re.failed = append(re.failed, err.Error())
		return
	}
	re.reports = append(re.reports, report)
	if err != nil || !report.Holds() {
		re.failed = append(re.failed, report.Command())
	}
}

// String is the sum of all runs.
func (re *Repeated) String() string {
	var b strings.Builder
	total := &Report{}
	var events, lost, ghosts, doubles, breaks, duplicates, dead int
	for _, r := range re.reports {
		v, f := r.Verdict, r.Verdict.Figures
		total.made = append(total.made, r.made...)
		total.faults = r.faults
		events, duplicates, dead = events+f.Events, duplicates+f.Duplicates, dead+f.Letters
		lost += v.Count(oracle.Lost) + v.Count(oracle.Missing)
		ghosts += v.Count(oracle.Ghosts) + v.Count(oracle.Phantoms)
		doubles, breaks = doubles+v.Count(oracle.Doubles), breaks+v.OrderBreaks()
	}
	b.WriteString(total.table())
	fmt.Fprintf(&b, "\n%d of %d runs hold\n\n", len(re.reports)-len(re.failed), re.Options.Repeat)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "events\tlost\tghosts\tdone twice\torder breaks\tduplicates\tdead\t")
	fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", events, lost, ghosts, doubles, breaks, duplicates, dead)
	_ = w.Flush()
	for _, command := range re.failed {
		fmt.Fprintf(&b, "DOES NOT HOLD: %s\n", command)
	}
	fmt.Fprintf(&b, "again: %s\n", command(re.Options))
	return b.String()
}
