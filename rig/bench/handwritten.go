package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/wire"
)

// The hand-written relay is what people write when they need an outbox by Friday: a table of pending events, a loop that
// locks a hundred of them, sends them with kafka.Writer, deletes them and commits.
//
// A hundred events never fill the batches of eight partitions, so each write waits for kafka.Writer's BatchTimeout. Its
// default of a second would make the comparison pointless. People set 10 ms; 1 ms is the best possible value.
const (
	handwrittenBatch = 100
	usualTimeout     = 10 * time.Millisecond
	bestTimeout      = time.Millisecond
)

const handwrittenSchema = `
create table outbox (
    id         bigint generated always as identity primary key,
    event_id   uuid not null default gen_random_uuid(),
    topic      text not null,
    key        text not null,
    type       text not null,
    payload    bytea not null,
    created_at timestamptz not null default now()
)`

// handwrittenFill is not measured. Its payload is like that of the function payload.
const handwrittenFill = `
insert into outbox (topic, key, type, payload)
select $1, 'order-' || lpad((random() * 9999)::int::text, 5, '0'), 'order.placed',
       convert_to(rpad(format('{"order_id":"%s","customer_id":%s,"currency":"EUR","total":%s,"status":"placed","lines":[{"sku":"%s","quantity":2,"price":12.50}],"note":"',
           left(md5(n::text), 16), (random() * 1000000)::int, (random() * 1000)::int, left(md5(random()::text), 8))
           || md5(random()::text) || md5(random()::text) || md5(random()::text) || md5(random()::text), 298) || '"}', 'UTF8')
  from generate_series(1, $2::int) n`

// handwrittenSetUp makes a database with a backlog in the hand-written relay's table.
func (e *env) handwrittenSetUp(ctx context.Context, topic string, events int) (string, error) {
	name, err := e.database(ctx, "")
	if err != nil {
		return "", err
	}
	pool, err := e.pool(ctx, name, 1)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, handwrittenSchema); err != nil {
		return "", fmt.Errorf("create the hand-written relay's table: %w", err)
	}
	if _, err := pool.Exec(ctx, handwrittenFill, topic, events); err != nil {
		return "", fmt.Errorf("fill the hand-written relay's table: %w", err)
	}
	if _, err := pool.Exec(ctx, "analyze outbox"); err != nil {
		return "", err
	}
	return name, nil
}

// handwrittenDrain publishes that backlog and returns events a second.
func (e *env) handwrittenDrain(ctx context.Context, database string, events int, batchTimeout time.Duration) (float64, error) {
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{
		Addr:         kafka.TCP(e.kafka.Brokers...),
		Transport:    transport,
		Balancer:     kafka.Murmur2Balancer{},
		RequiredAcks: kafka.RequireAll,
		Compression:  codec,
		BatchTimeout: batchTimeout,
	}
	defer writer.Close()
	began := time.Now()
	for published := 0; ; {
		n, err := handwrittenTurn(ctx, pool, writer)
		if err != nil {
			return 0, err
		}
		if published += n; n == 0 {
			if published != events {
				return 0, fmt.Errorf("the hand-written relay published %d of %d events", published, events)
			}
			return float64(events) / time.Since(began).Seconds(), nil
		}
	}
}

func handwrittenTurn(ctx context.Context, pool *pgxpool.Pool, writer *kafka.Writer) (published int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "select id, event_id::text, topic, key, type, payload, created_at from outbox order by id limit $1 for update skip locked", handwrittenBatch)
		if err != nil {
			return err
		}
		var ids []int64
		var messages []kafka.Message
		var id int64
		var eventID, topic, key, kind string
		var body []byte
		var at time.Time
		if _, err := pgx.ForEachRow(rows, []any{&id, &eventID, &topic, &key, &kind, &body, &at}, func() error {
			ids = append(ids, id)
			messages = append(messages, kafka.Message{
				Topic: topic,
				Key:   []byte(key),
				Value: body,
				Headers: []kafka.Header{
					{Key: wire.HeaderSpecVersion, Value: []byte("1.0")},
					{Key: wire.HeaderID, Value: []byte(eventID)},
					{Key: wire.HeaderSource, Value: []byte(eventSource)},
					{Key: wire.HeaderType, Value: []byte(kind)},
					{Key: wire.HeaderTime, Value: []byte(at.UTC().Format(time.RFC3339Nano))},
				},
			})
			return nil
		}); err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		if err := writer.WriteMessages(ctx, messages...); err != nil {
			return err
		}
		published = len(ids)
		_, err = tx.Exec(ctx, "delete from outbox where id = any($1)", ids)
		return err
	})
	return published, err
}
