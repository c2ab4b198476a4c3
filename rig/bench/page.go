package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// This file measures one page (-page): what a reader wants to know first, in a quarter of an hour. It is a Markdown file with a table and a
// few plots, which lie in a folder beside it, and has everything that is needed to read it: the machine, the servers, the load and the command.

// row is a line of the page: what holdfast does beside what somebody else does, on the same servers, in turns.
type row struct {
	what   string
	beside string
	figure string   // of a measurement
	peer   *against // or of peers
}

// against is a figure of rig/bench/peers.
type against struct{ ours, peer string }

const (
	peerRelay     = "holdfast relay"
	peerForwarder = "watermill forwarder, queue, batches of 1,000"
	peerInbox     = "holdfast inbox, a transaction each"
	peerRouter    = "watermill router, a table of ids"
	peerRiver     = "river, JobCompleteTx, without Kafka"
)

// pageRows are the lines of the page.
var pageRows = []row{
	{"publish a backlog of 300,000 events", "a bare loop that only reads and produces", drainByBare, nil},
	{"the same", "a simple relay written by hand, 100 rows a turn, BatchTimeout 1 ms; 40,000 events", drainByHand, nil},
	{"publish a backlog of 10,000 events", "Watermill's forwarder with its queue; it reads batches of 1,000 and publishes one by one", "", &against{peerRelay, peerForwarder}},
	{"publish a backlog of 30,000 events of 10 KB", "the bare loop", drainLarge, nil},
	{"publish a backlog of 1,000 topics of a partition each, 64 lanes", "holdfast too: one topic of 8 partitions, 64 lanes", spreads[1].figure, nil},
	{"from COMMIT to Kafka's answer at 500 events/s, p50", "insert, commit and produce, and nothing else", latencyFigure(latencyRate, "p50"), nil},
	{"the same, p99", "the same, p99", latencyFigure(latencyRate, "p99"), nil},
	{"the same, p50, and the writer wakes the relay", "the same, p50", wokenFigure(latencyRate, "p50"), nil},
	{"write an order and its event in a transaction", "an order and a row written by hand", producerHandwritten, nil},
	{"the same in one batch with BEGIN and COMMIT", "the order alone, in three round trips", producerOneTrip, nil},
	{"handle each event once, a transaction each", "a consumer written by hand, eight readers", consumerSingle, nil},
	{"the same, handlers share transactions (`WithGroup(1000)`)", "the same consumer, a transaction each", consumerShared, nil},
	{"handle each of 10,000 events once, a transaction each", "Watermill's router with a table of ids", "", &against{peerInbox, peerRouter}},
	{"handle each of 10,000 events once, a transaction each", "River, each job completed in its transaction; no Kafka", "", &against{peerInbox, peerRiver}},
	{"answer requests with an Idempotency-Key, without a network", "a table of keys written by hand", requestByHand, nil},
}

// pagePlots are the curves of the page.
var pagePlots = []string{latencyByRate, drainByBacklog, rateByConsumers}

// pageSizes are those of a page.
var pageSizes = func() sizes {
	s := quickSizes
	s.rounds = 3
	s.drain, s.handwritten = 300_000, 40_000
	s.scale = 100_000
	s.consume = 32_000
	s.latency = 12 * time.Second
	return s
}()

// peerEvents is how many events peers publish and handle.
const peerEvents = 10_000

// names matches these names and no others.
func names(of []string) *regexp.Regexp {
	quoted := make([]string, len(of))
	for i, name := range of {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return regexp.MustCompile("^(" + strings.Join(quoted, "|") + ")$")
}

// measurePage measures the page, writes it, and prints it.
func measurePage(ctx context.Context, o options, r *report, out io.Writer) (err error) {
	began, loads := time.Now(), watchLoad()
	rounds := pageSizes.rounds
	if o.rounds > 0 {
		rounds = o.rounds
	}
	var figures []string
	for _, row := range pageRows {
		if row.figure != "" {
			figures = append(figures, row.figure)
		}
	}
	folder := strings.TrimSuffix(o.page, ".md")
	o.only, o.plot, o.quick, o.rounds = names(figures), folder, true, rounds
	e, err := newEnv(ctx, o, r)
	if err != nil {
		return err
	}
	defer e.stop()
	defer func() {
		if err != nil { // what was measured so far
			err = errors.Join(err, r.print(out))
		}
	}()
	e.sizes = pageSizes
	e.rounds = rounds
	if err := e.warmUp(ctx, r); err != nil {
		return err
	}
	if err := measure(ctx, e, r); err != nil {
		return err
	}
	peers, err := e.measurePeers(ctx, r)
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	e.options.only, e.growth.rounds, e.growth.past = names(pagePlots), 1, nil
	if err := grow(ctx, e, r); err != nil {
		return err
	}
	low, high := loads()
	page, err := pageOf(r.figures, r.curves, pageFacts{
		machine: e.machine(low, high),
		peers:   peers,
		date:    began,
		took:    time.Since(began),
		command: command(os.Args[1:]),
		rounds:  rounds,
		folder:  filepath.Base(folder),
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.page, page, 0o644); err != nil {
		return err
	}
	if _, err := out.Write(page); err != nil {
		return err
	}
	for _, n := range r.notes {
		fmt.Fprintf(out, "\n%s\n", n)
	}
	return nil
}

// measurePeers runs rig/bench/peers, a module of its own, on the same servers, and adds its figures. It returns the peers with their versions.
func (e *env) measurePeers(ctx context.Context, r *report) ([]string, error) {
	r.progress("peers: %d rounds of %d events", e.rounds, peerEvents)
	var who []string
	for _, row := range pageRows {
		if row.peer != nil {
			who = append(who, row.peer.ours, row.peer.peer)
		}
	}
	folder, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	program := filepath.Join(folder, "peers")
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/holdfast-go/holdfast/rig/bench/peers").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build them: %w: %s", err, text)
	}
	built, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	versions := versionsOf(built.Deps)
	cmd := exec.CommandContext(ctx, program, "-json", "-rounds", fmt.Sprint(e.rounds), "-events", fmt.Sprint(peerEvents), "-only", names(who).String())
	cmd.Env = append(os.Environ(), "DATABASE_URL="+e.dsn, "KAFKA_BROKERS="+strings.Join(e.kafka.Brokers, ","))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it drops what it has made
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return versions, addPeers(r, text)
}

// versionsOf are the peers among modules, with their versions.
func versionsOf(modules []*debug.Module) (peers []string) {
	for _, p := range []struct{ name, module string }{
		{"Watermill", "github.com/ThreeDotsLabs/watermill"},
		{"watermill-sql", "github.com/ThreeDotsLabs/watermill-sql/v4"},
		{"watermill-kafka", "github.com/ThreeDotsLabs/watermill-kafka/v3"},
		{"River", "github.com/riverqueue/river"},
	} {
		for _, m := range modules {
			if m.Path == p.module {
				peers = append(peers, p.name+" "+strings.TrimPrefix(m.Version, "v"))
			}
		}
	}
	return peers
}

// addPeers adds the figures of an output of rig/bench/peers.
func addPeers(r *report, text []byte) error {
	var results []struct {
		Name      string    `json:"name"`
		PerSecond []float64 `json:"per_second"`
	}
	if err := json.Unmarshal(text, &results); err != nil {
		return fmt.Errorf("read what they print: %w", err)
	}
	speeds := map[string][]float64{}
	for _, result := range results {
		speeds[result.Name] = result.PerSecond
	}
	for _, row := range pageRows {
		if row.peer == nil {
			continue
		}
		for _, name := range []string{row.peer.ours, row.peer.peer} {
			if len(speeds[name]) == 0 {
				return fmt.Errorf("there is no figure of %q", name)
			}
		}
		r.ratio(row.peer.name(), speeds[row.peer.ours], speeds[row.peer.peer], "events/s", noGoal)
	}
	return nil
}

func (a against) name() string { return a.ours + " against " + a.peer }

// pageFacts are what a page says of its run.
type pageFacts struct {
	machine string
	peers   []string // with their versions
	date    time.Time
	took    time.Duration
	command string
	rounds  int
	folder  string // of the plots
}

// pageOf is the page.
func pageOf(figures []figure, curves []curve, facts pageFacts) ([]byte, error) {
	var page bytes.Buffer
	fmt.Fprintf(&page, "# Benchmark\n\n")
	fmt.Fprintf(&page, "How holdfast compares with what you might use or write instead: on the same servers, in turns, %d rounds or more each. [Performance](performance.md)\n", facts.rounds)
	fmt.Fprintf(&page, "has more figures, and explains them. `%s` measured this page and drew its plots, on %s, in %d minutes.\n\n", facts.command, facts.date.UTC().Format("2 January 2006"), int(facts.took.Round(time.Minute).Minutes()))
	fmt.Fprintf(&page, "- The machine: %s; %s.\n", facts.machine, runtime.Version())
	fmt.Fprintf(&page, "- The peers: %s.\n", strings.Join(facts.peers, ", "))
	fmt.Fprintf(&page, "- Payloads have 300 bytes where nothing else is said. Handlers do nothing. The start of a relay counts, that of a consumer does not.\n")
	fmt.Fprintf(&page, "- A ratio is the median of the rounds' ratios, with the lowest and the highest in parentheses. The figures beside it are medians of their own, so\n  dividing them gives another number. For latencies, lower is better.\n")
	fmt.Fprintf(&page, "- A goal is what the project has set itself.\n\n")
	fmt.Fprintf(&page, "| what | holdfast | beside | its figure | ratio | goal |\n|---|---|---|---|---|---|\n")
	for _, row := range pageRows {
		name := row.figure
		if row.peer != nil {
			name = row.peer.name()
		}
		i := slices.IndexFunc(figures, func(f figure) bool { return f.Name == name && f.spread != nil })
		if i < 0 {
			return nil, fmt.Errorf("the page has a row for %q, which was not measured", name)
		}
		f := figures[i]
		goal := strings.NewReplacer(">=", "≥", "<=", "≤").Replace(f.Goal)
		if !f.OK {
			goal += ", missed"
		}
		fmt.Fprintf(&page, "| %s | %s %s | %s | %s %s | %s x (%s to %s) | %s |\n", row.what, number(f.Ours), f.Of, row.beside, number(f.Beside), f.Of, number(f.Value), number(f.Low), number(f.High), goal)
	}
	fmt.Fprintf(&page, "\n## How cost grows\n\nOne run for each point, with smaller samples than [the curves of Performance](performance.md#how-cost-grows).\n")
	for _, c := range curves {
		fmt.Fprintf(&page, "\n![%s](%s/%s.svg)\n", c.Title, facts.folder, c.Name)
	}
	return page.Bytes(), nil
}
