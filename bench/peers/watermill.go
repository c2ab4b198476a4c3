package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

// forwarderTopic is the table that the forwarder reads.
const forwarderTopic = "events_to_forward"

// keyName is where a message carries its key.
const keyName = "key"

func marshaler() kafka.MarshalerUnmarshaler {
	return kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) { return m.Metadata.Get(keyName), nil })
}

// drainByWatermill publishes a backlog with Watermill's forwarder: messages are written to a table in the caller's
// transaction (watermill-sql with the forwarder's envelope), read from it by a subscriber and published to Kafka by
// watermill-kafka's publisher, as _examples/real-world-examples/transactional-events-forwarder of the project does. acks=all and snappy
// as holdfast has them. Its messages go one by one, each acknowledged before the next is taken: that keeps their order.
func (s *servers) drainByWatermill(ctx context.Context, events, batch int) (_ float64, err error) {
	topic, dropTopic, err := s.topic(ctx)
	if err != nil {
		return 0, err
	}
	defer dropTopic()
	db, drop, err := s.standard(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	schema := watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch, GeneratePayloadType: func(string) string { return "bytea" }}
	subscriber, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{SchemaAdapter: schema,
		OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true, PollInterval: time.Millisecond}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	if err := subscriber.SubscribeInitialize(forwarderTopic); err != nil {
		return 0, err
	}
	if err := watermillFill(db, schema, topic, events); err != nil {
		return 0, err
	}
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Compression = sarama.CompressionSnappy
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: s.kafka.Brokers, Marshaler: marshaler(), OverwriteSaramaConfig: config}, watermill.NopLogger{})
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
func watermillFill(db *sql.DB, schema watermillsql.SchemaAdapter, topic string, events int) error {
	return inTransactions(events, func(from, to int) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it does nothing
		table, err := watermillsql.NewPublisher(tx, watermillsql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
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
		return tx.Commit()
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
	db, drop, err := s.standard(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	if _, err := db.Exec("create table seen (id text primary key, at timestamptz not null default now())"); err != nil {
		return 0, err
	}
	s.made++
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{Brokers: s.kafka.Brokers, Unmarshaler: cloudEvents{}, OverwriteSaramaConfig: config,
		ConsumerGroup: fmt.Sprint("group-", s.made)}, watermill.NopLogger{})
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
		tx, err := db.BeginTx(m.Context(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it does nothing
		if _, err := tx.ExecContext(m.Context(), "insert into seen (id) values ($1) on conflict do nothing", m.UUID); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
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
