package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
)

// The CPU time of an event is steady where rates are not. So each run prints it beside the figures that were accepted last, which
// are in accepted.json. A change that makes an event dearer by more than a twentieth says why in its commit, and accepts its own
// figures: go run ./rig/bench -quick -rounds 5 -only '^CPU time' -accept rig/bench/accepted.json
//
// Microseconds are those of a machine, and of an hour on it. What can be compared with other runs is how many times the yardstick's CPU time it is,
// which was measured in turns with it.

//go:embed accepted.json
var acceptedJSON []byte

const (
	costRelay    = "CPU time of an event that a relay publishes, against a bare loop's"
	costConsumer = "CPU time of an event with a transaction of its own, against a hand-written consumer's"
	costProducer = "CPU time of an order and its event, against an order and a hand-written row"
	costRequest  = "CPU time of a request with a key, against a hand-written table of keys"

	dearerFrom = 1.05 // times what was accepted
)

// cost is the CPU time of one event.
type cost struct {
	Process  float64 `json:"process"`  // microseconds, of the clients too
	Postgres float64 `json:"postgres"` // microseconds
	Against  float64 `json:"against"`  // both, by those of the yardstick in the same round; the median of the rounds
}

// costOf compares runs of both in turns.
func costOf(ours, yardstick samples) cost {
	sum := func(s samples) []float64 {
		total := make([]float64, min(len(s.self), len(s.postgres)))
		for i := range total {
			total[i] = s.self[i] + s.postgres[i]
		}
		return total
	}
	return cost{
		Process:  median(ours.self),
		Postgres: median(ours.postgres),
		Against:  median(ratios(sum(ours), sum(yardstick))),
	}
}

// accepted reads the figures that were accepted last.
func accepted(file []byte) (map[string]cost, error) {
	var costs map[string]cost
	if err := json.Unmarshal(file, &costs); err != nil {
		return nil, fmt.Errorf("read the accepted figures: %w", err)
	}
	return costs, nil
}

// accept writes the figures of a run into the file, beside those of other events.
func accept(path string, costs map[string]cost) error {
	if len(costs) == 0 {
		return errors.New("no CPU time to accept: none was measured, or Postgres does not run on this machine")
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the accepted figures: %w", err)
	}
	all, err := accepted(file)
	if err != nil {
		return err
	}
	maps.Copy(all, costs)
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// dearer says whether an event costs more than a twentieth more than was accepted.
func dearer(now, was cost) bool { return was.Against > 0 && now.Against > dearerFrom*was.Against }

// printCosts prints a table of the costs of a run beside the accepted ones.
func printCosts(w io.Writer, costs, was map[string]cost) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\n\tnow\tprocess\tPostgres\taccepted\tprocess\tPostgres\t")
	for _, name := range slices.Sorted(maps.Keys(costs)) {
		now, was := costs[name], was[name]
		said := ""
		if dearer(now, was) {
			said = "dearer"
		}
		fmt.Fprintf(table, "%s\t%s x\t%s µs\t%s µs\t%s x\t%s µs\t%s µs\t%s\n", name, number(now.Against), number(now.Process), number(now.Postgres), number(was.Against), number(was.Process), number(was.Postgres), said)
	}
	return table.Flush()
}
