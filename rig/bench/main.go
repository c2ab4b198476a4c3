// Command bench compares holdfast with other ways to use the same Postgres and the same Kafka:
//
//	go run ./rig/bench            # everything, three quarters of an hour
//	go run ./rig/bench -quick     # smaller samples and fewer measurements, some minutes
//	go run ./rig/bench -only drain
//	go run ./rig/bench -json
//	go run ./rig/bench -page docs/benchmark.md   # what matters most, on one page, a quarter of an hour
//	go run ./rig/bench -plot docs/performance   # how costs grow, as plots and tables, in place of the figures
//
// It starts both servers itself (Kafka in Docker if there is one, else an in-process fake), or uses those that
// DATABASE_URL and KAFKA_BROKERS name. Both sides of a comparison run moments apart on the same machine, in turns, and the
// result is a ratio: figures of two machines, or of two hours, cannot be compared. docs/performance.md has a run with
// comments.
//
// The exit status is 0 if every measurement could be made, even if a goal was missed: the table shows that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
)

// options are the command line.
type options struct {
	quick      bool
	json       bool
	only       *regexp.Regexp
	rounds     int
	page       string // file
	plot       string // folder
	accept     string // file
	redraw     bool
	long       bool
	cpuProfile string
	child      childOptions
}

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		// SIGINT and SIGTERM end the run through its deferred clean-up. A child ends with its parent's pipe instead.
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if o.child.database != "" {
			err = runChild(o.child)
		} else {
			err = run(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.BoolVar(&o.quick, "quick", false, "smaller samples, without what takes minutes: a few minutes in all")
	flags.BoolVar(&o.json, "json", false, "print an array of {name, value, unit, goal, ok}, and of ratios {low, high, ours, beside, of}, and nothing else")
	flags.IntVar(&o.rounds, "rounds", 0, "how often compared runs are repeated, in turns (default 3, with -quick 2)")
	flags.StringVar(&o.cpuProfile, "cpuprofile", "", "write CPU profiles: of the relay's last drain to `file`, of the others to file.bare, file.child, and of consumers to file.batchN.groupN")
	flags.StringVar(&o.page, "page", "", "measure what matters most, in place of the figures, and write one page (Markdown) into this `file`, and its plots into the folder beside it of the same name; a quarter of an hour")
	flags.StringVar(&o.plot, "plot", "", "measure how costs grow, in place of the figures, and write a plot (SVG) and its numbers (JSON) for each into `folder`; -only selects by their names")
	flags.BoolVar(&o.long, "long", false, "with -plot: also 10,000,000 events and rows, half an hour and 30 GB more")
	flags.BoolVar(&o.redraw, "redraw", false, "with -plot: measure nothing, draw the numbers that are in the folder")
	flags.StringVar(&o.accept, "accept", "", "write the CPU time of each kind of event that was measured into this `file`, as the figures that later runs are compared with: rig/bench/accepted.json")
	only := flags.String("only", "", "measure only figures whose name matches this `regexp`")
	flags.StringVar(&o.child.database, "child-database", "", "internal: run a relay on this database until standard input ends")
	flags.StringVar(&o.child.topic, "child-topic", "", "internal: run a consumer of this topic in place of the relay")
	flags.IntVar(&o.child.batch, "child-batch", 1, "internal: how many events the consumer handles at once")
	flags.Float64Var(&o.child.bare, "child-bare", 0, "internal: send so many statements a second in place of the relay, which do nothing")
	flags.StringVar(&o.child.profile, "child-cpuprofile", "", "internal: write the child's CPU profile to this file")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.plot == "" && (o.long || o.redraw) {
		return o, errors.New("-long and -redraw belong to -plot: name its folder")
	}
	if o.plot != "" && o.accept != "" {
		return o, errors.New("-accept is for figures, and -plot measures none")
	}
	if o.page != "" && (o.quick || o.json || o.plot != "" || o.accept != "" || o.cpuProfile != "" || *only != "") {
		return o, errors.New("-page measures what the page has: it goes with -rounds, and with no other option")
	}
	if o.page != "" && filepath.Ext(o.page) != ".md" {
		return o, fmt.Errorf("-page: %q is no Markdown file: its name ends in .md", o.page)
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: see -help", flags.Arg(0))
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, fmt.Errorf("-only: %w", err)
	}
	return o, nil
}

// brief says whether to leave out what takes minutes: -quick leaves it out, unless -only asks for it.
func (o options) brief() bool { return o.quick && o.only.String() == "" }

// run makes the measurements one after the other and prints them. If one fails, the results before it are still printed.
func run(ctx context.Context, o options) (err error) {
	r := newReport(o.json)
	if o.redraw {
		return errors.Join(redraw(o.plot, r), r.print(os.Stdout))
	}
	if o.page != "" {
		return measurePage(ctx, o, r, os.Stdout)
	}
	e, err := newEnv(ctx, o, r)
	if err != nil {
		return err
	}
	defer e.stop()
	defer func() {
		if printErr := r.print(os.Stdout); err == nil {
			err = printErr
		}
	}()
	if o.plot != "" {
		return grow(ctx, e, r)
	}
	if err := measure(ctx, e, r); err != nil {
		return err
	}
	if o.accept != "" {
		return accept(o.accept, r.costs)
	}
	return nil
}

// measurement is what is measured together.
type measurement struct {
	figures []string // names of the goals it reports; -only selects by them
	long    bool     // not with -quick, unless -only asks for it
	measure func(context.Context, *env, *report) error
}

var measurements = []measurement{
	{drainFigures, false, measureDrain},
	{drainLargeFigures, false, measureDrainLarge},
	{franzFigures, false, measureFranz},
	{transactionsFigures, false, measureTransactions},
	{heldFigures, false, measureHeld},
	{isolationFigures, false, measureIsolation},
	{scaleFigures, true, measureScale},
	{latencyFigures, false, measureLatency},
	{newTopicFigures, false, measureNewTopics},
	{pinnedFigures, false, measurePinned},
	{slowFigures, false, measureSlow},
	{retiredFigures, false, measureRetired},
	{parkedFigures, false, measureParked},
	{producerFigures, false, measureProducer},
	{memoryFigures, false, measureMemory},
	{memorySizesFigures, false, measureMemorySizes},
	{idleFigures, false, measureIdle},
	{consumerFigures, false, measureConsumer},
	{storedFigures, false, measureStored},
	{hotFigures, false, measureHotKey},
	{tenantFigures, false, measureTenants},
	{retentionFigures, false, measureRetention},
	{requestFigures, false, measureRequests},
}

// measure makes the measurements that are selected.
func measure(ctx context.Context, e *env, r *report) error {
	for _, m := range measurements {
		if !selected(e.options.only, m.figures) || m.long && e.options.brief() {
			continue
		}
		if err := m.measure(ctx, e, r); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted: %w", err)
			}
			return err
		}
	}
	return nil
}

func selected(only *regexp.Regexp, names []string) bool {
	for _, name := range names {
		if only.MatchString(name) {
			return true
		}
	}
	return false
}
