package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

// savingRelay has lanes 0, 1, … of these tokens, which have moved to page 10 of their windows. lost gets why each was lost.
func savingRelay(s *script, log *logtest.Log, tokens ...string) (r *Relay, lanes []*lane, lost map[int]error) {
	r = newRelay(s, nil, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, Logger: slog.New(slog.NewTextHandler(log, nil))}, simStatements)
	lost = map[int]error{}
	for i, token := range tokens {
		l := &lane{r: r, ownership: ownership{
			number: i,
			epoch:  int64(100 + i),
			token:  token,
			cursor: cursor{"5:5:", "8:8:", 10},
			saved:  cursor{"5:5:", "8:8:", 4},
		}}
		l.lost = func(err error) { lost[i] = err }
		lanes = append(lanes, l)
	}
	return r, lanes, lost
}

func TestSaverScript_ASaveSaysOfEachLaneWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	var log logtest.Log
	s := new(script).because("save", reply{rows: [][]any{{0, true}, {1, false}}}, reply{rows: [][]any{{0, true}, {1, false}}}, reply{rows: [][]any{{0, true}, {1, true}}},
		reply{rows: [][]any{{0, true}, {1, false}}})
	r, lanes, lost := savingRelay(s, &log, "a", "a", "a")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r.env.now = func() time.Time { now = now.Add(time.Second); return now }
	var heard []string
	r.c.Observer.OnSaved = func(lanes int, took time.Duration) { heard = append(heard, fmt.Sprint(lanes, " in ", took)) }
	if err := r.saver.save(t.Context(), lanes); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(lost[2], errLost) || len(lost) != 1 {
		t.Errorf("lost are %v, want lane 2", lost)
	}
	until := time.Date(2026, 1, 1, 0, 1, 1, 0, time.UTC) // from before the statement
	for i, want := range []struct {
		saved cursor
		until time.Time
	}{{lanes[0].cursor, until}, {cursor{"5:5:", "8:8:", 4}, time.Time{}}, {cursor{"5:5:", "8:8:", 4}, time.Time{}}} {
		if lanes[i].saved != want.saved || !lanes[i].leaseUntil.Equal(want.until) {
			t.Errorf("lane %d is saved at %v until %v, want %v until %v", i, lanes[i].saved, lanes[i].leaseUntil, want.saved, want.until)
		}
	}
	if r.saver.took != time.Second || !slices.Equal(heard, []string{"1 in 1s"}) {
		t.Errorf("it took %v, and the observer heard %q", r.saver.took, heard)
	}
	const said = "lane not saved: another transaction has its row locked"
	if got := log.Take(); strings.Count(got, said) != 1 || !strings.Contains(got, "lane=1") {
		t.Errorf("it logged %q, want once that lane 1 is locked", got)
	}
	for i, want := range []int{0, 0, 1} { // still locked, saved, locked anew
		if err := r.saver.save(t.Context(), lanes[:2]); err != nil {
			t.Fatal(err)
		}
		if got := log.Take(); strings.Count(got, said) != want {
			t.Errorf("save %d logged %q, want %d lines", i+2, got, want)
		}
	}
	if len(lost) != 1 || lanes[1].saved != lanes[1].cursor {
		t.Errorf("lost are %v, and lane 1 is saved at %v", lost, lanes[1].saved)
	}
}

func TestSaverScript_ASaveSendsWhatMovedAndItsNumber(t *testing.T) {
	t.Parallel()
	s := new(script)
	r, lanes, _ := savingRelay(s, &logtest.Log{}, "b", "a", "b")
	lanes[2].cursor = cursor{done: "9:9:"}
	for i, l := range lanes {
		l.published.Store(int64(40 + i))
	}
	if err := r.saver.save(t.Context(), lanes); err != nil {
		t.Fatal(err)
	}
	_ = r.saver.save(t.Context(), lanes[:1]) // whatever became of the one before, it says the same
	if err := r.saver.save(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"save relay 1m0s [1] [101] [<nil>] [<nil>] [10] a 1 [41]",
		"save relay 1m0s [0 2] [100 102] [<nil> 9:9:] [<nil> ] [10 0] b 1 [40 42]",
		"save relay 1m0s [0] [100] [<nil>] [<nil>] [10] b 2 [40]",
	}
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("it sent (-want +got):\n%s", diff)
	}
}

func TestSaverScript_ASaveThatFailsIsSaidUnlessTheRelayStops(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		reply
		stopped, said bool
		broken        bool
	}{
		"the call fails":            {reply{err: boom}, false, true, false},
		"its rows fail":             {reply{broken: boom}, false, true, false},
		"the relay stops":           {reply{err: boom}, true, false, false},
		"it may not write the rows": {reply{err: &pgconn.PgError{Code: "42501"}}, false, true, true},
		"nothing fails":             {reply{rows: [][]any{{0, true}}}, false, false, false},
	} {
		var log logtest.Log
		r, lanes, lost := savingRelay(new(script).because("save", c.reply), &log, "a")
		r.env.lacking = func(context.Context) ([]string, error) { return []string{"update on lane"}, nil }
		ctx, cancel := context.WithCancel(t.Context())
		if c.stopped {
			cancel()
		}
		r.saver.try(ctx, lanes)
		cancel()
		if said := strings.Contains(log.String(), "cursors not saved, will retry"); said != c.said {
			t.Errorf("%s: it logged %q", name, log.String())
		}
		if broken := r.whyBroken() != nil; broken != c.broken {
			t.Errorf("%s: the relay gives up: %v", name, r.whyBroken())
		}
		if len(lost) > 0 {
			t.Errorf("%s: lost are %v", name, lost)
		}
	}
	r, lanes, _ := savingRelay(new(script).because("save", reply{err: boom}), &logtest.Log{}, "a")
	if err := r.saver.save(t.Context(), lanes); !errors.Is(err, boom) || err.Error() != "save cursors: boom" {
		t.Errorf("it says %v", err)
	}
}

func TestSaverScript_ASaverRenewsLeasesFiveTimesInEach(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took  time.Duration
		saves int
	}{"at once": {0, 9}, "slowly": {time.Second, 4}} { // every 2 s and 50 ms; every 2 s and 1 s and 2 s
		synctest.Test(t, func(t *testing.T) {
			s := new(script)
			r, lanes, _ := savingRelay(s, &logtest.Log{}, "a")
			r.c.Lease = 10 * time.Second
			r.enter(lanes[0])
			r.c.Observer.OnSaved = func(int, time.Duration) { time.Sleep(c.took) } // sleep: of the bubble's clock
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			r.saver.run(ctx)
			if len(s.asked) != c.saves {
				t.Errorf("%s: %d saves in 20 s, want %d", name, len(s.asked), c.saves)
			}
		})
	}
}
