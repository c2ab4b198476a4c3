package inbox

import (
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// A copy of a cluster, or a script, can bring a group's offset to a topic that was recreated.
func TestMadeAgain_ATopicMadeAgainUnderAnOffsetThatSurvivedIsNoticed(t *testing.T) {
	for name, row := range map[string]struct {
		same          bool // the log is the old one, and 10 events longer
		handled       int64
		stale, reread int64
	}{
		"another log": {false, 10, 20, 20},
		"the same":    {true, 10, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			first := eventsOf("old ", 20)
			in := b.inbox()
			in.Handle("order.placed", effectOf)
			stop := b.consumeFake(in, newFakeGeneration(logOf(first...)))
			b.awaitSettled(20)
			stop()
			pgtest.Exec(t, b.db, "truncate effect")
			events := eventsOf("new ", 30)
			if row.same {
				events = append(first, events[20:]...)
			}
			g := newFakeGeneration(logOf(events...))
			g.from = 20
			again := b.inbox()
			again.Handle("order.placed", effectOf)
			stop = b.consumeFake(again, g)
			b.awaitSettled(30)
			stop()
			if n := b.count("select count(*) from effect"); n != row.handled {
				t.Errorf("%d events were handled, want %d", n, row.handled)
			}
			if n := b.count("select count(*) from holdfast.letter where reason like 'stale%'"); n != row.stale {
				t.Errorf("%d letters, want %d", n, row.stale)
			}
			if n := b.observed.reread["orders/0"]; n != row.reread {
				t.Errorf("%d offsets were said to be read again, want %d", n, row.reread)
			}
		})
	}
}

// Events without an id of their own have that of their offset: the new log's are not those that were handled.
func TestMadeAgain_TheRemedyOfATopicMadeAgainForgetsItsOffsetsToo(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	logOfNone := func(payloads ...string) []source.Record {
		log := make([]source.Record, len(payloads))
		for i, p := range payloads {
			log[i] = source.Record{Offset: int64(i), Value: []byte(p), Headers: []source.Header{{Key: wire.HeaderType, Value: []byte("order.placed")}}, Time: time.Unix(1, 0)}
		}
		return log
	}
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consumeFake(in, newFakeGeneration(logOfNone("0", "1", "2", "3", "4")))
	b.awaitSettled(5)
	stop()
	pgtest.Exec(t, b.db, "truncate effect")
	b.receive(in, event("ours", "k"), Handled) // with an id of its own: it is remembered

	again := b.inbox()
	again.Handle("order.placed", effectOf)
	b.observed.record(func() { b.observed.outcomes = map[string][]Outcome{} })
	b.consumeFake(again, newFakeGeneration(logOfNone("0", "another", "2")))
	why := fmt.Sprint(b.awaitHeld())
	statements := regexp.MustCompile(`delete from [^;]*`).FindAllString(why, -1)
	if len(statements) != 2 {
		t.Fatalf("it is held because of %s", why)
	}
	for i, statement := range statements {
		pgtest.Exec(t, b.db, statement)
		// The node runs, and continues as soon as it has no position: what it must not recognise has gone before.
		if left := b.count("select count(*) from holdfast.consumer_position where topic = 'orders'"); i == 0 && left != 1 {
			t.Errorf("the first statement deletes the position: %s", statement)
		}
	}
	for i := range 3 {
		b.awaitOutcome(kafkaID("orders", 0, int64(i)), Handled)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters", n)
	}
	b.receive(in, event("ours", "k"), Duplicate)
}

func TestMadeAgain_AnIdOfAnotherTypeIsAConflictAndNoDuplicate(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for _, eventType := range []string{"order.placed", "order.paid"} {
		in.Handle(eventType, func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return effectOf(ctx, tx, e) })
	}
	placed := event("1", "k")
	paid := placed
	paid.Type = "order.paid"
	b.receive(in, placed, Handled)
	b.receive(in, placed, Duplicate)
	b.receive(in, paid, Conflict)
	if n := b.count("select count(*) from holdfast.letter where type = 'order.paid' and reason like 'conflict%' and state = 'open'"); n != 1 {
		t.Errorf("%d letters, want one of the other type", n)
	}
	// Rows of before hashes covered the type are known as they were.
	pgtest.Exec(t, b.db, "update holdfast.inbox set hash = sha256('payload of 1')")
	b.receive(in, placed, Duplicate)
}
