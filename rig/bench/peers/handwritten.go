package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
)

// drainByHand publishes a backlog as people do by hand: lock a hundred rows, send them with kafka.Writer, delete them, commit.
// A BatchTimeout of 1 ms is its best setting; the default is a second.
func (s *servers) drainByHand(ctx context.Context, events int) (float64, error) {
	topic, dropTopic, err := s.topic(ctx)
	if err != nil {
		return 0, err
	}
	defer dropTopic()
	pool, drop, err := s.empty(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	if _, err := pool.Exec(ctx, "create table outbox (id bigint generated always as identity primary key, key text not null, payload bytea not null)"); err != nil {
		return 0, err
	}
	if err := inTransactions(events, func(from, to int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			for n := from; n < to; n++ {
				key, payload := order(n)
				if _, err := tx.Exec(ctx, "insert into outbox (key, payload) values ($1, $2)", key, payload); err != nil {
					return err
				}
			}
			return nil
		})
	}); err != nil {
		return 0, err
	}
	transport := &kafka.Transport{} // the default one is shared, and may not know the topic yet
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{
		Addr:         kafka.TCP(s.kafka.Brokers...),
		Transport:    transport,
		Topic:        topic,
		Balancer:     kafka.Murmur2Balancer{},
		RequiredAcks: kafka.RequireAll,
		Compression:  kafka.Snappy,
		BatchTimeout: time.Millisecond,
	}
	defer writer.Close()
	began := time.Now()
	for published := 0; published < events; {
		n := 0
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) { n, err = handTurn(ctx, tx, writer); return err }); err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, fmt.Errorf("the table is empty after %d of %d events", published, events)
		}
		published += n
	}
	took := time.Since(began)
	return float64(events) / took.Seconds(), s.arrived(ctx, topic, events)
}

func handTurn(ctx context.Context, tx pgx.Tx, writer *kafka.Writer) (int, error) {
	rows, err := tx.Query(ctx, "select id, key, payload from outbox order by id limit 100 for update skip locked")
	if err != nil {
		return 0, err
	}
	var ids []int64
	var messages []kafka.Message
	var id int64
	var key string
	var payload []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &key, &payload}, func() error {
		ids, messages = append(ids, id), append(messages, kafka.Message{Key: []byte(key), Value: payload})
		return nil
	}); err != nil {
		return 0, err
	}
	if len(ids) == 0 {
		return 0, nil
	}
	if err := writer.WriteMessages(ctx, messages...); err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, "delete from outbox where id = any($1)", ids)
	return len(ids), err
}
