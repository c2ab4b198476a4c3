package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/dbtwin"
)

// What the simulation found, step by step: seeds move whenever the simulation changes.

// A COMMIT parks an event and moves the cursor, and its answer is lost. Until the lane is dropped the saver must not write
// the cursor in the lane's memory, which is the older one. (Seed 8775567348376154305.)
func TestTheSaverDoesNotSaveALaneWhoseCommitWasNotAnswered(t *testing.T) {
	at := time.Now()
	db := dbtwin.New(1, func() time.Time { return at }, rand.New(rand.NewPCG(1, 1)))
	cut := false
	conn := &dbtwin.Conn{DB: db, Hooks: dbtwin.Hooks{
		Before: func(string) error { return nil },
		After: func(name string) error {
			if cut && name == "commit" {
				return errors.New("the connection was cut")
			}
			return nil
		}}}
	r := newRelay(conn, nil, Config{Name: "relay", Schema: "holdfast", Lease: time.Minute, BatchSize: 1, MaxParked: 10, HoldKey: true, Logger: noLog}, simStatements)
	r.outside.now = func() time.Time { return at }
	r.outside.start = func(_ context.Context, l *lane) { r.enter(l) }
	if err := r.tendClaims(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	l := r.owned()[0]
	tx := db.Begin()
	for _, id := range []string{"e1", "e2", "e3"} { // one window of three pages
		tx.Append(0, dbtwin.Event{ID: id, Topic: "orders", Key: "k"})
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	next := func() page {
		p, err := l.reader.next(t.Context())
		if err != nil || len(p.records) != 1 {
			t.Fatalf("%d records, %v", len(p.records), err)
		}
		return p
	}
	if _, err := l.settle(t.Context(), next(), []fate{published}, make([]answer, 1)); err != nil {
		t.Fatal(err)
	}
	if err := r.saver.save(t.Context(), r.owned()); err != nil {
		t.Fatal(err)
	}
	p := next()
	cut = true
	refused := &PublishError{Topic: "orders", Fault: FaultRecord, Err: errors.New("too large")}
	if _, err := l.settle(t.Context(), p, []fate{recordRefused}, []answer{{fault: FaultRecord, err: refused}}); err == nil {
		t.Fatal("the answer of the COMMIT was not lost")
	}
	cut = false
	behind := db.Lane(0)
	if behind.Pos != p.after.pos || len(db.Parked()) != 1 {
		t.Fatalf("the COMMIT did nothing: %+v, %d parked", behind, len(db.Parked()))
	}
	if err := r.saver.save(t.Context(), r.owned()); err != nil {
		t.Fatal(err)
	}
	if now := db.Lane(0); now.Pos != behind.Pos {
		t.Errorf("the cursor went back from %d to %d: the event is published and parked again", behind.Pos, now.Pos)
	}
}
