package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// What the simulation found, step by step: seeds move whenever the simulation changes.

// A COMMIT parks an event and moves the cursor, and its answer is lost. Until the lane is dropped the saver must not write
// the cursor in the lane's memory, which is the older one. (Seed 8775567348376154305.)
func TestSimFound_TheSaverDoesNotSaveALaneWhoseCommitWasNotAnswered(t *testing.T) {
	at := time.Now()
	db := simdb.New(1, func() time.Time { return at }, rand.New(rand.NewPCG(1, 1)))
	cut := false
	conn := &simdb.Conn{DB: db, Hooks: simdb.Hooks{
		Before: func(string) error { return nil },
		After: func(name string) error {
			if cut && name == "commit" {
				return errors.New("the connection was cut")
			}
			return nil
		}}}
	r := newRelay(conn, nil, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, BatchSize: 1, HoldKey: true, Logger: noLog}, simStatements)
	r.env.now = func() time.Time { return at }
	r.env.start = func(_ context.Context, l *lane) { r.enter(l) }
	if err := r.maintainClaims(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	l := r.owned()[0]
	tx := db.Begin()
	for _, id := range []string{"e1", "e2", "e3"} { // one window of three pages
		tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: "k"})
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	next := func() page {
		p, err := l.reader.next(t.Context())
		if err != nil || len(p.events) != 1 {
			t.Fatalf("%d events, %v", len(p.events), err)
		}
		return p
	}
	broker := &answering{}
	r.publisher = broker
	send := func(p page) error {
		l.accept(p)
		return work(t, l, func() bool { return len(l.tracker.pages) > 0 })
	}
	if err := send(next()); err != nil {
		t.Fatal(err)
	}
	if err := r.saver.save(t.Context(), r.owned()); err != nil {
		t.Fatal(err)
	}
	p := next()
	cut = true
	broker.set(func(e holdfast.Event) error {
		return &publish.Error{Topic: "orders", Fault: publish.FaultRecord, Err: errors.New("too large")}
	})
	if err := send(p); err == nil {
		t.Fatal("the answer of the COMMIT was not lost")
	}
	cut = false
	before := db.Lane(0)
	if before.Pos != p.after.pos || len(db.Parked()) != 1 {
		t.Fatalf("the COMMIT did nothing: %+v, %d parked", before, len(db.Parked()))
	}
	if err := r.saver.save(t.Context(), r.owned()); err != nil {
		t.Fatal(err)
	}
	if now := db.Lane(0); now.Pos != before.Pos {
		t.Errorf("the cursor went back from %d to %d: the event is published and parked again", before.Pos, now.Pos)
	}
}

// The poller has asked for a lane, and before the answer comes the lane is dropped, claimed again, and has read everything.
// What the answer says is of the lane that was: the one that is must be asked for again, or nobody ever wakes it.
func TestSimFound_ALateAnswerToAProbeDoesNotMakeTheNextOwnerDormant(t *testing.T) {
	at := time.Now()
	db := simdb.New(1, func() time.Time { return at }, rand.New(rand.NewPCG(1, 1)))
	var meanwhile func()
	conn := &simdb.Conn{DB: db, Hooks: simdb.Hooks{
		Before: func(string) error { return nil },
		After: func(name string) error {
			if do := meanwhile; name == "probe" && do != nil {
				meanwhile = nil
				do()
			}
			return nil
		}}}
	r := newRelay(conn, nil, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, BatchSize: 10, Logger: noLog}, simStatements)
	r.env.now = func() time.Time { return at }
	r.env.start = func(_ context.Context, l *lane) { r.enter(l) }
	claim := func() *lane {
		t.Helper()
		if err := r.maintainClaims(t.Context(), t.Context()); err != nil || len(r.owned()) != 1 {
			t.Fatalf("%d lanes are claimed, %v", len(r.owned()), err)
		}
		return r.owned()[0]
	}
	readAll := func(l *lane) {
		t.Helper()
		for {
			p, err := l.reader.next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if p.last {
				r.poller.idle(l, p.after.done)
				return
			}
		}
	}
	write := func(id string) {
		t.Helper()
		tx := db.Begin()
		tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: "k"})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	look := func(want bool) {
		t.Helper()
		if found, err := r.poller.look(t.Context(), true); err != nil || found != want {
			t.Fatalf("something was found: %v, %v; want %v", found, err, want)
		}
	}

	first := claim()
	readAll(first)
	look(false)
	write("e1")
	var second *lane
	meanwhile = func() {
		r.end(t.Context(), first, errors.New("a task failed"))
		second = claim()
		readAll(second)
	}
	look(true) // for the lane that was
	if second == nil || second == first {
		t.Fatal("the lane was not claimed again: the test shows nothing")
	}
	write("e2")
	look(true)
	select {
	case <-second.wake:
	default:
		t.Error("the lane was not woken")
	}
	if n := len(r.poller.dones) + len(r.poller.missed); n != 0 {
		t.Errorf("the poller keeps %d lanes that are awake, or are no more", n)
	}
}

// While a transaction of one lane is open its row is locked. The saves of all others, and with them their leases, must not wait
// for it; and the lane itself is not lost because a save leaves it out.
func TestSimFound_ASaveLeavesOutALaneWhoseTransactionIsOpen(t *testing.T) {
	at := time.Now()
	db := simdb.New(2, func() time.Time { return at }, rand.New(rand.NewPCG(1, 1)))
	waited := errors.New("it waits for a row that is locked")
	conn := &simdb.Conn{DB: db, Hooks: simdb.Hooks{Before: func(string) error { return nil }, Blocked: func(string) error { return waited }}}
	r := newRelay(conn, nil, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, BatchSize: 1, Logger: noLog}, simStatements)
	r.env.now = func() time.Time { return at }
	r.env.start = func(_ context.Context, l *lane) {
		l.lost = func(err error) { t.Errorf("lane %d is lost: %v", l.number, err) }
		r.enter(l)
	}
	if err := r.maintainClaims(t.Context(), t.Context()); err != nil || len(r.owned()) != 2 {
		t.Fatalf("%d lanes, %v", len(r.owned()), err)
	}
	busy, other := r.owned()[0], r.owned()[1]
	before := busy.leaseUntil
	at = at.Add(10 * time.Second)
	err := busy.inTx(t.Context(), func(*pgx.Batch) {}, func(*pgx.Batch) {
		if err := r.saver.save(t.Context(), r.owned()); err != nil {
			t.Errorf("a save beside the transaction: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := at.Add(time.Minute); !other.leaseUntil.Equal(want) || !busy.leaseUntil.Equal(before) {
		t.Errorf("the other's lease ends %s, want %s; that of the one with the transaction %s, want %s", other.leaseUntil, want, busy.leaseUntil, before)
	}
	if !taken(r.saver.dirty) {
		t.Error("the lane that was left out is not saved before the next heartbeat")
	}
	if err := r.saver.save(t.Context(), r.owned()); err != nil {
		t.Fatal(err)
	}
	if want := at.Add(time.Minute); !busy.leaseUntil.Equal(want) {
		t.Errorf("after its transaction the lane's lease ends %s, want %s", busy.leaseUntil, want)
	}
	at = at.Add(20 * time.Second) // The saver has not met a gap between its transactions for a third of the lease.
	if err := busy.inTx(t.Context(), func(*pgx.Batch) {}); err != nil {
		t.Fatal(err)
	}
	if taken(r.saver.dirty) {
		t.Error("a lane that no save has left out has asked for one")
	}
	if want := at.Add(time.Minute); !busy.leaseUntil.Equal(want) {
		t.Errorf("after a transaction that comes late the lane's lease ends %s, want %s", busy.leaseUntil, want)
	}
}

// learning is a publisher that does not know the partitions of a topic at first.
type learning struct {
	answering
	partitions int
}

func (l *learning) Partition(holdfast.Event) (partition, partitions int) { return 0, l.partitions }

// A page waits until the events before it have left their queue, because its topic has got partitions. If the last of them leaves for
// the table of dead letters, no answer of the broker comes that would wake the lane. (Seed 8317951343059253755.)
func TestSimFound_APageGoesOnWhenWhatItWaitsForIsGivenUp(t *testing.T) {
	p := &learning{}
	db, r, l := pacedRelay(t, p, func(string) {})
	r.c.Lease, l.leaseUntil = 24*time.Hour, time.Now().Add(24*time.Hour) // nobody saves
	db.Malformed = func(id string) string {
		if id == "bad" {
			return "headers"
		}
		return ""
	}
	for _, id := range []string{"first", "bad", "last"} {
		tx := db.Begin()
		tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: id})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	next := func() page {
		p, err := l.reader.next(t.Context())
		if err != nil || len(p.events) != 1 {
			t.Fatalf("%d events, %v", len(p.events), err)
		}
		return p
	}
	l.accept(next())
	if err := work(t, l, func() bool { return len(l.tracker.pages) > 0 }); err != nil {
		t.Fatal(err)
	}
	l.accept(next())
	p.partitions = 1
	l.accept(next())
	if l.blocked == nil {
		t.Fatal("the page does not wait: the test shows nothing")
	}
	if err := l.turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.blocked != nil {
		t.Error("the page still waits, and nothing will come that it waits for")
	}
}
