package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

func TestReading_AReaderGoesFromStateToState(t *testing.T) {
	t.Parallel()
	open := cursor{done: "5:5:", upto: "9:9:", pos: 7}
	closed := cursor{done: "5:5:"}
	for _, c := range []struct {
		name string
		from reading
		does func(reading) reading
		want readState
		last bool // the page that was read is the last one, if it was not full
	}{
		{"a saved cursor without a window", startReading(closed), nil, lagging, true},
		{"a saved cursor in a window", startReading(open), nil, inWindow, false},
		{"lagging: a cut", startReading(closed), func(r reading) reading { return r.toCut(cut{upto: "9:9:"}) }, inWindow, false},
		{"lagging, no cut: a page that is not full", startReading(closed), func(r reading) reading { return r.after("9:9:", false, 8) }, live, true},
		{"lagging, no cut: a full page", startReading(closed), func(r reading) reading { return r.after("9:9:", true, 8) }, inWindow, false},
		{"live: a page that is not full", reading{state: live, cursor: closed}, func(r reading) reading { return r.after("9:9:", false, 8) }, live, true},
		{"live: a full page, and no cut", reading{state: live, cursor: closed}, func(r reading) reading { return r.after("9:9:", true, 8) }, inWindow, false},
		{"live: a short pause", reading{state: live, cursor: closed}, func(r reading) reading { return r.resume(backlogAfter) }, live, true},
		{"live: a long pause", reading{state: live, cursor: closed}, func(r reading) reading { return r.resume(backlogAfter + 1) }, lagging, true},
		{"in a window: a long pause", startReading(open), func(r reading) reading { return r.resume(time.Hour) }, inWindow, false},
		{"in a window: a full page", startReading(open), func(r reading) reading { return r.after("9:9:", true, 8) }, inWindow, false},
		{"in a window: a page that is not full", startReading(open), func(r reading) reading { return r.after("9:9:", false, 8) }, lagging, true},
		{"in a window: its transactions are known", startReading(open), func(r reading) reading { return r.byPlan(plan{}) }, planned, false},
		{"planned: a full page", startReading(open).byPlan(plan{}), func(r reading) reading { return r.after("9:9:", true, 8) }, planned, false},
		{"planned: a page that is not full", startReading(open).byPlan(plan{}), func(r reading) reading { return r.after("9:9:", false, 8) }, lagging, true},
	} {
		got := c.from
		if c.does != nil {
			got = c.does(got)
		}
		if got.state != c.want {
			t.Errorf("%s: %v, want %v", c.name, got.state, c.want)
		}
		if got.opens() != c.last || got.opens() != (got.state == lagging || got.state == live) {
			t.Errorf("%s: the next page opens a window: %v", c.name, got.opens())
		}
		if (got.pages != 0 && got.state != inWindow) || (len(got.plan.big)+len(got.plan.next.seqs) != 0 && got.state != planned) {
			t.Errorf("%s: %+v keeps what belongs to another state", c.name, got)
		}
	}
}

func TestReading_AWindowIsPlannedOnceAfterSomeFullPages(t *testing.T) {
	t.Parallel()
	r := reading{state: live, cursor: cursor{done: "5:5:"}}
	for page := range 10 {
		if r = r.after("9:9:", true, int64(page+1)); r.wantsPlan() != (page+1 == pagesUnplanned) {
			t.Errorf("after %d full pages it wants a plan: %v", page+1, r.wantsPlan())
		}
		if r.wantsPlan() {
			r = r.byPlan(plan{})
		}
	}
}

// A backlog without an event of the lane: many windows, each of which ends at a cut, and no event in any of them.
func TestReading_ACallOfTheReaderMakesThreeStatementsAtMost(t *testing.T) {
	t.Parallel()
	at := time.Now()
	db := simdb.New(2, func() time.Time { return at }, rand.New(rand.NewPCG(1, 1)))
	db.CutEvery = 1
	statements := 0
	conn := &simdb.Conn{DB: db, Hooks: simdb.Hooks{
		Before: func(string) error { statements++; return nil },
		After:  func(string) error { return nil }}}
	relay := newRelay(conn, nil, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, BatchSize: 3, Logger: noLog}, simStatements)
	relay.env.now = func() time.Time { return at }
	relay.env.start = func(_ context.Context, l *lane) { relay.enter(l) }
	if err := relay.maintainClaims(t.Context(), t.Context()); err != nil || len(relay.owned()) != 2 {
		t.Fatalf("%d lanes are claimed, %v", len(relay.owned()), err)
	}
	r := &relay.owned()[0].reader
	put := func(lane int, ids ...string) {
		t.Helper()
		tx := db.Begin()
		for _, id := range ids {
			tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: "k", Lane: lane})
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 200 {
		put(1, fmt.Sprint("other ", i))
	}
	put(0, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p") // planned, at pages of three
	for i := range 200 {
		put(1, fmt.Sprint("another ", i))
	}
	put(0, "last")
	var got string
	for calls := 0; ; calls++ {
		statements = 0
		p, err := r.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if statements > 3 {
			t.Fatalf("call %d made %d statements", calls, statements)
		}
		if !p.moves && !p.last {
			t.Fatalf("call %d neither read nor moved", calls)
		}
		for _, rec := range p.events {
			got += rec.ID
		}
		if p.last {
			break
		}
	}
	if want := "abcdefghijklmnoplast"; got != want {
		t.Errorf("it read %q, want %q", got, want)
	}
}
