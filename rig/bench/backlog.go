package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

const (
	payloadBytes = 300
	keys         = 10_000
	eventSource  = "shop/orders"
	eventType    = "order.placed"
)

// shape is what the events of a backlog are like.
type shape struct {
	topics  []string
	keys    int
	payload int // bytes
}

// usual is the shape of every backlog, unless a measurement is about another one.
func usual(topic string) shape {
	return shape{topics: []string{topic}, keys: keys, payload: payloadBytes}
}

func (s shape) event(r *rand.Rand) holdfast.Event {
	return holdfast.Event{
		Topic:   s.topics[r.IntN(len(s.topics))],
		Source:  eventSource,
		Type:    eventType,
		Key:     fmt.Sprintf("order-%05d", r.IntN(s.keys)),
		Payload: payload(r, s.payload),
	}
}

// payload makes JSON of so many bytes that compresses about as well as real payloads: of 300 bytes half are repeated words.
func payload(r *rand.Rand, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size), `{"order_id":"%016x","customer_id":%d,"currency":"EUR","total":%d.%02d,"status":"placed","lines":[{"sku":"%08x","quantity":%d,"price":%d.%02d}],"note":"`,
		r.Uint64(), r.IntN(1_000_000), r.IntN(1000), r.IntN(100), r.Uint32(), 1+r.IntN(9), r.IntN(100), r.IntN(100))
	for len(b) < size-2 {
		b = hex.AppendEncode(b, []byte{byte(r.Uint32())})
	}
	return append(b[:size-2], `"}`...)
}

// random is a source of numbers that repeats with every run.
func random(run, writer int) *rand.Rand { return rand.New(rand.NewPCG(uint64(run), uint64(writer))) }

func event(r *rand.Rand, topic string) holdfast.Event { return usual(topic).event(r) }

// writeBacklog appends events through outbox.Write, by 16 writers at once, in transactions of 1 to 10 events: the log of a
// relay that was away for a while. These commits are not measured, so they do not wait for the disk.
func (e *env) writeBacklog(ctx context.Context, database, topic string, events int) error {
	return e.writeShaped(ctx, database, usual(topic), events)
}

// writeShaped is writeBacklog with events of a shape.
func (e *env) writeShaped(ctx context.Context, database string, s shape, events int) error {
	return e.write(ctx, database, s, pgx.ReadCommitted, 1, events, func(r *rand.Rand) int { return 1 + r.IntN(10) })
}

// writeSingly is writeBacklog with transactions of one event each, under an isolation level.
func (e *env) writeSingly(ctx context.Context, database, topic string, level pgx.TxIsoLevel, events int) error {
	return e.write(ctx, database, usual(topic), level, 3, events, func(*rand.Rand) int { return 1 })
}

// write appends events by 16 writers at once, each transaction as many as size says.
func (e *env) write(ctx context.Context, database string, s shape, level pgx.TxIsoLevel, run, events int, size func(*rand.Rand) int) error {
	const writers = 16
	pool, err := e.pool(ctx, database, writers, "synchronous_commit", "off", "default_transaction_isolation", string(level))
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var left atomic.Int64
	left.Store(int64(events))
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			r := random(run, w)
			for ctx.Err() == nil {
				want := size(r)
				rest := left.Add(int64(-want))
				if n := min(want, want+int(rest)); n <= 0 {
					return
				} else if err := writeEvents(ctx, pool, r, s, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("write the backlog: %w", err)
	}
	return nil
}

// begins is what a writer needs of a pool.
type begins interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// writeEvents writes a transaction. If Postgres refuses it because others came between (40001) it is tried again, as every
// writer of SERIALIZABLE must.
func writeEvents(ctx context.Context, pool begins, r *rand.Rand, s shape, n int) error {
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = s.event(r)
	}
	for {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Write(ctx, tx, events...) })
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "40001" {
			return err
		}
	}
}
