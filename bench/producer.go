package main

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	for _, events := range []bool{false, true} { // connections, statements and caches
		if _, err := produceFor(ctx, pool, time.Second/2, events); err != nil {
			return err
		}
	}
	var with, without samples
	for round := range 2 * e.rounds { // short runs in many turns: the disk's moods are longer than a run
		pair := []bool{false, true}
		if round%2 == 1 {
			pair = []bool{true, false}
		}
		for _, events := range pair {
			runs := &without
			if events {
				runs = &with
			}
			before := e.spent()
			speed, err := produceFor(ctx, pool, e.producer, events)
			if err != nil {
				return err
			}
			_, cpu := e.spent().since(before, int(speed*e.producer.Seconds()))
			runs.speed, runs.postgres = append(runs.speed, speed), append(runs.postgres, cpu)
		}
		r.progress("producer %d/%d: without %s, with an event %s transactions/s", round+1, 2*e.rounds, number(without.speed[round]), number(with.speed[round]))
	}
	r.info("producer, order alone", median(without.speed), "transactions/s")
	r.info("producer, order and event", median(with.speed), "transactions/s")
	if e.master != 0 {
		r.info("producer, order alone: CPU time of Postgres", median(without.postgres), "µs a transaction")
		r.info("producer, order and event: CPU time of Postgres", median(with.postgres), "µs a transaction")
	}
	r.goal(producerOverhead, median(ratios(with.speed, without.speed)), "x", atLeast(0.9))
	return nil
}

// produceFor returns the transactions a second of 16 clients.
func produceFor(ctx context.Context, pool *pgxpool.Pool, span time.Duration, events bool) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var committed atomic.Int64
	began := time.Now()
	var group sync.WaitGroup
	for client := range producerClients {
		group.Go(func() {
			numbers := random(3, client)
			for time.Since(began) < span && ctx.Err() == nil {
				if err := produceOne(ctx, pool, numbers, events); err != nil {
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

func produceOne(ctx context.Context, pool *pgxpool.Pool, numbers *rand.Rand, events bool) error {
	written := event(numbers, "orders")
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, businessInsert, numbers.IntN(1_000_000), written.Payload); err != nil {
			return fmt.Errorf("insert order: %w", err)
		}
		if !events {
			return nil
		}
		return outbox.Write(ctx, tx, written)
	})
}
