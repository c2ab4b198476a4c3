//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `torture runs producers, relays and consumers on a real Postgres and a real Kafka, injects faults,
and reports what became of every event.

It needs Linux, a Docker engine for Kafka, and PostgreSQL 15 or newer, which it downloads if there is none.
The faults that fill a disk need root and up to 6 GiB of memory; -pgbouncer needs PgBouncer.

Exit codes: 0 every promise held; 1 one did not, or the run failed; 2 wrong command line.

`

func main() {
	if IsPart() {
		os.Exit(RunPart())
	}
	os.Exit(runCommand(os.Args[1:], os.Stdout, os.Stderr))
}

// runCommand is main without the process. It returns the exit status: 0 if all oracles agree, 1 if one does not or there was
// no run, 2 if the command line is wrong.
func runCommand(args []string, out, errOut io.Writer) int {
	o := Options{Out: out}
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.DurationVar(&o.For, "for", 3*time.Minute, "how long to inject faults")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of the plan; 0 chooses one at random")
	faults := flags.String("faults", "*", "names of faults, or patterns like kill-*, separated by commas; -list shows them")
	flags.IntVar(&o.Brokers, "brokers", 1, "brokers of Kafka: 1, or 3 that are one cluster")
	flags.BoolVar(&o.PgBouncer, "pgbouncer", false, "put PgBouncer in transaction pooling between all parts and Postgres")
	flags.StringVar(&o.Postgres, "postgres", "", "folder of the programs of PostgreSQL to run, for another version than the one that is found")
	flags.IntVar(&o.Producers, "producers", 2, "processes that write")
	flags.IntVar(&o.Relays, "relays", 2, "processes that publish")
	flags.IntVar(&o.Consumers, "consumers", 2, "processes that consume")
	flags.IntVar(&o.Rate, "rate", 30, "transactions a second of each producer")
	flags.IntVar(&o.Repeat, "repeat", 0, "make so many runs, each with a seed of its own and until it has made each fault once")
	flags.StringVar(&o.Dir, "dir", "", "an empty folder for histories and logs; without it they are removed after a good run")
	list := flags.Bool("list", false, "list the faults, and do nothing")
	flags.Usage = func() {
		fmt.Fprint(errOut, usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errOut, "torture: %q is not a flag; -help lists them\n", flags.Arg(0))
		return 2
	}
	for _, name := range []string{"for", "brokers", "producers", "relays", "consumers", "rate"} {
		switch f := flags.Lookup(name); f.Value.String() {
		case "0", "0s": // in the package it means the default
			fmt.Fprintf(errOut, "torture: -%s is 0: it must be more than 0; the default is %s\n", name, f.DefValue)
			return 2
		}
	}
	if *list {
		fmt.Fprint(out, List())
		return 0
	}
	for _, name := range strings.Split(*faults, ",") {
		o.Faults = append(o.Faults, strings.TrimSpace(name))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if o.Repeat > 1 {
		return repeat(ctx, o, errOut)
	}
	report, err := Run(ctx, o)
	if err != nil {
		fmt.Fprintf(errOut, "torture: %v\n", err)
		if report == nil {
			return 1
		}
		if !report.Judged() {
			fmt.Fprintf(errOut, "histories and logs are in %s\nrun it again: %s\n", report.Options.Dir, report.Command())
			return 1
		}
		fmt.Fprintf(out, "\nINTERRUPTED, and judged up to that point:\n%s", report)
		return 1
	}
	fmt.Fprintf(out, "\n%s", report)
	if !report.Holds() {
		return 1
	}
	return 0
}

// repeat makes many runs, and prints their sum.
func repeat(ctx context.Context, o Options, errOut io.Writer) int {
	sum, err := Repeat(ctx, o)
	if err != nil {
		fmt.Fprintf(errOut, "torture: %v\n", err)
		return 1
	}
	fmt.Fprintf(o.Out, "\n%s", sum)
	if !sum.Holds() {
		return 1
	}
	return 0
}
