package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
)

const (
	consumerSingle  = "consumer, a transaction an event, against hand-written"
	consumerShared  = "consumer, handlers that share (WithGroup), against hand-written"
	consumerBatch   = "consumer, Batch: 100"
	consumerBatched = "consumer, Batch: 100, against hand-written"

	consumerWorkers = 8    // inbox.Config.Workers, its default
	consumerGroup   = 1000 // of handlers that share: the most, so that the time they take together and what waits decide
)

var consumerFigures = []string{consumerSingle, consumerShared, consumerBatch, consumerBatched, costConsumer}

// measureConsumer lets four consumers read one topic from its first offset, in turns: the hand-written one with eight readers,
// the inbox as it is by default, with a transaction for each event, with handlers that share, and with batches of 100. They do nothing: the
// benchmark measures the cost of having each event's effect once.
func measureConsumer(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	r.progress("consumer: publishing %d events", e.consume)
	written, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), written)
	if err := e.writeBacklog(ctx, written, topic, e.consume); err != nil {
		return err
	}
	if err := e.exactly(ctx, r, topic, e.consume, "relay", func() error {
		_, err := e.relayDrain(ctx, written, e.consume)
		return err
	}); err != nil {
		return err
	}

	var byHand, single, shared, batch samples
	for round := range e.rounds {
		few := e.consume / 4 // of a transaction each
		runs := []func() error{
			func() error { return e.handwrittenConsume(ctx, topic, newStopwatch(e, few, &byHand)) },
			func() error { return e.inboxConsume(ctx, topic, 1, 0, newStopwatch(e, few, &single)) },
			func() error { return e.inboxConsume(ctx, topic, 1, consumerGroup, newStopwatch(e, e.consume, &shared)) },
			func() error { return e.inboxConsume(ctx, topic, 100, 0, newStopwatch(e, e.consume, &batch)) },
		}
		for i := range runs {
			if err := runs[(i+round)%len(runs)](); err != nil {
				return err
			}
		}
		r.progress("consumer %d/%d: by hand %s, single %s, shared %s, batch %s events/s", round+1, e.rounds, number(byHand.speed[round]), number(single.speed[round]), number(shared.speed[round]), number(batch.speed[round]))
	}
	byHand.report(r, "consumer, hand-written with eight readers")
	single.report(r, "consumer, a transaction an event")
	shared.report(r, "consumer, handlers that share")
	batch.report(r, "consumer, batches")
	r.ratio(consumerSingle, single.speed, byHand.speed, "events/s", atLeast(1))
	r.cost(costConsumer, single, byHand)
	r.ratio(consumerShared, shared.speed, byHand.speed, "events/s", atLeast(8))
	r.goal(consumerBatch, median(batch.speed), "events/s", atLeast(30_000))
	r.ratio(consumerBatched, batch.speed, byHand.speed, "events/s", atLeast(6))
	return nil
}

// stopwatch measures from the first tenth of the events on: before that the group's members join.
type stopwatch struct {
	e       *env
	want    int
	results *samples
	seen    atomic.Int64
	tenth   atomic.Pointer[reading]
	finish  chan reading

	unexpected atomic.Int64 // outcomes
}

type reading struct {
	at    time.Time
	spent costs
}

func newStopwatch(e *env, want int, results *samples) *stopwatch {
	return &stopwatch{e: e, want: want, results: results, finish: make(chan reading, 1)}
}

// count counts one event; it may be called from many goroutines.
func (s *stopwatch) count() {
	switch n := s.seen.Add(1); n {
	case int64(s.want / 10):
		s.tenth.Store(&reading{time.Now(), s.e.spent()})
	case int64(s.want):
		s.finish <- reading{time.Now(), s.e.spent()}
	}
}

// wait takes the result once all events were seen. ended is the end of the consumer, which must not come first.
func (s *stopwatch) wait(ctx context.Context, ended <-chan error) error {
	end, err := await(ctx, s.finish, ended, s.seen.Load, s.want)
	if err != nil {
		return err
	}
	n, begin := s.want-s.want/10, s.tenth.Load()
	self, postgres := end.spent.since(begin.spent, n)
	s.results.add(float64(n)/end.at.Sub(begin.at).Seconds(), self, postgres)
	return nil
}

// inboxConsume handles the first events of the topic, until the watch has seen enough.
func (e *env) inboxConsume(ctx context.Context, topic string, batch, group int, watch *stopwatch) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	pool, err := e.pool(ctx, database, 2*consumerWorkers+4)
	if err != nil {
		return err
	}
	defer pool.Close()
	in, source, err := newConsumer(pool, e.kafka.Brokers, database, topic, batch, group, inbox.Observer{OnReceive: watch.received})
	if err != nil {
		return err
	}
	if e.options.cpuProfile != "" {
		done, err := startProfile(fmt.Sprintf("%s.batch%d.group%d", e.options.cpuProfile, batch, group))
		if err != nil {
			return err
		}
		defer done()
	}
	consuming, stop := context.WithCancel(ctx)
	ended := make(chan error, 2) // one for wait, one for us
	go func() {
		err := in.Consume(consuming, source)
		ended <- err
		ended <- err
	}()
	err = watch.wait(ctx, ended)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	return watch.check(ctx, pool)
}

// newConsumer makes the consumer that is measured: its handler does nothing, and shares its transaction if group is not 0.
func newConsumer(pool *pgxpool.Pool, brokers []string, id, topic string, batch, group int, o inbox.Observer) (*inbox.Inbox, *kafkago.Group, error) {
	in, err := inbox.New(pool, inbox.Config{
		Consumer: "bench", BatchSize: batch,
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observer: o,
	})
	if err != nil {
		return nil, nil, err
	}
	if batch > 1 {
		in.HandleBatch(eventType, func(context.Context, pgx.Tx, []holdfast.Event) error { return nil })
	} else {
		in.Handle(eventType, func(context.Context, pgx.Tx, holdfast.Event) error { return nil }, inbox.WithGroup(group))
	}
	g, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, kafkago.GroupConfig{GroupID: id, Topics: []string{topic}})
	return in, g, err
}

// received counts each handled event once. An event that is stored, dead or skipped takes less time, but its work is not
// done.
func (s *stopwatch) received(r inbox.Received) {
	switch r.Outcome {
	case inbox.Handled:
		s.count()
	case inbox.Duplicate:
	default:
		s.unexpected.Add(1)
	}
}

// check says whether all counted events are in the table.
func (s *stopwatch) check(ctx context.Context, pool *pgxpool.Pool) error {
	if n := s.unexpected.Load(); n > 0 {
		return fmt.Errorf("%d events were not handled at once", n)
	}
	var rows int64
	if err := pool.QueryRow(ctx, "select count(*) from holdfast.inbox where result = 'handled'").Scan(&rows); err != nil {
		return fmt.Errorf("count what was handled: %w", err)
	}
	if rows != s.seen.Load() {
		return fmt.Errorf("%d events were called handled, and %d rows say so", s.seen.Load(), rows)
	}
	return nil
}
