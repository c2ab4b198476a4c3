//go:build linux

package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// Report is the result of a run.
type Report struct {
	Options Options       // with what was drawn for them
	Took    time.Duration // from the first server to the last word
	Verdict oracle.Verdict

	faults     []fault
	made       []made
	impossible map[string]string // faults that cannot be made here, and why
	troubles   []string          // parts that did not stop as they should, and oracles that saw nothing
	seen       oracle.Seen
	machine    machine
	apart      string   // what other partitions noticed while one was in trouble, and others while the provider was away
	decided    string   // what a person did
	waits      string   // how waits for events ended
	steps      string   // how often steps of handlers called the provider
	revived    []string // how PgBouncer ended each time it did by itself
	judged     bool     // there is a Verdict
}

// made is a fault that was made.
type made struct {
	name               string
	missed             bool // it was brought about, and never did anything to anybody
	beside             bool // a process was killed while it lasted
	held               time.Duration
	flowing, recovered time.Duration // never: not in time
}

// Holds says whether nothing is wrong. A run in which no fault hit anything does not hold: it shows nothing.
func (r *Report) Holds() bool { return len(r.against()) == 0 }

// Judged says whether there is a Verdict. There is none if a run broke off in such a way that it could not be judged.
func (r *Report) Judged() bool { return r.judged }

// against lists why the run does not hold.
func (r *Report) against() (why []string) {
	for _, o := range r.Verdict.Broken() {
		why = append(why, fmt.Sprintf("%s found something", o))
	}
	if n := len(r.troubles); n > 0 {
		why = append(why, fmt.Sprintf("%d troubles beside the oracles", n))
	}
	if len(r.hits()) == 0 {
		why = append(why, "no fault hit anything, so that it shows nothing")
	}
	return why
}

// hits are the faults that were made: those that hit something.
func (r *Report) hits() (hits []made) {
	for _, m := range r.made {
		if !m.missed {
			hits = append(hits, m)
		}
	}
	return hits
}

// tidy removes histories and logs, unless they are needed.
func (r *Report) tidy() {
	if r.Holds() {
		_ = os.RemoveAll(r.Options.Dir)
		r.Options.Dir = ""
	}
}

func (r *Report) count(name string) (n int) {
	for _, m := range r.made {
		if m.name == name {
			n++
		}
	}
	return n
}

// table has a line for each fault.
func (r *Report) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
	line("fault", "made", "held", "events flow p50", "max", "recovered p50", "max")
	for _, f := range r.faults {
		var held, flowing, recovered []time.Duration
		for _, m := range r.hits() {
			if m.name == f.name {
				held, flowing, recovered = append(held, m.held), append(flowing, m.flowing), append(recovered, m.recovered)
			}
		}
		var missed []any // a cell, or none
		if n := r.count(f.name) - len(held); n > 0 {
			missed = []any{fmt.Sprintf("made, never hit: %d", n)}
		}
		switch why := r.impossible[f.name]; {
		case len(held) > 0:
			line(append([]any{f.name, len(held), round(slices.Max(held)), inTime(median(flowing)), inTime(slices.Max(flowing)), inTime(median(recovered)), inTime(slices.Max(recovered))}, missed...)...)
		case missed != nil:
			line(append([]any{f.name, 0}, missed...)...)
		case why != "":
			line(f.name, "-", why)
		default:
			line(f.name, 0, "not drawn")
		}
	}
	_ = w.Flush()
	return b.String()
}

// String is the table at the end of a run.
func (r *Report) String() string {
	var b strings.Builder
	b.WriteString(r.table())
	v, f := r.Verdict, r.Verdict.Figures
	beside := 0
	hits := r.hits()
	var flowing []time.Duration
	for _, m := range hits {
		flowing = append(flowing, m.flowing)
		if m.beside {
			beside++
		}
	}
	p50, most := f.RecoveryTimes()
	fmt.Fprintf(&b, "\n%d faults, %d of them with a process killed beside; %d more made that never hit; %s\n\n", len(hits), beside, len(r.made)-len(hits), round(r.Took))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "events\tlost\tghosts\tdone twice\torder breaks\tduplicates\tdead\tevents flow p50\tmax\trecovered p50\tmax\t")
	fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t\n", f.Events, v.Count(oracle.Lost)+v.Count(oracle.Missing), v.Count(oracle.Ghosts)+v.Count(oracle.Phantoms),
		v.Count(oracle.Doubles), v.OrderBreaks(), f.Duplicates, f.Letters, inTime(median(flowing)), inTime(slices.Max(append(flowing, 0))), round(p50), round(most))
	_ = w.Flush()
	fmt.Fprintf(&b, "\n%s\nseen by O6 and O7: %s\n", v, r.seen)
	if r.decided != "" {
		fmt.Fprintln(&b, r.decided)
	}
	if r.waits != "" {
		fmt.Fprintln(&b, r.waits)
	}
	if r.steps != "" {
		fmt.Fprintln(&b, r.steps)
	}
	if text := r.machine.String(); text != "" {
		fmt.Fprintln(&b, text)
	}
	if r.apart != "" {
		fmt.Fprintln(&b, r.apart)
	}
	if n := len(r.revived); n > 0 {
		fmt.Fprintf(&b, "PgBouncer ended by itself %d times, and was started again: %s\n", n, strings.Join(r.revived, "; "))
	}
	for _, trouble := range r.troubles {
		fmt.Fprintln(&b, trouble)
	}
	if against := r.against(); len(against) > 0 {
		fmt.Fprintf(&b, "THE RUN DOES NOT HOLD: %s\n", strings.Join(against, "; "))
	} else {
		fmt.Fprintln(&b, "the run holds")
	}
	if r.Options.Dir != "" {
		fmt.Fprintf(&b, "histories and logs are in %s\n", r.Options.Dir)
	}
	fmt.Fprintf(&b, "again: %s\n", r.Command())
	return b.String()
}

// never is the time of a recovery that was not seen. It is longer than all others.
const never = time.Duration(math.MaxInt64)

func inTime(d time.Duration) string {
	if d == never {
		return "NEVER"
	}
	return round(d)
}

// Command is the command that repeats the run.
func (r *Report) Command() string { return command(r.Options) }

func command(o Options) string {
	text := fmt.Sprintf("go run ./rig/torture -for %s -seed %d", o.For, o.Seed)
	standard := Options{}.withDefaults()
	if !slices.Equal(o.Faults, standard.Faults) {
		text += fmt.Sprintf(" -faults '%s'", strings.Join(o.Faults, ","))
	}
	if o.PgBouncer {
		text += " -pgbouncer"
	}
	if o.Postgres != "" {
		text += fmt.Sprintf(" -postgres '%s'", o.Postgres)
	}
	for _, flag := range []struct {
		name            string
		value, standard int
	}{{"brokers", o.Brokers, standard.Brokers}, {"producers", o.Producers, standard.Producers}, {"relays", o.Relays, standard.Relays}, {"consumers", o.Consumers, standard.Consumers}, {"rate", o.Rate, standard.Rate}, {"repeat", o.Repeat, 0}} {
		if flag.value != flag.standard {
			text += fmt.Sprintf(" -%s %d", flag.name, flag.value)
		}
	}
	return text
}

func median(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// List is every fault with its line, for a person.
func List() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range catalogue() {
		fmt.Fprintf(w, "%s\t%s\n", f.name, f.what)
	}
	_ = w.Flush()
	return b.String()
}
