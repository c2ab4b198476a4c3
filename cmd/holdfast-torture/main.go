//go:build linux

// Command holdfast-torture runs producers, relays and consumers as processes of their own on a real Postgres and a real
// Kafka, makes faults, and says what became of every event. docs/torture.md tells more.
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

	"github.com/holdfast-go/holdfast/testkit/torture"
)

const usage = `holdfast-torture runs producers, relays and consumers on a real Postgres and a real Kafka, makes faults,
and says what became of every event.

It needs Linux, a Docker engine for Kafka, and PostgreSQL 15 or newer, which it downloads where there is none.
Disks that run full need root, and up to 6 GiB of memory; -pgbouncer needs PgBouncer.

It ends with 0 when the run holds, with 1 when it does not or could not be made, and with 2 for a wrong command line.

`

func main() {
	if torture.IsPart() {
		os.Exit(torture.RunPart())
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit status. 0: all oracles agree. 1: one does not, or there was no
// run. 2: the command line is wrong.
func run(args []string, out, errOut io.Writer) int {
	o := torture.Options{Out: out}
	flags := flag.NewFlagSet("holdfast-torture", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.DurationVar(&o.For, "for", 3*time.Minute, "how long faults are made")
	flags.Uint64Var(&o.Seed, "seed", 0, "the seed of the plan; 0 draws one")
	faults := flags.String("faults", "*", "names of faults, or patterns like kill-*, separated by commas; -list shows them")
	flags.BoolVar(&o.PgBouncer, "pgbouncer", false, "put PgBouncer in transaction pooling between all parts and Postgres")
	flags.IntVar(&o.Producers, "producers", 2, "processes that write")
	flags.IntVar(&o.Relays, "relays", 2, "processes that publish")
	flags.IntVar(&o.Consumers, "consumers", 2, "processes that consume")
	flags.IntVar(&o.Rate, "rate", 30, "transactions a second of each producer")
	flags.StringVar(&o.Dir, "dir", "", "an empty folder for histories and logs; without one they go when all is well")
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
		fmt.Fprintf(errOut, "holdfast-torture: %q is no flag; -help lists them\n", flags.Arg(0))
		return 2
	}
	for _, name := range []string{"for", "producers", "relays", "consumers", "rate"} {
		switch f := flags.Lookup(name); f.Value.String() {
		case "0", "0s": // To the package it means the default.
			fmt.Fprintf(errOut, "holdfast-torture: -%s is 0: it must be more; without the flag it is %s\n", name, f.DefValue)
			return 2
		}
	}
	if *list {
		fmt.Fprint(out, torture.List())
		return 0
	}
	for _, name := range strings.Split(*faults, ",") {
		o.Faults = append(o.Faults, strings.TrimSpace(name))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	report, err := torture.Run(ctx, o)
	if err != nil {
		fmt.Fprintf(errOut, "holdfast-torture: %v\n", err)
		if report == nil {
			return 1
		}
		if !report.Judged() {
			fmt.Fprintf(errOut, "histories and logs are in %s\nagain: %s\n", report.Options.Dir, report.Command())
			return 1
		}
		fmt.Fprintf(out, "\nBROKEN OFF, and judged up to there:\n%s", report)
		return 1
	}
	fmt.Fprintf(out, "\n%s", report)
	if !report.Holds() {
		return 1
	}
	return 0
}
