package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAccepted_TheFileHasEveryKindOfEvent(t *testing.T) {
	costs, err := accepted(acceptedJSON)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{costConsumer, costProducer, costRelay, costRequest}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(costs)); !slices.Equal(got, want) {
		t.Errorf("accepted.json has %q, want %q", got, want)
	}
	for name, c := range costs {
		if c.Process <= 0 || c.Postgres <= 0 || c.Against <= 0 {
			t.Errorf("%s: %v", name, c)
		}
	}
}

// The yardstick of a round is that of its time: an hour in which everything is twice as slow changes nothing.
func TestAccepted_ACostIsComparedRoundByRound(t *testing.T) {
	ours := samples{self: []float64{5, 10, 7}, postgres: []float64{4, 8, 5}}
	yardstick := samples{self: []float64{4, 8, 4}, postgres: []float64{2, 4, 2}}
	if got, want := costOf(ours, yardstick), (cost{Process: 7, Postgres: 5, Against: 1.5}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAccepted_DearerIsMoreThanATwentieth(t *testing.T) {
	for now, want := range map[float64]bool{1.9: false, 2: false, 2.1: false, 2.11: true} {
		if got := dearer(cost{Process: 900, Against: now}, cost{Process: 1, Against: 2}); got != want {
			t.Errorf("%v after 2 is dearer: %v", now, got)
		}
	}
	if dearer(cost{Against: 2}, cost{}) {
		t.Error("what was never accepted is dearer")
	}
}

func TestAccepted_ATableHasBothFiguresAndSaysWhatIsDearer(t *testing.T) {
	r := newReport(false)
	r.cost(costRelay, samples{self: []float64{6.25}, postgres: []float64{1e6}}, samples{self: []float64{1}, postgres: []float64{1}})
	r.cost(costConsumer, samples{self: []float64{3.5}, postgres: []float64{0.5}}, samples{self: []float64{100}, postgres: []float64{300}})
	r.cost(costProducer, samples{self: []float64{3}, postgres: []float64{0}}, samples{self: []float64{3}, postgres: []float64{0}}) // of a server elsewhere
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(out.String(), "accepted")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != 3 {
		t.Fatalf("printed\n%s", out.String())
	}
	costs, err := accepted(acceptedJSON)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{{costRelay, "6.25 µs", "1,000,000 µs", number(costs[costRelay].Postgres) + " µs"}, {costConsumer, "0.01 x", "3.5 µs", "0.5 µs", number(costs[costConsumer].Against) + " x"}} {
		for _, part := range want {
			if !strings.Contains(lines[i+1], part) {
				t.Errorf("without %q:\n%s", part, lines[i+1])
			}
		}
		if got := strings.HasSuffix(strings.TrimSpace(lines[i+1]), "dearer"); got != (i == 0) {
			t.Errorf("dearer is %v:\n%s", got, lines[i+1])
		}
	}
}

// A run of some kinds of events keeps what was accepted of the others.
func TestAccepted_ARunIsWrittenBesideTheOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accepted.json")
	if err := os.WriteFile(path, []byte(`{"a": {"process": 1, "postgres": 2, "against": 3}, "b": {"against": 4}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := accept(path, map[string]cost{"b": {5, 6, 7}, "c": {8, 9, 10}}); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := accepted(file)
	if want := map[string]cost{"a": {1, 2, 3}, "b": {5, 6, 7}, "c": {8, 9, 10}}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if err := accept(filepath.Join(t.TempDir(), "missing.json"), got); err == nil {
		t.Error("a file that does not exist was written")
	}
	if err := accept(path, nil); err == nil {
		t.Error("nothing was accepted")
	}
}
