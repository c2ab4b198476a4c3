package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// runRelay publishes what was committed until ctx is done. It may run in the shop's process, as
// here, or in one of its own, and as many times as you like: relays share the work.
func runRelay(ctx context.Context, pool *pgxpool.Pool, brokers []string, schema string, log *slog.Logger, seen *published) error {
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: brokers}, kafkago.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close() // after Run returned: its connections to the brokers
	r, err := relay.New(pool, publisher, relay.Config{
		Schema:   schema,
		Observer: relay.Observer{OnPublished: seen.add},
		Logger:   log,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx) // until ctx is done; then it finishes what is in progress
}

// publishAgain is what the next relay does when one crashed after Kafka had acknowledged events
// and before it had saved that: it publishes them a second time, because it cannot know.
func publishAgain(ctx context.Context, brokers []string, events []holdfast.Event) error {
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: brokers}, kafkago.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	return errors.Join(publisher.Publish(ctx, events)...)
}

// published remembers what Kafka acknowledged.
type published struct {
	mu     sync.Mutex
	events []holdfast.Event
}

// add is called by many lanes at once, and the slice is the relay's: it is copied.
func (p *published) add(_ int, events []holdfast.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, events...)
}

func (p *published) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.events)
}

// last returns the n that were acknowledged last.
func (p *published) last(n int) []holdfast.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events[max(0, len(p.events)-n):])
}
