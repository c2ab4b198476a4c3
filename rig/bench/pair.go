package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
)

// The pair is what the way from COMMIT to Kafka costs at best: a writer commits an insert into a table, and then sends that
// event itself, in a request of its own, and waits for the acknowledgement. It keeps no order and loses the event if it ends
// in between, which is what an outbox is for.

const pairTable = "create table pair (id text primary key, topic text not null, key text not null, payload bytea not null)"

// measurePair is measure with the pair in place of the relay.
func (l *latencies) measurePair(ctx context.Context, e *env, database, topic string) error {
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, pairTable); err != nil {
		return fmt.Errorf("create the pair's table: %w", err)
	}
	transport := &kafka.Transport{Dial: kafkago.Dial}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{
		Addr:      kafka.TCP(e.kafka.Brokers...),
		Transport: transport,
		Timeout:   10 * time.Second,
	}
	return l.write(ctx, e, database, topic, func(ctx context.Context, pool begins, numbers *rand.Rand, topic string, number int) error {
		written := event(numbers, topic)
		written.ID = strconv.Itoa(number)
		tx, err := pool.Begin(ctx)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		defer func(tx pgx.Tx) { _ = tx.Rollback(ctx) }(tx) // nothing after a commit
		if _, err := tx.Exec(ctx, "insert into pair values ($1, $2, $3, $4)", written.ID, topic, written.Key, written.Payload); err != nil {
			return err
		}
		l.sent[number] = time.Now()
		if err := tx.Commit(ctx); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		at := bareSpot{topic, kafkago.Murmur2(written, partitions)}
		if err := bareProduce(ctx, client, map[bareSpot]*bareBatch{at: {bareSpot: at, events: []holdfast.Event{written}}}); err != nil {
			return err
		}
		l.acknowledged[number].Store(int64(time.Since(l.began)))
		return nil
	})
}
