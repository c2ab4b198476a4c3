package quickstart

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/service"
)

// The code of docs/guides.

// snippet: secure

// Secure reaches Kafka with TLS and a password. NewPublisher and NewGroup both take it.
func Secure(user, password string, brokers ...string) (kafkago.Connection, error) {
	mechanism, err := scram.Mechanism(scram.SHA512, user, password)
	if err != nil {
		return kafkago.Connection{}, err
	}
	return kafkago.Connection{Brokers: brokers, TLS: &tls.Config{MinVersion: tls.VersionTLS12}, SASL: mechanism}, nil
}

// end snippet

// snippet: sarama

// SaramaHash puts a key on the partition that sarama's default partitioner chooses: NewHashPartitioner.
func SaramaHash(e holdfast.Event, partitions int) int {
	by := e.Key
	if by == "" {
		by = e.ID
	}
	hash := fnv.New32a()
	hash.Write([]byte(by))
	partition := int(int32(hash.Sum32()) % int32(partitions))
	return max(partition, -partition)
}

// end snippet

// snippet: queue

// Rename changes a customer's name and writes the event in the same round trip.
func Rename(ctx context.Context, pool *pgxpool.Pool, customer, name string) error {
	batch := &pgx.Batch{}
	batch.Queue("update customers set name = $1 where id = $2", name, customer)
	event := holdfast.Event{Topic: "customers", Key: customer, Type: "customer.renamed", Payload: []byte(name)}
	if err := outbox.Queue(batch, event); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
}

// end snippet

// snippet: once

// RemindOnce writes the reminder of an invoice once, however often the job runs.
func RemindOnce(ctx context.Context, tx pgx.Tx, invoice, customer string) (written bool, err error) {
	event := holdfast.Event{Topic: "invoices", Key: customer, Type: "invoice.due", Payload: []byte(invoice)}
	once, err := outbox.WriteOnce(ctx, tx, "invoice "+invoice+" is due", event)
	return once.Written, err
}

// end snippet

// snippet: backfill

// CatchUp makes a new read model of what the topics hold now, and returns.
func CatchUp(ctx context.Context, pool *pgxpool.Pool, group inbox.Source, project inbox.Handler) error {
	in, err := inbox.New(pool, inbox.Config{Consumer: "read-model-2"})
	if err != nil {
		return err
	}
	in.Handle("order.placed", project)
	done, err := in.ConsumeUntil(ctx, group, inbox.Until{ProgressFunc: func(p inbox.Progress) {
		fmt.Printf("%d done, %d left, %.0f a second, %s to go\n", p.Done, p.Left, p.Rate, p.TimeLeft)
	}})
	if err != nil {
		return err // what is done stays done: the next call goes on there
	}
	fmt.Printf("caught up: %d offsets in %s\n", done.Done, done.For)
	return nil
}

// end snippet

// snippet: reopen

// Reopen makes dead letters of the orders of one day that the consumer "billing" has handled by a wrong handler.
func Reopen(ctx context.Context, pool *pgxpool.Pool, group inbox.Source, day time.Time) error {
	letters, err := dlq.New(pool, dlq.Config{})
	if err != nil {
		return err
	}
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing-bug-42"})
	if err != nil {
		return err
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Time.Before(day) {
			return nil
		}
		_, err := letters.Reopen(ctx, tx, "billing", e, "ann", "bug 42")
		if errors.Is(err, dlq.ErrNotHandled) {
			return nil // billing has yet to handle it, with the new handler
		}
		return err
	})
	_, err = in.ConsumeUntil(ctx, group, inbox.Until{At: day.AddDate(0, 0, 1)})
	return err
}

// end snippet

// snippet: scheduled

// Remind publishes a reminder tomorrow, if tx commits.
func Remind(ctx context.Context, tx pgx.Tx, customer string) error {
	return outbox.Write(ctx, tx, holdfast.Event{
		Topic:     "reminders",
		Key:       customer,
		Type:      "cart.forgotten",
		NotBefore: time.Now().Add(24 * time.Hour),
	})
}

// end snippet

// snippet: receive

// Deliver handles an event that came from anywhere else than Kafka.
func Deliver(ctx context.Context, in *inbox.Inbox, e holdfast.Event) error {
	outcome, err := in.Receive(ctx, e)
	if err != nil {
		return err // nothing was decided: let the sender send it again
	}
	slog.Info("event received", "id", e.ID, "outcome", outcome)
	return nil // handled, a duplicate, stored or dead: in each case durable, so acknowledge it
}

// end snippet

// snippet: batch

// Totals adds up to 100 orders in one transaction.
func Totals(pool *pgxpool.Pool) (*inbox.Inbox, error) {
	in, err := inbox.New(pool, inbox.Config{Consumer: "totals", BatchSize: 100})
	if err != nil {
		return nil, err
	}
	in.HandleBatch("order.placed", func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		var cents int64
		for _, e := range events {
			var o Order
			if err := json.Unmarshal(e.Payload, &o); err != nil {
				return retry.Permanent(err)
			}
			cents += o.Cents
		}
		_, err := tx.Exec(ctx, "update totals set cents = cents + $1", cents)
		return err
	})
	return in, nil
}

// end snippet

// snippet: failures

// Ship says of each failure what should become of its event.
func Ship(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	var o Order
	if err := json.Unmarshal(e.Payload, &o); err != nil {
		return retry.Permanent(err) // a dead letter at once
	}
	var packed bool
	err := tx.QueryRow(ctx, "select packed from parcels where order_id = $1", o.ID).Scan(&packed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return retry.After(fmt.Errorf("order %d has no parcel yet", o.ID), time.Minute) // again in a minute
	case err != nil:
		return err // again as inbox.Config.Retry says
	}
	_, err = tx.Exec(ctx, "insert into shipments (order_id) values ($1)", o.ID)
	return err
}

// end snippet

// snippet: watermark

// SetPrice keeps the newest price of each product, in whatever order the changes arrive.
func SetPrice(in *inbox.Inbox) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var p struct {
			SKU            string
			Version, Cents int64
		}
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			return retry.Permanent(err)
		}
		fresh, err := in.Watermark(ctx, tx, "price/"+p.SKU, p.Version)
		if err != nil || !fresh {
			return err // stale: the table has a newer price, and this event is done
		}
		_, err = tx.Exec(ctx, `insert into prices (sku, cents) values ($1, $2)
			on conflict (sku) do update set cents = excluded.cents`, p.SKU, p.Cents)
		return err
	}
}

// end snippet

// snippet: shutdown

// Serve runs a server, a consumer and a relay until SIGTERM or Ctrl-C, and then stops them in order. group is a
// kafkago.Group; p is the relay's publisher.
func Serve(pool *pgxpool.Pool, routes *http.ServeMux, in *inbox.Inbox, group inbox.Source, r *relay.Relay, p *kafkago.Publisher) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	s := &service.Service{Pool: pool, Relay: r, CloseFuncs: []func(){p.Close, pool.Close}}
	s.Consumers = []service.Consumer{{Inbox: in, Source: group}}
	routes.Handle("GET /livez", s.Probes())
	routes.Handle("GET /readyz", s.Probes())
	s.Server = &http.Server{Addr: ":8080", Handler: routes, ReadHeaderTimeout: 5 * time.Second}
	return s.Run(ctx)
}

// end snippet

// snippet: route

// Refunds makes POST /refunds safe to send again. account says which user a request comes from.
func Refunds(pool *pgxpool.Pool, account func(*http.Request) (string, error)) (http.Handler, error) {
	guard, err := idempotency.New(pool, idempotency.Config{Principal: account})
	if err != nil {
		return nil, err
	}
	refund := func(w http.ResponseWriter, r *http.Request) {
		tx := idempotency.Tx(r.Context()) // commits together with the answer
		_, err := tx.Exec(r.Context(), "insert into refunds (charge) values ($1)", r.FormValue("charge"))
		if err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // rolled back, and the key is free
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", guard.Middleware(http.HandlerFunc(refund)))
	return mux, nil
}

// end snippet
