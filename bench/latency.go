package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

const (
	latencyP50  = "commit to acknowledgement at 500 events/s, p50"
	latencyP99  = "commit to acknowledgement at 500 events/s, p99"
	latencyRate = 500 // events a second
)

var latencyFigures = []string{latencyP50, latencyP99}

// measureLatency commits 500 transactions of one event a second, evenly. For each it measures the time from sending COMMIT
// to the broker's acknowledgement, so the commit's own wait for the disk is included. Nobody calls Relay.Wake.
func measureLatency(ctx context.Context, e *env, r *report) error {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return err
	}
	defer drop()
	const warmUp = latencyRate * 10 // a broker that has just started takes 100 ms a request, until its JVM has compiled the path
	n := warmUp + int(e.latency.Seconds()*latencyRate)
	l := newLatencies(e, n)
	r.progress("latency: %d events/s for %v", latencyRate, e.latency)
	if err := e.exactly(ctx, r, topic, n, "relay", func() error { return l.measure(ctx, e, database, topic) }); err != nil {
		return err
	}
	fromSent, fromDone := l.spans(warmUp)
	quantile := func(spans []time.Duration, q float64) float64 {
		return float64(spans[min(len(spans)-1, int(q*float64(len(spans))))].Microseconds()) / 1000
	}
	r.goal(latencyP50, quantile(fromSent, 0.50), "ms", below(10))
	r.info("the same, p90", quantile(fromSent, 0.90), "ms")
	r.goal(latencyP99, quantile(fromSent, 0.99), "ms", below(30))
	r.info("the same, max", quantile(fromSent, 1), "ms")
	r.info("the same from the answer to COMMIT, p50", quantile(fromDone, 0.50), "ms")
	r.info("the same from the answer to COMMIT, p99", quantile(fromDone, 0.99), "ms")
	r.note("Commit to acknowledgement, %d events:\n%s", len(fromSent), histogram(fromSent))
	return nil
}

// latencies are the moments of every event, by its number, which is its id.
type latencies struct {
	began           time.Time
	sent, committed []time.Time    // COMMIT was sent, was answered
	acknowledged    []atomic.Int64 // nanoseconds after began
	keys            []string

	connection kafkago.Connection // of the relay
	due        func(number int)   // called when the time of an event has come; it may be nil
}

func newLatencies(e *env, n int) *latencies {
	return &latencies{connection: kafkago.Connection{Brokers: e.kafka.Brokers}, sent: make([]time.Time, n), committed: make([]time.Time, n), acknowledged: make([]atomic.Int64, n), keys: make([]string, n), began: time.Now()}
}

func (l *latencies) measure(ctx context.Context, e *env, database, topic string) error {
	pool, err := e.pool(ctx, database, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	var published atomic.Int64
	all := make(chan struct{})
	rel, closeIdle, err := newRelayOn(pool, l.connection, relay.Observer{OnPublished: func(p relay.Published) {
		events := p.Events
		now := int64(time.Since(l.began))
		for i := range events {
			if number, err := strconv.Atoi(events[i].ID); err == nil {
				l.acknowledged[number].Store(now)
			}
		}
		if published.Add(int64(len(events))) == int64(len(l.sent)) {
			close(all)
		}
	}})
	if err != nil {
		return err
	}
	defer closeIdle()
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- rel.Run(running) }()
	err = l.write(ctx, e, database, topic)
	if err == nil {
		_, err = await(ctx, all, ended, published.Load, len(l.sent))
	}
	stop()
	if err == nil {
		err = <-ended
	}
	return err
}

// write commits the events at their times, whether or not the earlier ones have ended: a slow moment must not reduce the
// load.
func (l *latencies) write(ctx context.Context, e *env, database, topic string) error {
	const writers = 16
	pool, err := e.pool(ctx, database, writers)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan int, len(l.sent))
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			numbers := random(2, w)
			for number := range due {
				if err := l.commit(ctx, pool, numbers, topic, number); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	start := time.Now().Add(500 * time.Millisecond) // the relay claims its lanes meanwhile
	for number := range l.sent {
		time.Sleep(time.Until(start.Add(time.Duration(number) * time.Second / latencyRate)))
		if ctx.Err() != nil {
			break
		}
		if l.due != nil {
			l.due(number)
		}
		due <- number
	}
	close(due)
	group.Wait()
	return context.Cause(ctx)
}

func (l *latencies) commit(ctx context.Context, pool begins, numbers *rand.Rand, topic string, number int) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func(tx pgx.Tx) { _ = tx.Rollback(ctx) }(tx) // nothing after a commit
	written := event(numbers, topic)
	written.ID = strconv.Itoa(number)
	l.keys[number] = written.Key
	if err := outbox.Write(ctx, tx, written); err != nil {
		return err
	}
	l.sent[number] = time.Now()
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	l.committed[number] = time.Now()
	return nil
}

// spans are the sorted latencies of the events after the first skip.
func (l *latencies) spans(skip int) (fromSent, fromDone []time.Duration) {
	for i := skip; i < len(l.sent); i++ {
		acknowledged := l.began.Add(time.Duration(l.acknowledged[i].Load()))
		fromSent = append(fromSent, acknowledged.Sub(l.sent[i]))
		fromDone = append(fromDone, max(0, acknowledged.Sub(l.committed[i])))
	}
	slices.Sort(fromSent)
	slices.Sort(fromDone)
	return fromSent, fromDone
}

// histogram draws sorted spans in steps that grow.
func histogram(sorted []time.Duration) string {
	var b strings.Builder
	low := 0
	for _, edge := range []int{1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 1 << 30} {
		limit := time.Duration(edge) * time.Millisecond
		i, _ := slices.BinarySearch(sorted, limit)
		if count := i - low; count > 0 {
			share := float64(count) / float64(len(sorted))
			label := fmt.Sprintf("< %d ms", edge)
			if edge == 1<<30 {
				label = ">= 1000 ms"
			}
			fmt.Fprintf(&b, "%10s %6d %5.1f%% %s\n", label, count, 100*share, strings.Repeat("#", int(60*share+0.5)))
		}
		if low = i; low == len(sorted) {
			break
		}
	}
	return strings.TrimRight(b.String(), "\n")
}
