package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// Several people replay the same letters while two nodes of the consumer handle them, the events are redelivered, and
// later ones of their keys come in: each event is handled once, and each key's in their order.
func TestConcurrent_ConcurrentReplaysHandleEveryEventOnceInTheOrderOfItsKey(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	const keys, each, people = 12, 15, 4
	b := setup(t)
	pgtest.Exec(t, b.Pool, "create table effect (n bigint generated always as identity, id text, key text)")
	node := func() *inbox.Inbox {
		in, err := inbox.New(b.Pool, inbox.Config{Consumer: "billing", HoldKey: true, ImmediateRetries: -1, Workers: 6, PollMin: time.Millisecond, PollMax: 5 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			_, err := tx.Exec(ctx, "insert into effect (id, key) values ($1, $2)", e.ID, e.Key)
			return err
		})
		return in
	}
	event := func(key, n int) holdfast.Event {
		return holdfast.Event{ID: fmt.Sprintf("%02d-%02d", key, n), Source: "shop", Type: "order.placed", Topic: "orders", Key: fmt.Sprint("k", key)}
	}
	one, two := node(), node()
	// 1. Every event becomes a letter, each key's in its order: without the hold, so that all do.
	all, err := inbox.New(b.Pool, inbox.Config{Consumer: "billing", ImmediateRetries: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	all.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return retry.Permanent(errors.New("broken")) })
	for n := range each {
		for key := range keys {
			if out, err := all.Receive(t.Context(), event(key, n)); out != inbox.Dead || err != nil {
				t.Fatal(out, err)
			}
		}
	}
	// 2. All at once.
	ctx := t.Context()
	stopOne, stopTwo := running(t, one.Run), running(t, two.Run)
	var others sync.WaitGroup
	var moved atomic.Int64
	for i := range people {
		others.Go(func() {
			n, err := b.d.Replay(ctx, dlq.Filter{}, dlq.ReplayOptions{By: fmt.Sprint("person ", i)})
			if err != nil {
				t.Error(err)
			}
			moved.Add(int64(n))
		})
	}
	for key := range keys {
		others.Go(func() {
			for n := range each + 3 { // the last ones are new
				out, err := one.Receive(ctx, event(key, n))
				if old := n < each; err != nil || old && out != inbox.Duplicate || !old && out != inbox.Stored && out != inbox.Handled {
					t.Errorf("%s is %s: %v", event(key, n).ID, out, err)
				}
			}
		})
	}
	others.Wait()
	wait.Until(t, "no event is left", func() bool { return pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored") == 0 })
	stopOne()
	stopTwo()
	// 3. Once, and in order.
	if moved.Load() != keys*each {
		t.Errorf("%d letters were replayed %d times", keys*each, moved.Load())
	}
	if n := pgtest.Count(t, b.Pool, "select count(distinct id) from effect"); n != keys*(each+3) {
		t.Errorf("%d events were handled, want %d", n, keys*(each+3))
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from effect") - pgtest.Count(t, b.Pool, "select count(distinct id) from effect"); n != 0 {
		t.Errorf("%d effects happened twice", n)
	}
	// New events have no order with letters that were not yet replayed when they came: no letter holds these keys.
	if n := pgtest.Count(t, b.Pool, fmt.Sprintf(`select count(*) from (select id, lag(id) over (partition by key order by n) as before from effect where right(id, 2)::int < %d) e where id < before`, each)); n != 0 {
		t.Errorf("%d letters were handled before one that precedes them", n)
	}
	if n := pgtest.Count(t, b.Pool, fmt.Sprintf(`select count(*) from (select id, lag(id) over (partition by key order by n) as before from effect where right(id, 2)::int >= %d) e where id < before`, each)); n != 0 {
		t.Errorf("%d new events were handled before one that precedes them", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'replayed'"); n != keys*each {
		t.Errorf("%d letters are replayed, want %d", n, keys*each)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action = 'replay'"); n != keys*each {
		t.Errorf("%d actions are recorded, want %d", n, keys*each)
	}
}
