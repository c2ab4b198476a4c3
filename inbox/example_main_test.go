package inbox_test

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/inbox/sourcetest"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/retry"
)

// placed is an event as it comes out of Kafka.
var placed = holdfast.Event{ID: "1", Source: "shop", Type: "order.placed", Topic: "orders", Key: "o-1", Payload: []byte("1200")}

// newPool returns a pool to a database that holdfast.Migrate has prepared, with the service's own table.
func newPool() *pgxpool.Pool {
	return exampledb.NewWith("create table invoice (order_id text, cents bigint)")
}

// billing is an inbox that tries an event twice, without a pause and without a word in the log.
func billing(pool *pgxpool.Pool, o inbox.Observer) *inbox.Inbox {
	in, err := inbox.New(pool, inbox.Config{
		Consumer:         "billing",
		Retry:            retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond},
		ImmediateRetries: -1,
		Observer:         o,
		Logger:           slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		log.Fatal(err)
	}
	return in
}

// orders is one partition of the topic "orders" with an event of the type "order.placed" for each payload. It stands for
// kafkago.NewGroup, without a broker.
func orders(payloads ...string) inbox.Source {
	var broker sourcetest.Memory
	broker.CreateTopic("orders", 1)
	for i, p := range payloads {
		broker.Produce("orders", 0, source.Record{Value: []byte(p), Headers: []source.Header{
			{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: fmt.Append(nil, i)},
			{Key: "ce_source", Value: []byte("shop")}, {Key: "ce_type", Value: []byte("order.placed")},
		}})
	}
	return broker.Source("billing", "orders")
}
