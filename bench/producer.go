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

	"github.com/holdfast-go/holdfast/outbox"
)

const (
	producerOverhead = "producer, transactions with one event against without"
	producerClients  = 16
)

var producerFigures = []string{producerOverhead}

// The business: an order as it is, with an index, inserted by a transaction of its own.
const businessSchema = `
create table orders (
    id          bigint generated always as identity primary key,
    customer_id bigint not null,
    status      text not null,
    body        jsonb not null,
    created_at  timestamptz not null default now()
);
create index orders_customer on orders (customer_id, created_at)`

const businessInsert = `insert into orders (customer_id, status, body) values ($1, 'placed', $2)`

// What a transaction of the producer does besides inserting its order.
type besides int

const (
	nothing      besides = iota
	oneRoundTrip         // an empty statement: what no event written by a statement of its own can go below
	oneEvent
)

// measureProducer lets 16 clients insert orders, in turns with and without an event in the same transaction. No relay
// runs: what a write costs is the question, not what reading costs.
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
	if _, err := pool.Exec(ctx, businessSchema); err != nil {
		return fmt.Errorf("create the orders: %w", err)
	}
	turns := []besides{nothing, oneEvent, oneRoundTrip}
	for _, b := range turns { // connections, statements and caches
		if _, err := produceFor(ctx, pool, time.Second/2, b); err != nil {
			return err
		}
	}
	runs := map[besides]*samples{nothing: {}, oneRoundTrip: {}, oneEvent: {}}
	for round := range 2 * e.rounds { // short runs in many turns: the disk's moods are longer than a run
		if round%2 == 1 {
			slices.Reverse(turns)
		}
		for _, b := range turns {
			before := e.spent()
			speed, err := produceFor(ctx, pool, e.producer, b)
			if err != nil {
				return err
			}
			_, cpu := e.spent().since(before, int(speed*e.producer.Seconds()))
			runs[b].speed, runs[b].postgres = append(runs[b].speed, speed), append(runs[b].postgres, cpu)
		}
		r.progress("producer %d/%d: without %s, with an event %s, with an empty statement %s transactions/s", round+1, 2*e.rounds,
			number(runs[nothing].speed[round]), number(runs[oneEvent].speed[round]), number(runs[oneRoundTrip].speed[round]))
	}
	with, without := runs[oneEvent], runs[nothing]
	r.info("producer, order alone", median(without.speed), "transactions/s")
	r.info("producer, order and event", median(with.speed), "transactions/s")
	if e.master != 0 {
		r.info("producer, order alone: CPU time of Postgres", median(without.postgres), "µs a transaction")
		r.info("producer, order and event: CPU time of Postgres", median(with.postgres), "µs a transaction")
	}
	r.info("producer, transactions with one empty statement against without", median(ratios(runs[oneRoundTrip].speed, without.speed)), "x")
	r.goal(producerOverhead, median(ratios(with.speed, without.speed)), "x", atLeast(0.9))
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
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, businessInsert, numbers.IntN(1_000_000), written.Payload); err != nil {
			return fmt.Errorf("insert order: %w", err)
		}
		switch b {
		case oneRoundTrip:
			_, err := tx.Exec(ctx, "select 1")
			return err
		case oneEvent:
			return outbox.Write(ctx, tx, written)
		}
		return nil
	})
}
