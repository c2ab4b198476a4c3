package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestGrowth_ALongRunAddsItsSizesToItselfAlone(t *testing.T) {
	long := options{long: true, quick: true}.growthSizes()
	if want := []int{1e3, 1e4, 1e5, large}; !slices.Equal(long.backlogs, want) || !slices.Equal(long.rows, want) {
		t.Errorf("it measures %v events and %v rows", long.backlogs, long.rows)
	}
	for _, o := range []options{{}, {quick: true}} {
		if s := o.growthSizes(); slices.Contains(s.backlogs, large) || slices.Contains(s.rows, large) {
			t.Errorf("%+v measures what only -long does: %v, %v", o, s.backlogs, s.rows)
		}
	}
	if s := (options{rounds: 7}).growthSizes(); s.rounds != 7 || fullGrowth.rounds == 7 {
		t.Errorf("-rounds 7 makes %d, and others %d", s.rounds, fullGrowth.rounds)
	}
}

func TestGrowth_EveryCurveIsContinuedPastItsSizes(t *testing.T) {
	for name, s := range map[string]growthSizes{"": fullGrowth, "-quick": quickGrowth} {
		for _, sizes := range [][]int{s.backlogs, s.rows, s.stored, s.keys, s.lanes, s.payloads, s.rates, s.consumers} {
			if !slices.IsSorted(sizes) || len(sizes) < 3 {
				t.Errorf("%s: %v is not in order, or too few", name, sizes)
			}
		}
		for _, n := range s.consumers {
			if partitions%n != 0 {
				t.Errorf("%s: %d consumers cannot share %d partitions evenly: they would wait for ever to start", name, n, partitions)
			}
		}
	}
}

func TestGrowth_CPUTimeThatIsNotKnownIsNotDrawn(t *testing.T) {
	c := newDrainCurves([3]string{"rate", "cpu", "memory"}, "x", axis{}, "")
	c.add(1, drainPoint{rate: 5, peak: 7})
	var names []string
	for _, one := range c.all() {
		names = append(names, one.Name)
	}
	if !slices.Equal(names, []string{"rate", "memory"}) {
		t.Errorf("the curves are %q", names)
	}
}

func TestGrowth_ACurveThatWasWrittenIsDrawnAgain(t *testing.T) {
	dir := t.TempDir()
	c := rising()
	c.extend(fixedAndEach, 1e7)
	if err := c.write(dir); err != nil {
		t.Fatal(err)
	}
	r := newReport(true)
	if err := redraw(dir, r); err != nil {
		t.Fatal(err)
	}
	if len(r.curves) != 1 || r.curves[0].Name != c.Name || len(r.curves[0].Series[0].Points) != 4 {
		t.Errorf("it has read %+v", r.curves)
	}
	if found, err := filepath.Glob(filepath.Join(dir, c.Name+".*")); err != nil || len(found) != 2 {
		t.Errorf("the folder has %q, %v", found, err)
	}
	if err := redraw(t.TempDir(), newReport(true)); err == nil {
		t.Error("an empty folder was drawn")
	}
}

func TestGrowth_TheLoadIsNotedFromLowToHigh(t *testing.T) {
	if low, high := watchLoad()(); low < 0 || high < low || load() != "" && high == 0 {
		t.Errorf("from %v to %v", low, high)
	}
	e := &env{postgres: "PostgreSQL 18, fsync on", broker: "Kafka: an in-process fake"}
	if text := e.machine(1.25, 40); !strings.Contains(text, "load 1.2 to 40.0; PostgreSQL 18, fsync on; Kafka: an in-process fake") {
		t.Errorf("the caption says %q", text)
	}
	if text := e.machine(0, 0); strings.Contains(text, "load") {
		t.Errorf("the caption says %q, and the load is not known", text)
	}
}

func TestGrowth_TheCaptionHasACommandThatAShellTakes(t *testing.T) {
	if got := command([]string{"-plot", "docs/performance", "-only", "^drain|cpu"}); got != "go run ./rig/bench -plot docs/performance -only '^drain|cpu'" {
		t.Error(got)
	}
}

func TestGrowth_OnlyClaimsThatFindEventsAreTimed(t *testing.T) {
	var statements timedStatements
	query := func(sql string, rows string) {
		var batch pgx.Batch
		batch.Queue("select lock")
		batch.Queue(sql)
		ctx := statements.TraceBatchStart(t.Context(), nil, pgx.TraceBatchStartData{Batch: &batch})
		time.Sleep(time.Millisecond) // sleep: what is timed takes time
		statements.TraceBatchQuery(ctx, nil, pgx.TraceBatchQueryData{SQL: sql, CommandTag: pgconn.NewCommandTag("UPDATE " + rows)})
		statements.TraceBatchEnd(ctx, nil, pgx.TraceBatchEndData{})
	}
	query("-- inbox.claim\nwith head", "8")
	query("-- inbox.claim\nwith head", "0")
	query("-- inbox.claims_of_others\nwith head", "3")
	query("-- inbox.take\ndelete", "1")
	if spans := statements.of["inbox.claim"]; len(spans) != 1 || spans[0] < time.Millisecond {
		t.Errorf("timed %v, want one of a millisecond or more", spans)
	}
}

// The names that the timer knows are those that an inbox uses.
func TestGrowth_ClaimsOfAnInboxAreTimed(t *testing.T) {
	r := newReport(true)
	e := &env{growth: growthSizes{claimed: 50}}
	defer e.stop()
	if err := e.startPostgres(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	spans, err := e.claimsOf(t.Context(), r, 200, 0)
	if err != nil || len(spans) == 0 {
		t.Errorf("timed %v, %v", spans, err)
	}
}
