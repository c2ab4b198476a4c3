package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// A cursor ahead of the server speaks of transactions that the server has not begun: a copy of the files was put back, or a
// crash undid them. Rule 1.
func TestAhead_ACursorAheadOfTheServerIsNeitherReadNorSaved(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	appendMany(t, pool, "k", 1)
	const ahead = "900000000000:900000000000:"
	now := r.at.cursor.done
	for _, c := range []struct {
		name   string
		cursor cursor
	}{
		{"done is ahead", cursor{done: ahead}},
		{"the window's end is ahead", cursor{done: now, upto: ahead}},
		{"both are ahead", cursor{done: ahead, upto: ahead}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := startReading(c.cursor)
			asks := map[string]func() error{
				"a page": func() error { _, _, _, err := r.read(t.Context(), at); return err },
			}
			if at.opens() {
				asks["the cuts of a backlog"] = func() error { _, _, err := r.readCut(t.Context(), at); return err }
			} else {
				asks["a planned page"] = func() error { _, _, _, err := r.read(t.Context(), at.byPlan(plan{})); return err }
				asks["the transactions of a window"] = func() error { _, err := r.readPlan(t.Context(), at); return err }
				asks["the places of a window"] = func() error { _, err := r.readPlaces(t.Context(), at); return err }
			}
			for what, ask := range asks {
				if err := ask(); !errors.Is(err, errAhead) {
					t.Errorf("%s: %v", what, err)
				}
			}
			pgtest.Exec(t, pool, "update holdfast.lane set owner = 'me', epoch = 1, lease_until = now() + interval '1 minute'")
			if n := pgtest.Exec(t, pool, r.sql.In(saveLanes), "me", time.Minute, []int16{0}, []int64{1}, []*string{&c.cursor.done}, []*string{&c.cursor.upto}, []int64{0}, r.token, 1, []int64{0}); n != 0 {
				t.Errorf("a save touched %d rows", n)
			}
		})
	}
	done := ahead
	if n := pgtest.Exec(t, pool, r.sql.In(probeLanes), []int16{0}, []*string{&done}, r.token); n != 0 {
		t.Errorf("a probe answered for %d lanes", n)
	}
	if n := pgtest.Exec(t, pool, r.sql.In(probeLanes), []int16{0}, []*string{&now}, r.token); n != 1 {
		t.Errorf("a probe of a cursor that is not ahead answered for %d lanes", n)
	}
}

// While a lane is idle its cursor stays what it was, with all transactions that were in flight then. Each is looked up once,
// and not for every look (8 ms a look with 300 of them, 39 ms with 1,000).
func TestAhead_AnIdleLaneLooksAnEndedTransactionUpOnce(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	flying, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer flying.Rollback(t.Context())
	pgtest.Exec(t, flying, "select pg_current_xact_id()")
	pgtest.Exec(t, pool, "select pg_current_xact_id()")
	var done string
	wait.Until(t, "nothing but that transaction is in flight", func() bool { // on the whole server, which other tests use too
		var flying int
		err := pool.QueryRow(t.Context(), "select s::text, (select count(*) from pg_snapshot_xip(s)) from pg_current_snapshot() s").Scan(&done, &flying)
		return err == nil && flying == 1
	})
	look := func() (unread bool, fresh *string) {
		t.Helper()
		var lane int
		var parked, scheduled bool
		if err := pool.QueryRow(t.Context(), r.sql.In(probeLanes), []int16{0}, []*string{&done}, r.token).Scan(&lane, &unread, &parked, &scheduled, &fresh); err != nil {
			t.Fatal(err)
		}
		return unread, fresh
	}
	if unread, _ := look(); unread {
		t.Error("while nothing has ended something is unread")
	}
	_ = flying.Rollback(t.Context())
	unread, fresh := look()
	if unread || fresh == nil {
		t.Fatalf("when a transaction has ended: unread %v, another snapshot %v", unread, fresh)
	}
	p := newPoller(nil)
	l := &lane{}
	p.idle(l, done)
	p.refresh(l, "1:1:", *fresh) // the answer to a look at another cursor
	if p.dones[l] != done {
		t.Error("the answer about another cursor replaced this one")
	}
	p.refresh(l, done, *fresh)
	if done = p.dones[l]; done != *fresh {
		t.Errorf("the lane is still looked at from %s", done)
	}
	wait.Until(t, "nothing is looked up any more", func() bool {
		unread, fresh := look()
		if unread {
			t.Error("something is unread")
		}
		if fresh != nil { // another test's transaction was in flight
			done = *fresh
		}
		return fresh == nil
	})
	appendMany(t, pool, "k", 1)
	if unread, _ := look(); !unread {
		t.Error("an event after the new snapshot is not seen")
	}
}

// Else each look passes over all rows that the transaction has written so far: 2 s with a million of them. And when it ends, the lane reads
// it by its own range of the index, in order, and sorts nothing.
func TestAhead_AnIdleLanePassesOverABigTransactionOnce(t *testing.T) {
	t.Parallel()
	pool, reader := openLog(t, 1, 10)
	r := newRelay(pool, nil, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, Logger: noLog}, reader.sql)
	var done, xid string
	if err := pool.QueryRow(t.Context(), "select pg_current_snapshot()::text").Scan(&done); err != nil {
		t.Fatal(err)
	}
	big, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer big.Rollback(t.Context())
	appendMany(t, big, "k", 30)
	if err := big.QueryRow(t.Context(), "select pg_current_xact_id()::text").Scan(&xid); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, pool, "select pg_current_xact_id()") // a later one, so that the first is in flight in the snapshots that come
	l := newLane(r, reader.token, time.Now().Add(time.Hour))
	l.reader = *reader
	l.reader.at = reading{state: live, cursor: cursor{done: done}}
	r.lanes[0] = l
	p := r.poller
	p.idle(l, done)
	if found, err := p.look(t.Context(), false); err != nil || found {
		t.Fatalf("something is found: %t, %v", found, err)
	}
	var inFlight bool
	if err := pool.QueryRow(t.Context(), "select $1::xid8 in (select pg_snapshot_xip($2::pg_snapshot))", xid, p.dones[l]).Scan(&inFlight); err != nil || !inFlight {
		t.Errorf("the next look starts at %s, and not where %s is in flight, %v", p.dones[l], xid, err)
	}
	from := p.dones[l]
	if err := big.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, err := p.look(t.Context(), false); err != nil || !found || len(l.wake) != 1 {
		t.Fatalf("the transaction is found: %t, %v", found, err)
	}
	l.reader.skip(l.emptyUpTo.Swap(nil))
	if got := l.reader.at.cursor.done; got != from {
		t.Errorf("the lane reads from %s, want %s", got, from)
	}
	events := 0
	for n := 0; ; n++ {
		page, err := l.reader.next(t.Context())
		if err != nil || n > 9 {
			t.Fatal(n, err)
		}
		if events += len(page.events); page.last {
			break
		}
	}
	if events != 30 {
		t.Errorf("%d events are read, want 30", events)
	}
}
