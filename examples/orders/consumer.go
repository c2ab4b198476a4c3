package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/retry"
)

// attempts is how often billing tries an order before it becomes a dead letter. Here it is few
// and soon, to be seen; the default is ten tries, over some quarter of an hour.
var attempts = retry.Policy{Attempts: 4, Base: 100 * time.Millisecond, Cap: 400 * time.Millisecond}

// runBilling consumes until ctx is done. Run it on as many nodes as you like: the consumer group
// shares the partitions among them.
func runBilling(ctx context.Context, pool *pgxpool.Pool, brokers []string, schema, topic, group string, log *slog.Logger, seen *outcomes) error {
	in, err := inbox.New(pool, inbox.Config{
		Schema:   schema,
		Consumer: "billing",
		Retry:    attempts,
		HoldKey:  true, // a customer's later orders wait for a dead letter; other customers' never do
		Observer: inbox.Observer{OnReceive: seen.add},
		Logger:   log,
	})
	if err != nil {
		return err
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var o order
		if err := json.Unmarshal(e.Payload, &o); err != nil {
			return retry.Permanent(err) // another attempt would fail too: make it a dead letter now
		}
		return writeInvoice(ctx, tx, o) // commits together with the record that e was handled
	})
	source, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, kafkago.GroupConfig{GroupID: group, Topics: []string{topic}})
	if err != nil {
		return err
	}
	return in.Consume(ctx, source) // until ctx is done
}

// writeInvoice has no guard of its own against a second invoice for an order: the inbox is it.
func writeInvoice(ctx context.Context, tx pgx.Tx, o order) error {
	tag, err := tx.Exec(ctx, `insert into invoices (order_id, customer, cents)
		select $1, $2, $3 + $3 * percent / 100 from vat where country = $4`, o.ID, o.Customer, o.Cents, o.Country)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("there is no VAT rate for %s", o.Country)
	}
	return nil
}

// outcomes counts what became of the events that billing was given.
type outcomes struct {
	mu     sync.Mutex
	counts map[inbox.Outcome]int
}

func (o *outcomes) add(r inbox.Received) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts == nil {
		o.counts = map[inbox.Outcome]int{}
	}
	o.counts[r.Outcome]++
}

func (o *outcomes) count(of inbox.Outcome) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[of]
}
