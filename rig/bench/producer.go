package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

const (
	producerOverhead    = "producer, transactions with one event against without"
	producerHandwritten = "producer, order and event against order and hand-written row"
	producerOneTrip     = "producer, order and event in one batch with begin and commit, against order alone in three round trips"
	producerHundred     = "producer, 100 events in a transaction: CPU time of Postgres an event"
	producerClients     = 16
	manyEvents          = 100
)

var producerFigures = []string{producerOverhead, producerHandwritten, producerOneTrip, producerHundred, costProducer}

// The business: an order with an index, inserted by a transaction of its own.
const businessSchema = `
create table orders (
    id          bigint generated always as identity primary key,
    customer_id bigint not null,
    status      text not null,
    body        jsonb not null,
    created_at  timestamptz not null default now()
);
create index orders_customer on orders (customer_id, created_at)`

const handwrittenInsert = `insert into outbox (topic, key, type, payload) values ($1, $2, $3, $4)`

const businessInsert = `insert into orders (customer_id, status, body) values ($1, 'placed', $2)`

// What a transaction of the producer does besides inserting its order.
type besides int

const (
	nothing      besides = iota
	oneRoundTrip         // an empty statement: the lower bound for an event that is written by a statement of its own
	oneRow               // what a team writes by hand instead of an event: an insert into the table of the hand-written relay
	oneEvent
	oneQueued // an event in one batch with the order
	oneTrip   // the same, with begin and commit in the batch
	hundred   // 100 events in one Write
)

func (b besides) String() string {
	return [...]string{"order alone", "order and empty statement", "order and hand-written row", "order and event", "order and event in a batch", "order and event in one batch with begin and commit", "order and 100 events"}[b]
}

// measureProducer lets 16 clients insert orders, in turns with and without an event in the same transaction, and with what
// people write instead. No relay runs: the question is the cost of writing, not of reading.
func measureProducer(ctx context.Context, e *env, r *report) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	pool, err := e.pool(ctx, database, producerClients)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, businessSchema+";"+handwrittenSchema); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	turns := []besides{nothing, oneRoundTrip, oneRow, oneEvent, oneQueued, oneTrip, hundred}
	runs := make(map[besides]*samples)
	for _, b := range turns { // connections, statements and caches
		runs[b] = &samples{}
		if _, err := produceFor(ctx, pool, time.Second/2, b); err != nil {
			return err
		}
	}
	for round := range 2 * e.rounds { // short runs in many turns: the disk's slow phases last longer than a run
		if round%2 == 1 {
			slices.Reverse(turns)
		}
		for _, b := range turns {
			before := e.spent()
			speed, err := produceFor(ctx, pool, e.producer, b)
			if err != nil {
				return err
			}
			self, postgres := e.spent().since(before, int(speed*e.producer.Seconds()))
			runs[b].add(speed, self, postgres)
		}
		r.progress("producer %d/%d: without %s, with an event %s, in a batch %s transactions/s", round+1, 2*e.rounds,
			number(runs[nothing].speed[round]), number(runs[oneEvent].speed[round]), number(runs[oneQueued].speed[round]))
	}
	slices.Sort(turns)
	for _, b := range turns {
		r.info(fmt.Sprintf("producer, %s", b), median(runs[b].speed), "transactions/s")
		if e.master != 0 {
			r.info(fmt.Sprintf("producer, %s: CPU time of Postgres", b), median(runs[b].postgres), "µs a transaction")
		}
	}
	for _, b := range []besides{oneRoundTrip, oneRow, oneQueued} {
		r.ratio(fmt.Sprintf("producer, %s against order alone", b), runs[b].speed, runs[nothing].speed, "transactions/s", noGoal)
	}
	r.ratio(producerOverhead, runs[oneEvent].speed, runs[nothing].speed, "transactions/s", atLeast(0.9))
	r.ratio(producerHandwritten, runs[oneEvent].speed, runs[oneRow].speed, "transactions/s", atLeast(0.98))
	r.ratio(producerOneTrip, runs[oneTrip].speed, runs[nothing].speed, "transactions/s", atLeast(1))
	r.cost(costProducer, *runs[oneEvent], *runs[oneRow])
	if e.master != 0 {
		r.goal(producerHundred, (median(runs[hundred].postgres)-median(runs[nothing].postgres))/manyEvents, "µs", atMost(6))
	}
	return nil
}

// produceFor returns the transactions a second of 16 clients.
func produceFor(ctx context.Context, pool *pgxpool.Pool, span time.Duration, b besides) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var committed atomic.Int64
	began := time.Now()
	var group sync.WaitGroup
	for client := range producerClients {
		group.Go(func() {
			numbers := random(3, client)
			for time.Since(began) < span && ctx.Err() == nil {
				if err := produceOne(ctx, pool, numbers, b); err != nil {
					cancel(err)
					return
				}
				committed.Add(1)
			}
		})
	}
	group.Wait()
	return float64(committed.Load()) / time.Since(began).Seconds(), context.Cause(ctx)
}

func produceOne(ctx context.Context, pool *pgxpool.Pool, numbers *rand.Rand, b besides) error {
	written := event(numbers, "orders")
	customer := numbers.IntN(1_000_000)
	if b == oneTrip {
		var batch pgx.Batch
		batch.Queue("begin")
		batch.Queue(businessInsert, customer, written.Payload)
		if err := outbox.Queue(&batch, written); err != nil {
			return err
		}
		batch.Queue("commit")
		return pool.SendBatch(ctx, &batch).Close()
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if b == oneQueued {
			var batch pgx.Batch
			batch.Queue(businessInsert, customer, written.Payload)
			if err := outbox.Queue(&batch, written); err != nil {
				return err
			}
			return tx.SendBatch(ctx, &batch).Close()
		}
		if _, err := tx.Exec(ctx, businessInsert, customer, written.Payload); err != nil {
			return fmt.Errorf("insert order: %w", err)
		}
		switch b {
		case oneRoundTrip:
			_, err := tx.Exec(ctx, "select 1")
			return err
		case oneRow:
			_, err := tx.Exec(ctx, handwrittenInsert, written.Topic, written.Key, written.Type, written.Payload)
			return err
		case oneEvent:
			return outbox.Write(ctx, tx, written)
		case hundred:
			events := make([]holdfast.Event, manyEvents)
			for i := range events {
				events[i] = event(numbers, "orders")
			}
			return outbox.Write(ctx, tx, events...)
		}
		return nil
	})
}
