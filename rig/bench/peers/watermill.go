package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// forwarderTopic is the table that the forwarder reads.
const forwarderTopic = "events_to_forward"

// keyName is where a message carries its key.
const keyName = "key"

func marshaler() kafka.MarshalerUnmarshaler {
	return kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) { return m.Metadata.Get(keyName), nil })
}

// watermillTable is how Watermill keeps messages in Postgres: its schema and how its subscriber remembers what it has read.
type watermillTable struct {
	schema  watermillsql.SchemaAdapter
	offsets watermillsql.OffsetsAdapter
}

func ofBytes(string) string { return "bytea" }

// watermillOffsets is its default: a table that stays, and an offset.
func watermillOffsets(batch int) watermillTable {
	return watermillTable{watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch, GeneratePayloadType: ofBytes}, watermillsql.DefaultPostgreSQLOffsetsAdapter{}}
}

// watermillQueue is its queue: rows are locked, and deleted when they are acknowledged.
func watermillQueue(batch int) watermillTable {
	return watermillTable{watermillsql.PostgreSQLQueueSchema{SubscribeBatchSize: batch, GeneratePayloadType: ofBytes}, watermillsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true}}
}

// drainByWatermill publishes a backlog with Watermill's forwarder: messages are written to a table in the caller's
// transaction (watermill-sql with the forwarder's envelope), read from it by a subscriber and published to Kafka by
// watermill-kafka's publisher, as _examples/real-world-examples/transactional-events-forwarder of the project does. acks=all and snappy
// as holdfast has them. Its messages go one by one, each acknowledged before the next is taken: that keeps their order.
func (s *servers) drainByWatermill(ctx context.Context, events int, table watermillTable) (_ float64, err error) {
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
	subscriber, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), watermillsql.SubscriberConfig{
		SchemaAdapter:    table.schema,
		OffsetsAdapter:   table.offsets,
		InitializeSchema: true,
		PollInterval:     time.Millisecond,
	}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	if err := subscriber.SubscribeInitialize(forwarderTopic); err != nil {
		return 0, err
	}
	if err := watermillFill(ctx, pool, table.schema, topic, events); err != nil {
		return 0, err
	}
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Compression = sarama.CompressionSnappy
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers:               s.kafka.Brokers,
		Marshaler:             marshaler(),
		OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	defer publisher.Close()
	done := make(chan time.Time, 1)
	counting := &countingPublisher{Publisher: publisher, events: int64(events), done: done}
	f, err := forwarder.NewForwarder(subscriber, counting, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarderTopic})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	select {
	case finished := <-done:
		err = errors.Join(f.Close(), <-ended, s.arrived(ctx, topic, events))
		return float64(events) / finished.Sub(began).Seconds(), err
	case err := <-ended:
		return 0, fmt.Errorf("the forwarder ended: %w", err)
	case <-ctx.Done():
		return 0, errors.Join(ctx.Err(), f.Close())
	}
}

// watermillFill writes the backlog through the forwarder's publisher, each ten in a transaction.
func watermillFill(ctx context.Context, pool *pgxpool.Pool, schema watermillsql.SchemaAdapter, topic string, events int) error {
	return inTransactions(events, func(from, to int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			table, err := watermillsql.NewPublisher(watermillsql.TxFromPgx(tx), watermillsql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			outbox := forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic})
			for n := from; n < to; n++ {
				key, payload := order(n)
				m := message.NewMessage(watermill.NewUUID(), payload)
				m.Metadata.Set(keyName, key)
				if err := outbox.Publish(topic, m); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// countingPublisher says when the last event was acknowledged.
type countingPublisher struct {
	message.Publisher
	events    int64
	published atomic.Int64
	done      chan<- time.Time
}

func (p *countingPublisher) Publish(topic string, messages ...*message.Message) error {
	if err := p.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	if p.published.Add(int64(len(messages))) == p.events {
		p.done <- time.Now()
	}
	return nil
}

// consumeByWatermill handles every message of the topic once. Watermill has no inbox: its users keep a table of the ids
// that they have seen, which a transaction a message is written to before the handler does its work.
func (s *servers) consumeByWatermill(ctx context.Context, topic string, events int) (float64, error) {
	pool, drop, err := s.empty(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	if _, err := pool.Exec(ctx, "create table seen (id text primary key, at timestamptz not null default now())"); err != nil {
		return 0, err
	}
	s.made++
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               s.kafka.Brokers,
		Unmarshaler:           cloudEvents{},
		OverwriteSaramaConfig: config,
		ConsumerGroup:         fmt.Sprint("group-", s.made),
	}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	watch := &stopwatch{events: int64(events), stop: stop}
	router.AddConsumerHandler("orders", topic, subscriber, func(m *message.Message) error {
		err := pgx.BeginFunc(m.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(m.Context(), "insert into seen (id) values ($1) on conflict do nothing", m.UUID)
			return err
		})
		if err != nil {
			return err
		}
		watch.count()
		return nil
	})
	if err := router.Run(ctx); err != nil {
		return 0, err
	}
	return watch.perSecond()
}

// cloudEvents reads the events that the relay has published.
type cloudEvents struct{}

func (cloudEvents) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	for _, h := range record.Headers {
		if string(h.Key) == "ce_id" {
			return message.NewMessage(string(h.Value), record.Value), nil
		}
	}
	return nil, errors.New("a record without ce_id")
}
