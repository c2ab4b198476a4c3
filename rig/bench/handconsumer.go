package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/wire"
)

// The hand-written consumer is the other half of what people write: eight readers of one group. Each has a loop that
// inserts the event's id and handles the event in one transaction, and commits the offset afterwards.
const handwrittenReaders = 8

// handwrittenConsume handles the first events of the topic, until the watch has seen enough.
func (e *env) handwrittenConsume(ctx context.Context, topic string, watch *stopwatch) error {
	database, err := e.database(ctx, "")
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	pool, err := e.pool(ctx, database, handwrittenReaders)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "create table processed (event_id text primary key, processed_at timestamptz not null default now())"); err != nil {
		return fmt.Errorf("create the hand-written consumer's table: %w", err)
	}
	ended := make(chan error, handwrittenReaders)
	reading, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	for range handwrittenReaders {
		group.Go(func() {
			if err := handwrittenReader(reading, pool, e.kafka.Brokers, topic, database, watch); err != nil && reading.Err() == nil {
				ended <- err
			}
		})
	}
	err = watch.wait(ctx, ended)
	stop()
	group.Wait()
	return err
}

func handwrittenReader(ctx context.Context, pool *pgxpool.Pool, brokers []string, topic, group string, watch *stopwatch) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: brokers, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
		MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 100 * time.Millisecond,
		// Offsets are committed once a second: committing each would cost a round trip for every event, and the table
		// recognises repeats.
		CommitInterval: time.Second,
	})
	defer reader.Close()
	for {
		m, err := reader.FetchMessage(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		var id string
		for _, h := range m.Headers {
			if h.Key == wire.HeaderID {
				id = string(h.Value)
			}
		}
		fresh := false
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, "insert into processed (event_id) values ($1) on conflict do nothing", id)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			fresh = true
			return nil // here the handler would do its work on tx
		})
		if err != nil {
			return fmt.Errorf("handle: %w", err)
		}
		if fresh {
			watch.count()
		}
		if err := reader.CommitMessages(ctx, m); err != nil {
			return fmt.Errorf("commit offset: %w", err)
		}
	}
}
