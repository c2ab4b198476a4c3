package dlq_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

type bundle struct {
	*pgtest.DB
	d *dlq.DLQ
}

func setup(t testing.TB) bundle {
	t.Helper()
	db := migrated.New(t)
	d, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return bundle{db, d}
}

func (b bundle) replay(t testing.TB, f dlq.Filter, want int) {
	t.Helper()
	if n, err := b.d.Replay(t.Context(), f, dlq.ReplayOptions{By: "ann"}); n != want || err != nil {
		t.Fatalf("replayed %d letters, want %d: %v", n, want, err)
	}
}

// follower stores an event behind the queue of billing's key k.
func (b bundle) follower(t testing.TB, id string) {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		values ('billing', 'orders', 'k', nextval('holdfast.stored_place'), 'shop', $1, 't', now(), '', 'infinity')`, id)
}

const queueOfK = "select string_agg(event_id, ' ' order by place) from holdfast.stored where key = 'k'"

// order is an event of the consumer "billing".
func order(id, key string) holdfast.Event {
	return holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: "orders", Key: key, Payload: []byte(`{"id":"` + id + `"}`), Headers: map[string]string{"a": "b"}}
}

// running calls run, of a relay or an inbox, until stop is called or the test ends.
func running(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// whyNot is why a letter could not be replayed, as its error says to programs; "" if it says nothing of that.
func whyNot(err error) string {
	var why *dlq.NotReplayableError
	if !errors.As(err, &why) {
		return ""
	}
	return why.Why
}
