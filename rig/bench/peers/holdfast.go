package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// fill writes the backlog through the outbox.
func fill(ctx context.Context, pool *pgxpool.Pool, topic string, events int) error {
	return inTransactions(events, func(from, to int) error {
		var some []holdfast.Event
		for n := from; n < to; n++ {
			key, payload := order(n)
			some = append(some, holdfast.Event{
				Topic:   topic,
				Key:     key,
				Type:    "order.placed",
				Source:  "shop",
				Payload: payload,
			})
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Write(ctx, tx, some...) })
	})
}

// drainByHoldfast publishes a backlog with a relay of the default configuration.
func (s *servers) drainByHoldfast(ctx context.Context, events int) (float64, error) {
	topic, dropTopic, err := s.topic(ctx)
	if err != nil {
		return 0, err
	}
	defer dropTopic()
	pool, drop, err := s.migrated(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	if err := fill(ctx, pool, topic, events); err != nil {
		return 0, err
	}
	speed, err := s.relay(ctx, pool, events)
	return speed, errors.Join(err, s.arrived(ctx, topic, events))
}

// relay runs one until it has published as many events.
func (s *servers) relay(ctx context.Context, pool *pgxpool.Pool, events int) (float64, error) {
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: s.kafka.Brokers}, kafkago.PublisherConfig{})
	if err != nil {
		return 0, err
	}
	defer publisher.Close()
	var count atomic.Int64
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var finished time.Time
	r, err := relay.New(pool, publisher, relay.Config{Logger: silent, Observer: relay.Observer{OnPublished: func(_ int, got []holdfast.Event) {
		if count.Add(int64(len(got))) == int64(events) {
			finished = time.Now()
			stop()
		}
	}}})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := r.Run(ctx); err != nil {
		return 0, err
	}
	if count.Load() != int64(events) {
		return 0, fmt.Errorf("%d of %d events were published", count.Load(), events)
	}
	return float64(events) / finished.Sub(began).Seconds(), nil
}

// filledTopic is one that has all events, for the consumers.
func (s *servers) filledTopic(ctx context.Context, events int) (string, error) {
	topic, _, err := s.topic(ctx)
	if err != nil {
		return "", err
	}
	pool, drop, err := s.migrated(ctx)
	if err != nil {
		return "", err
	}
	defer drop()
	if err := fill(ctx, pool, topic, events); err != nil {
		return "", err
	}
	if _, err := s.relay(ctx, pool, events); err != nil {
		return "", err
	}
	return topic, s.arrived(ctx, topic, events)
}

// stopwatch runs from the first tenth of the events to the last: what comes before is a group that finds together.
type stopwatch struct {
	events       int64
	seen         atomic.Int64
	tenth, whole time.Time
	stop         func()
}

func (s *stopwatch) count() {
	switch s.seen.Add(1) {
	case s.events / 10:
		s.tenth = time.Now()
	case s.events:
		s.whole = time.Now()
		s.stop()
	}
}

func (s *stopwatch) perSecond() (float64, error) {
	if s.seen.Load() < s.events {
		return 0, fmt.Errorf("%d of %d events were consumed", s.seen.Load(), s.events)
	}
	return float64(s.events-s.events/10) / s.whole.Sub(s.tenth).Seconds(), nil
}

// consumeByHoldfast handles every event of the topic once, with the default configuration. So many events may share a transaction; 0: none,
// which is the default.
func (s *servers) consumeByHoldfast(ctx context.Context, topic string, events, group int) (float64, error) {
	pool, drop, err := s.migrated(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	watch := &stopwatch{events: int64(events), stop: stop}
	in, err := inbox.New(pool, inbox.Config{
		Consumer: "peer",
		Logger:   silent,
		Observer: inbox.Observer{OnReceive: func(r inbox.Received) {
			if r.Outcome == inbox.Handled {
				watch.count()
			}
		}},
	})
	if err != nil {
		return 0, err
	}
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return nil }, inbox.WithGroup(group))
	s.made++
	source, err := kafkago.NewGroup(kafkago.Connection{Brokers: s.kafka.Brokers}, kafkago.GroupConfig{GroupID: fmt.Sprintf("peer-%d-%d", os.Getpid(), s.made), Topics: []string{topic}})
	if err != nil {
		return 0, err
	}
	if err := in.Consume(ctx, source); err != nil {
		return 0, err
	}
	return watch.perSecond()
}
