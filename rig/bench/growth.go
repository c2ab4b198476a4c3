package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// This file measures how costs grow (-plot). Each growth is a few curves that are measured together.

// growth is what is measured together.
type growth struct {
	curves  []string // names
	measure func(context.Context, *env, *report) ([]curve, error)
}

const (
	drainByBacklog   = "drain-by-backlog"
	drainByKeys      = "drain-by-keys"
	drainByLanes     = "drain-by-lanes"
	drainByPayload   = "drain-by-payload"
	cpuByBacklog     = "cpu-by-backlog"
	cpuByKeys        = "cpu-by-keys"
	cpuByLanes       = "cpu-by-lanes"
	cpuByPayload     = "cpu-by-payload"
	memoryByBacklog  = "memory-by-backlog"
	memoryByPayload  = "memory-by-payload"
	latencyByRate    = "latency-by-rate"
	latencyByPayload = "latency-by-payload"
	claimByStored    = "claim-by-stored"
	retentionByRows  = "retention-by-rows"
	rateByConsumers  = "rate-by-consumers"
	cpuByConsumers   = "cpu-by-consumers"
)

// growths are in the order of their time: what takes long comes last, so that an interrupted run has the others.
var growths = []growth{
	{[]string{latencyByRate}, growLatencyByRate},
	{[]string{latencyByPayload}, growLatencyByPayload},
	{[]string{rateByConsumers, cpuByConsumers}, growByConsumers},
	{[]string{drainByLanes, cpuByLanes}, growByLanes},
	{[]string{drainByKeys, cpuByKeys}, growByKeys},
	{[]string{drainByPayload, cpuByPayload, memoryByPayload}, growByPayload},
	{[]string{claimByStored}, growClaims},
	{[]string{retentionByRows}, growRetention},
	{[]string{drainByBacklog, cpuByBacklog, memoryByBacklog}, growByBacklog},
}

// growthSizes is how much a run with -plot measures.
type growthSizes struct {
	rounds     int   // of a drain
	backlogs   []int // events
	spread     int   // events of a backlog of many keys or lanes
	keys       []int
	lanes      []int
	payloads   []int // bytes
	payloadSum int   // bytes of a backlog of events of one size, which has no more than spread events
	rates      []int // events a second
	rate       int   // where the rate is not what grows
	latency    time.Duration
	stored     []int // events that wait in the inbox
	claimed    int   // of them are handled while claims are timed
	rows       []int // of the inbox
	turns      int   // of retention
	consumers  []int
	consume    int // events
	past       []float64
}

var (
	fullGrowth = growthSizes{
		rounds:     2,
		backlogs:   []int{1e4, 1e5, 1e6},
		spread:     200_000,
		keys:       []int{1, 100, 1e4, 1e6},
		lanes:      []int{1, 8, 64},
		payloads:   []int{300, 3_000, 30_000, 100_000},
		payloadSum: 100_000_000,
		rates:      []int{100, 500, 1000, 2000, 5000},
		rate:       200,
		latency:    8 * time.Second,
		stored:     []int{1e3, 1e4, 1e5, 1e6},
		claimed:    2000,
		rows:       []int{1e4, 1e5, 1e6},
		turns:      4,
		consumers:  []int{1, 2, 4, 8},
		consume:    160_000,
	}
	quickGrowth = growthSizes{
		rounds:     1,
		backlogs:   []int{1e3, 1e4, 1e5},
		spread:     40_000,
		keys:       []int{1, 100, 1e4},
		lanes:      []int{1, 8, 64},
		payloads:   []int{300, 3_000, 30_000},
		payloadSum: 15_000_000,
		rates:      []int{100, 500, 1000},
		rate:       200,
		latency:    3 * time.Second,
		stored:     []int{1e3, 1e4, 1e5},
		claimed:    500,
		rows:       []int{1e3, 1e4, 1e5},
		turns:      3,
		consumers:  []int{1, 2, 4},
		consume:    24_000,
	}
)

// large is what -long adds to backlogs and rows.
const large = 10_000_000

// past are the points that arithmetic adds, where they lie past what was measured.
var past = []float64{1e7, 1e8}

func (o options) growthSizes() growthSizes {
	s := fullGrowth
	if o.quick {
		s = quickGrowth
	}
	s.past = past
	if o.rounds > 0 {
		s.rounds = o.rounds
	}
	if o.long {
		s.backlogs, s.rows = append(s.backlogs[:len(s.backlogs):len(s.backlogs)], large), append(s.rows[:len(s.rows):len(s.rows)], large)
	}
	return s
}

// grow measures the curves that -only selects. Each is written as soon as it is measured.
func grow(ctx context.Context, e *env, r *report) error {
	e.latency = e.growth.latency
	if err := os.MkdirAll(e.options.plot, 0o755); err != nil {
		return fmt.Errorf("make the folder of the plots: %w", err)
	}
	if err := e.warmUp(ctx, r); err != nil {
		return err
	}
	for _, g := range growths {
		if !selected(e.options.only, g.curves) {
			continue
		}
		loads := watchLoad()
		curves, err := g.measure(ctx, e, r)
		low, high := loads()
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(g.curves, ", "), err)
		}
		for _, c := range curves {
			if !selected(e.options.only, []string{c.Name}) {
				continue
			}
			c.Caption = append(c.Caption, e.machine(low, high), fmt.Sprintf("%s, %s", time.Now().UTC().Format("2 January 2006"), command(os.Args[1:])))
			if err := c.write(e.options.plot); err != nil {
				return err
			}
			r.curves = append(r.curves, c)
		}
	}
	return nil
}

// warmUp drains a small backlog: a broker that has just started is slow until it has compiled its paths.
func (e *env) warmUp(ctx context.Context, r *report) error {
	if _, err := e.drained(ctx, r, backlogOf{events: 20_000}, 1); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	return nil
}

// machine is what a figure depends on besides the code.
func (e *env) machine(low, high float64) string {
	text := fmt.Sprintf("%s/%s, %d cores shared with both servers", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if high > 0 {
		text += fmt.Sprintf(", load %.1f to %.1f", low, high)
	}
	return text + "; " + e.postgres + "; " + e.broker
}

// command is how this run was started, as a shell takes it.
func command(args []string) string {
	text := "go run ./rig/bench"
	for _, arg := range args {
		if strings.ContainsFunc(arg, func(c rune) bool {
			return !strings.ContainsRune("./-_=:,", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c)
		}) {
			arg = "'" + arg + "'"
		}
		text += " " + arg
	}
	return text
}

// watchLoad notes the lowest and the highest load until it is called again; 0 where the system does not say.
func watchLoad() (done func() (low, high float64)) {
	stop, result := make(chan struct{}), make(chan [2]float64)
	go func() {
		var seen []float64
		for {
			if now, err := strconv.ParseFloat(strings.TrimPrefix(load(), "  load "), 64); err == nil {
				seen = append(seen, now)
			}
			select {
			case <-time.After(2 * time.Second):
			case <-stop:
				if len(seen) == 0 {
					seen = []float64{0}
				}
				low, high := bounds(seen)
				result <- [2]float64{low, high}
				return
			}
		}
	}()
	return func() (low, high float64) {
		close(stop)
		both := <-result
		return both[0], both[1]
	}
}

// write keeps a curve's numbers, and draws them.
func (c curve) write(dir string) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", c.Name, err)
	}
	drawn, err := c.svg()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, c.Name)
	if err := os.WriteFile(path+".json", append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", c.Name, err)
	}
	if err := os.WriteFile(path+".svg", drawn, 0o644); err != nil {
		return fmt.Errorf("draw %s: %w", c.Name, err)
	}
	return nil
}

// curvesIn reads the curves that earlier runs have written.
func curvesIn(dir string) (curves []curve, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("look for curves: %w", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read a curve: %w", err)
		}
		var c curve
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, fmt.Errorf("read the curve %s: %w", name, err)
		}
		curves = append(curves, c)
	}
	return curves, nil
}

// redraw draws the curves of earlier runs again.
func redraw(dir string, r *report) error {
	curves, err := curvesIn(dir)
	if err != nil {
		return err
	}
	if len(curves) == 0 {
		return fmt.Errorf("redraw: there is no curve in %s", dir)
	}
	for _, c := range curves {
		if err := c.write(dir); err != nil {
			return err
		}
	}
	r.curves = curves
	return nil
}
