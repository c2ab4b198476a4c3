package waiting_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/waiting"
)

type bundle struct {
	*pgtest.DB
	w *waiting.Room
	d *dlq.DLQ // letters
}

func setup(t testing.TB) bundle {
	t.Helper()
	db := migrated.New(t)
	w, err := waiting.New(db.Pool, waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return bundle{db, w, d}
}

// stored makes an event that waits in billing, as an inbox writes it.
func (b bundle) stored(t testing.TB, key, id, eventType, nextAt string) {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) values ('billing', 'shop', $1, 'orders', sha256('{}'), 'stored')`, id)
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, next_at, attempts, errors)
		values ('billing', 'orders', $1, nextval('holdfast.stored_place'), 'shop', $2, $3, now(), '{}', sha256('{}'), $4::timestamptz, 2, '{one,two}')`, key, id, eventType, nextAt)
}

func (b bundle) write(t testing.TB, events ...holdfast.Event) {
	t.Helper()
	err := pgx.BeginFunc(context.Background(), b.Pool, func(tx pgx.Tx) error { return outbox.Write(context.Background(), tx, events...) })
	if err != nil {
		t.Fatal(err)
	}
}

func (b bundle) parked(t testing.TB, topic string) int64 {
	t.Helper()
	return pgtest.Count(t, b.Pool, "select count(*) from holdfast.parked where topic = $1", topic)
}

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

// relays runs a relay.
func (b bundle) relays(t testing.TB, p relay.Publisher, c relay.Config) (stop func()) {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	r, err := relay.New(b.Pool, p, c)
	if err != nil {
		t.Fatal(err)
	}
	return running(t, r.Run)
}
