// Command peers measures holdfast beside other frameworks of its field, on the same Postgres, the same Kafka and the same
// events, moments apart and in turns:
//
//	cd rig/bench/peers && go run .
//	go run . -events 20000 -rounds 5
//
// It is a module of its own, so that nobody who uses holdfast downloads its peers. Each peer is set up as its own
// documentation advises, with the settings that made it fastest here; what they are stands where they are made.
// docs/performance.md holds a run with its commentary.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
)

func main() {
	events := flag.Int("events", 10_000, "events of the backlog, and of the topic that is consumed")
	rounds := flag.Int("rounds", 3, "how often each is measured, in turns")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *events, *rounds, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// contestant is one way to do a job. do does it once, on what is made for it alone, and returns events a second.
type contestant struct {
	name string
	do   func(ctx context.Context) (perSecond float64, err error)
}

func run(ctx context.Context, events, rounds int, out io.Writer) error {
	s, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	fmt.Fprintln(out, s.about)
	drains := []contestant{
		{"holdfast relay", func(ctx context.Context) (float64, error) { return s.drainByHoldfast(ctx, events) }},
		{"hand-written relay, BatchTimeout 1 ms", func(ctx context.Context) (float64, error) { return s.drainByHand(ctx, events) }},
		{"watermill forwarder, as documented", func(ctx context.Context) (float64, error) {
			return s.drainByWatermill(ctx, events, watermillOffsets(100))
		}},
		{"watermill forwarder, batches of 1,000", func(ctx context.Context) (float64, error) {
			return s.drainByWatermill(ctx, events, watermillOffsets(1000))
		}},
		{"watermill forwarder, queue, batches of 1,000", func(ctx context.Context) (float64, error) {
			return s.drainByWatermill(ctx, events, watermillQueue(1000))
		}},
	}
	if err := compare(ctx, out, fmt.Sprintf("drain a backlog of %d events to Kafka", events), drains, rounds); err != nil {
		return err
	}
	topic, err := s.filledTopic(ctx, events)
	if err != nil {
		return err
	}
	return compare(ctx, out, fmt.Sprintf("handle %d events once each", events), []contestant{
		{"holdfast inbox", func(ctx context.Context) (float64, error) { return s.consumeByHoldfast(ctx, topic, events) }},
		{"watermill router, a table of ids", func(ctx context.Context) (float64, error) { return s.consumeByWatermill(ctx, topic, events) }},
		{"river, JobCompleteTx, without Kafka", func(ctx context.Context) (float64, error) { return s.consumeByRiver(ctx, events) }},
	}, rounds)
}

// compare lets contestants take turns, each round in another order, and prints the median of each and its ratio to the
// first one.
func compare(ctx context.Context, out io.Writer, job string, contestants []contestant, rounds int) error {
	speeds := make([][]float64, len(contestants))
	for round := range rounds {
		for i := range contestants {
			n := (i + round) % len(contestants)
			speed, err := contestants[n].do(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", contestants[n].name, err)
			}
			speeds[n] = append(speeds[n], speed)
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s\tevents/s\tholdfast is\n", job)
	for i, c := range contestants {
		fmt.Fprintf(w, "%s\t%.0f\t%.1f x\n", c.name, median(speeds[i]), median(ratios(speeds[0], speeds[i])))
	}
	return w.Flush()
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// ratios are those of the runs of one round, which were moments apart.
func ratios(a, b []float64) (all []float64) {
	for i := range a {
		all = append(all, a[i]/b[i])
	}
	return all
}
