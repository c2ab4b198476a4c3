// Command peers measures holdfast beside other frameworks of its field, on the same Postgres, the same Kafka and the same
// events, moments apart and in turns:
//
//	cd rig/bench/peers && go run .
//	go run . -events 20000 -rounds 5
//	go run . -only 'holdfast|river' -json
//
// It starts both servers itself, or uses those that DATABASE_URL and KAFKA_BROKERS name.
//
// It is a module of its own, so that nobody who uses holdfast downloads its peers. Each peer is set up as its own
// documentation advises, with the settings that made it fastest here; what they are stands where they are made.
// docs/performance.md holds a run with its commentary.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"text/tabwriter"
)

func main() {
	events := flag.Int("events", 10_000, "events of the backlog, and of the topic that is consumed")
	rounds := flag.Int("rounds", 3, "how often each is measured, in turns")
	only := flag.String("only", "", "measure only contestants whose name matches this `regexp`")
	asJSON := flag.Bool("json", false, "print an array of {job, name, per_second}, in the order of the rounds, and nothing else")
	flag.Parse()
	selected, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers: -only:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *events, *rounds, selected, *asJSON, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// contestant is one way to do a job. do does it once, on what is made for it alone, and returns events a second.
type contestant struct {
	name string
	do   func(ctx context.Context) (perSecond float64, err error)
}

// result is what one contestant did in each round.
type result struct {
	Job       string    `json:"job"`
	Name      string    `json:"name"`
	PerSecond []float64 `json:"per_second"`
}

func run(ctx context.Context, events, rounds int, only *regexp.Regexp, asJSON bool, out io.Writer) error {
	s, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
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
	drained, err := compare(ctx, fmt.Sprintf("drain a backlog of %d events to Kafka", events), drains, rounds, only)
	if err != nil {
		return err
	}
	topic, err := s.filledTopic(ctx, events)
	if err != nil {
		return err
	}
	handled, err := compare(ctx, fmt.Sprintf("handle %d events once each", events), []contestant{
		{"holdfast inbox, a transaction each", func(ctx context.Context) (float64, error) { return s.consumeByHoldfast(ctx, topic, events, 0) }},
		{"holdfast inbox, handlers that share", func(ctx context.Context) (float64, error) { return s.consumeByHoldfast(ctx, topic, events, 64) }},
		{"watermill router, a table of ids", func(ctx context.Context) (float64, error) { return s.consumeByWatermill(ctx, topic, events) }},
		{"river, JobCompleteTx, without Kafka", func(ctx context.Context) (float64, error) { return s.consumeByRiver(ctx, events) }},
	}, rounds, only)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(out).Encode(append(drained, handled...))
	}
	fmt.Fprintln(out, s.about)
	return errors.Join(show(out, drained), show(out, handled))
}

// compare lets the contestants that are selected take turns, each round in another order.
func compare(ctx context.Context, job string, contestants []contestant, rounds int, only *regexp.Regexp) ([]result, error) {
	contestants = slices.DeleteFunc(contestants, func(c contestant) bool { return !only.MatchString(c.name) })
	results := make([]result, len(contestants))
	for round := range rounds {
		for i := range contestants {
			n := (i + round) % len(contestants)
			c := contestants[n]
			speed, err := c.do(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			results[n].Job, results[n].Name, results[n].PerSecond = job, c.name, append(results[n].PerSecond, speed)
		}
	}
	return results, nil
}

// show prints the median of each contestant of a job and its ratio to the first one.
func show(out io.Writer, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i, c := range results {
		if i == 0 {
			fmt.Fprintf(w, "\n%s\tevents/s\t%s is\n", c.Job, c.Name)
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.1f x\n", c.Name, median(c.PerSecond), median(ratios(results[0].PerSecond, c.PerSecond)))
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
