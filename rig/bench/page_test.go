package main

import (
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// The rows of the page are figures that measurements report, so that none of them is left out in silence.
func TestPage_EveryRowIsMeasured(t *testing.T) {
	var all []string
	for _, m := range measurements {
		all = append(all, m.figures...)
	}
	if len(pageRows) != 15 {
		t.Errorf("the page has %d rows", len(pageRows))
	}
	woken := wokenFigure(latencyRate, "p50") // reported with the others of its rate
	for _, row := range pageRows {
		if (row.figure == "") == (row.peer == nil) || row.figure != "" && row.figure != woken && !slices.Contains(all, row.figure) {
			t.Errorf("nothing measures %+v", row)
		}
	}
}

func pageRun() ([]figure, pageFacts) {
	r := newReport(false)
	for _, row := range pageRows {
		name := row.figure
		if row.peer != nil {
			name = row.peer.name()
		}
		r.ratio(name, []float64{100, 200, 330}, []float64{100, 100, 100}, "events/s", atLeast(3))
	}
	return r.figures, pageFacts{
		machine: "linux/amd64, 2 cores",
		peers:   versionsOf([]*debug.Module{{Path: "github.com/riverqueue/river", Version: "v0.44.1"}, {Path: "github.com/ThreeDotsLabs/watermill", Version: "v1.5.1"}, {Path: "github.com/riverqueue/river/rivertype", Version: "v1"}}),
		date:    time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC),
		took:    14*time.Minute + 40*time.Second,
		command: "go run ./rig/bench -page docs/benchmark.md",
		rounds:  3,
		folder:  "benchmark",
	}
}

func TestPage_ItSaysWhatWasMeasuredAndHowMuchItVaried(t *testing.T) {
	figures, facts := pageRun()
	page, err := pageOf(figures, []curve{{Name: "drain-by-keys", Title: "Drain rate against keys"}}, facts)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"`go run ./rig/bench -page docs/benchmark.md`", "1 December 2026", "15 minutes", "3 rounds or more", "linux/amd64, 2 cores", "The peers: Watermill 1.5.1, River 0.44.1.",
		"| publish a backlog of 300,000 events | 200 events/s | a bare loop that only reads and produces | 100 events/s | 2 x (1 to 3.3) | ≥ 3, missed |",
		"![Drain rate against keys](benchmark/drain-by-keys.svg)",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if n := strings.Count(string(page), "\n| "); n != len(pageRows)+1 {
		t.Errorf("%d lines of the table for %d rows", n, len(pageRows))
	}
}

func TestPage_ARowWithoutAFigureIsAnError(t *testing.T) {
	figures, facts := pageRun()
	if _, err := pageOf(figures[1:], nil, facts); err == nil || !strings.Contains(err.Error(), drainByBare) {
		t.Error(err)
	}
}

func TestPage_PeersAreComparedByTheirNames(t *testing.T) {
	r := newReport(false)
	text := `[{"job": "drain", "name": "holdfast relay", "per_second": [10, 20]}, {"name": "watermill forwarder, queue, batches of 1,000", "per_second": [1, 4]},
		{"name": "holdfast inbox, a transaction each", "per_second": [8]}, {"name": "watermill router, a table of ids", "per_second": [4]}, {"name": "river, JobCompleteTx, without Kafka", "per_second": [2]}]`
	if err := addPeers(r, []byte(text)); err != nil {
		t.Fatal(err)
	}
	var got []float64
	for _, f := range r.figures {
		got = append(got, f.Value, f.Low, f.High)
	}
	if !slices.Equal(got, []float64{7.5, 5, 10, 2, 2, 2, 4, 4, 4}) {
		t.Error(got)
	}
	if err := addPeers(r, []byte(strings.ReplaceAll(text, "river", "lake"))); err == nil || !strings.Contains(err.Error(), `"river, JobCompleteTx`) {
		t.Error(err)
	}
	if err := addPeers(r, []byte("no")); err == nil {
		t.Error("no error")
	}
}

// README quotes two rows of the page as they are on it.
func TestPage_TheReadmeQuotesIt(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/benchmark.md")
	if err != nil {
		t.Fatal(err)
	}
	_, quoted, _ := strings.Cut(string(readme), "**How fast.**")
	quoted, _, _ = strings.Cut(quoted, "\n\n")
	if !strings.Contains(strings.ReplaceAll(quoted, "\n", " "), "`go run ./rig/bench -page docs/benchmark.md`") {
		t.Errorf("README has no command of the page in %q", quoted)
	}
	ratio := regexp.MustCompile(`[0-9.]+ x \([0-9.]+ to [0-9.]+\)`)
	var on []string
	for _, figure := range []string{drainByHand, consumerSingle} {
		i := slices.IndexFunc(pageRows, func(r row) bool { return r.figure == figure })
		_, line, _ := strings.Cut(string(page), "| "+pageRows[i].beside+" |")
		on = append(on, ratio.FindString(line))
	}
	if quotes := ratio.FindAllString(strings.ReplaceAll(quoted, "\n", " "), -1); !slices.Equal(quotes, on) {
		t.Errorf("README quotes %q, and the page has %q", quotes, on)
	}
}
