package relay

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// parkedUnderWay begins a call of so many events, the first of partition 0, and holds the partition: the lane parks its events beside the call.
func (tw *twelve) parkedUnderWay(t *testing.T, n int) (d *destination, batch []*pending, events []holdfast.Event) {
	t.Helper()
	d = tw.l.destinationOf(&logEvent{Event: holdfast.Event{Topic: "orders", Key: "0"}})
	batch = d.take(n, callBytes)
	events = eventsOf(batch)
	d.begin(batch, nil, time.Now(), time.Second)
	tw.l.calls++
	tw.l.holdPartition(d, 0, time.Now())
	if err := tw.l.flush(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	return d, batch, events
}

// Of a call that is under way the first event may be parked and the second not yet. If the first is refused then, the second was not
// sent, and has its error: it follows, and has spent no attempt.
func TestHalfParked_WhatFollowsARefusedEventThatWasParkedSpendsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwelve(t, &answering{})
		tx := s.db.Begin()
		for _, e := range []simdb.Event{{ID: "refused", Key: "0"}, {ID: "between", Key: "1"}, {ID: "follows", Key: "0"}} {
			e.Topic = "orders"
			tx.Append(0, e)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		takeAll(t, s.l)
		d, _, events := s.parkedUnderWay(t, 2)
		if n := len(s.db.Parked()); n != 1 {
			t.Fatalf("%d events are parked, want the first one", n)
		}
		refused := func() error {
			return &publish.Error{Topic: "orders", Fault: publish.FaultRecord, Err: errors.New("too large")}
		}
		if err := s.l.settle(t.Context(), answered{to: d, events: events, errs: []error{refused(), refused()}, at: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if err := work(t, s.l, func() bool { return len(s.db.Parked()) < 2 }); err != nil {
			t.Fatal(err)
		}
		for _, row := range s.db.Parked() {
			if want := map[string]int{"refused": 1, "follows": 0}[row.ID]; row.Attempts != want {
				t.Errorf("%s has spent %d attempts, want %d (why: %s)", row.ID, row.Attempts, want, row.Why)
			}
		}
	})
}

// An event that was parked while it was in a call has its share of the budget itself. If the outcomes of its call cannot be written, the
// lane ends, and gives back what is to be sent again too.
func TestHalfParked_ALaneThatEndsWithACallItCannotSettleGivesItsBudgetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwelve(t, &answering{})
		away := errors.New("connection reset")
		tx := s.db.Begin()
		for i, id := range []string{"taken", "not taken"} {
			tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: fmt.Sprint(i * partitionsOfTest)})
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		s.l.r.budget = newBudget(budgetOfTest, inMemory*usualBounds.pageBytes)
		p, err := s.l.readPage(t.Context())
		if err != nil || len(p.events) != 2 {
			t.Fatalf("a page of %d events, %v", len(p.events), err)
		}
		s.l.accept(p)
		d, batch, events := s.parkedUnderWay(t, 2)
		if n := len(s.db.Parked()); n != 2 || batch[1].kept == 0 {
			t.Fatalf("%d events are parked, want both; the second keeps %d bytes", n, batch[1].kept)
		}
		s.db.Refuse = func(string, string) error { return away }
		delete(s.l.holds, d.spot) // The partition takes events again.
		unreachable := &publish.Error{Topic: "orders", Fault: publish.FaultBroker, Err: errors.New("no broker")}
		if err := s.l.settle(t.Context(), answered{to: d, events: events, errs: []error{nil, unreachable}, at: time.Now()}); !errors.Is(err, away) {
			t.Fatalf("settle: %v", err)
		}
		s.l.giveBack()
		if !s.l.r.budget.room.TryAcquire(budgetOfTest) {
			t.Error("a part of the budget was not given back")
		}
	})
}

// An event that Postgres does not park, while it is in a call, becomes a dead letter. The answer changes nothing of that any more.
func TestHalfParked_AnAnswerForAnEventThatIsALetterChangesNothing(t *testing.T) {
	for name, answer := range map[string]error{
		"acknowledged":        nil,
		"refused":             &publish.Error{Topic: "orders", Fault: publish.FaultRecord, Err: errors.New("too large")},
		"partition no leader": &publish.Error{Topic: "orders", Fault: publish.FaultPartition, Err: errors.New("no leader")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTwelve(t, &answering{})
				s.db.Refuse = func(statement, _ string) error {
					if statement == "park" {
						return &pgconn.PgError{Code: "23514"}
					}
					return nil
				}
				tx := s.db.Begin()
				tx.Append(0, simdb.Event{ID: "bad", Topic: "orders", Key: "0"})
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				takeAll(t, s.l)
				d, _, events := s.parkedUnderWay(t, 1)
				if err := s.l.settle(t.Context(), answered{to: d, events: events, errs: []error{answer}, at: time.Now()}); err != nil {
					t.Fatal(err)
				}
				if d.route.queued != 0 || len(d.queue) > 0 || s.l.queues.enters != 0 || len(s.l.queues.entering) > 0 {
					t.Errorf("%d are counted as queued, %d are to be sent again, %d leave, and %d keys wait", d.route.queued, len(d.queue), s.l.queues.enters, len(s.l.queues.entering))
				}
			})
		})
	}
}
