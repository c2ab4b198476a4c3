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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// latencyRate is how many events a second are committed where a measurement is about something else.
const latencyRate = 500

// latencyRates are the loads of measureLatency, in events a second.
var latencyRates = []int{500, 2000, 5000}

// The goals of a quantile against that of the pair in pair.go.
var latencyGoals = []struct {
	name  string
	share float64
	goal  goal
}{{"p50", 0.50, atMost(2)}, {"p99", 0.99, atMost(3)}}

func latencyFigure(rate int, quantile string) string {
	return fmt.Sprintf("commit to acknowledgement at %d events/s, %s against an insert-and-produce pair", rate, quantile)
}

// wokenFigure is latencyFigure of a relay in the process of the writer.
func wokenFigure(rate int, quantile string) string {
	return latencyFigure(rate, quantile) + ", with Wake after each commit"
}

var latencyFigures = func() (names []string) {
	for _, rate := range latencyRates {
		for _, q := range latencyGoals {
			names = append(names, latencyFigure(rate, q.name))
		}
	}
	return names
}()

// measureLatency commits transactions of one event, evenly. For each it measures the time from sending COMMIT to the broker's
// acknowledgement, so the commit's own wait for the disk is included. Nobody calls Relay.Wake, unless the turn is one of a relay
// that is embedded in the service. In turns with these, a pair of insert and produce does what can be done at best.
func measureLatency(ctx context.Context, e *env, r *report) error {
	for _, rate := range latencyRates {
		if e.options.brief() && rate != latencyRate {
			continue
		}
		if !selected(e.options.only, []string{latencyFigure(rate, "p50"), latencyFigure(rate, "p99")}) {
			continue
		}
		if err := e.latencyAt(ctx, r, rate); err != nil {
			return fmt.Errorf("%d events/s: %w", rate, err)
		}
	}
	return nil
}

// latencyAt is measureLatency at one load.
func (e *env) latencyAt(ctx context.Context, r *report, rate int) error {
	var of [ways]map[string][]float64
	for w := range of {
		of[w] = map[string][]float64{}
	}
	var last []time.Duration
	for round := range e.rounds {
		for turn := range ways {
			w := (turn + way(round)) % ways
			spans, err := e.latencySpans(ctx, r, rate, payloadBytes, w)
			if err != nil {
				return err
			}
			if w == polling {
				last = spans
			}
			for _, q := range latencyGoals {
				of[w][q.name] = append(of[w][q.name], milliseconds(quantile(spans, q.share)))
			}
		}
		at := func(w way) string { return number(of[w]["p50"][round]) + " and " + number(of[w]["p99"][round]) }
		r.progress("latency at %d/s, %d/%d: p50 and p99 %s ms, with Wake %s, the pair's %s", rate, round+1, e.rounds, at(polling), at(woken), at(pair))
	}
	for _, q := range latencyGoals {
		r.info(fmt.Sprintf("commit to acknowledgement at %d events/s, %s", rate, q.name), median(of[polling][q.name]), "ms")
		r.info("the same of the pair", median(of[pair][q.name]), "ms")
		r.ratio(latencyFigure(rate, q.name), of[polling][q.name], of[pair][q.name], "ms", q.goal)
		r.ratio(wokenFigure(rate, q.name), of[woken][q.name], of[pair][q.name], "ms", q.goal)
	}
	r.note("Commit to acknowledgement at %d events/s, %d events:\n%s", rate, len(last), histogram(last))
	return nil
}

// way is how an event gets from its COMMIT to Kafka.
type way int

const (
	polling way = iota // a relay looks at the log now and then
	woken              // a relay in the process of the writer, which calls Wake after each commit
	pair               // the writer sends it
	ways

	withFranz way = -1 // polling, by the publisher of contrib/franz
)

func (w way) String() string {
	if w == withFranz {
		return byFranz
	}
	return [...]string{"relay", "woken relay", "pair"}[w]
}

// latencySpans is one run: the sorted latencies.
func (e *env) latencySpans(ctx context.Context, r *report, rate, payload int, w way) ([]time.Duration, error) {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer drop()
	warmUp := rate * 2 // a broker that has just started takes 100 ms a request, until its JVM has compiled the path
	n := warmUp + int(e.latency.Seconds()*float64(rate))
	l := newLatencies(e, n)
	l.rate, l.payload = rate, payload
	l.wakes = w == woken
	if w == withFranz {
		l.newRelay = newFranzRelay
	}
	measure := l.measure
	if w == pair {
		measure = l.measurePair
	}
	if err := e.exactly(ctx, r, topic, n, w.String(), func() error { return measure(ctx, e, database, topic) }); err != nil {
		return nil, err
	}
	return l.spans(warmUp), nil
}

// quantile is a quantile of sorted spans.
func quantile(sorted []time.Duration, share float64) time.Duration {
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

// latencies are the moments of every event, by its number, which is its id.
type latencies struct {
	began        time.Time
	sent         []time.Time    // COMMIT was sent
	acknowledged []atomic.Int64 // nanoseconds after began
	keys         []string

	rate       int                // events a second
	payload    int                // bytes of each
	connection kafkago.Connection // of the relay
	due        func(number int)   // called when the time of an event has come; it may be nil
	wakes      bool               // the writer calls Relay.Wake after each commit
	newRelay   newRelayFunc       // in place of newRelayOn, if it is not nil
}

func newLatencies(e *env, n int) *latencies {
	return &latencies{
		connection:   kafkago.Connection{Brokers: e.kafka.Brokers},
		rate:         latencyRate,
		payload:      payloadBytes,
		sent:         make([]time.Time, n),
		acknowledged: make([]atomic.Int64, n),
		keys:         make([]string, n),
		began:        time.Now(),
	}
}

func (l *latencies) measure(ctx context.Context, e *env, database, topic string) error {
	pool, err := e.pool(ctx, database, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	var published atomic.Int64
	all := make(chan struct{})
	newRelay := l.newRelay
	if newRelay == nil {
		newRelay = func(pool *pgxpool.Pool, _ []string, o relay.Observer) (*relay.Relay, func(), error) {
			return newRelayOn(pool, l.connection, o)
		}
	}
	rel, closeIdle, err := newRelay(pool, e.kafka.Brokers, relay.Observer{OnPublished: func(_ int, events []holdfast.Event) {
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
	commit := l.commit
	if l.wakes {
		commit = func(ctx context.Context, pool begins, numbers *rand.Rand, topic string, number int) error {
			defer rel.Wake()
			return l.commit(ctx, pool, numbers, topic, number)
		}
	}
	err = l.write(ctx, e, database, topic, commit)
	if err == nil {
		_, err = await(ctx, all, ended, published.Load, len(l.sent))
	}
	stop()
	if err == nil {
		err = <-ended
	}
	return err
}

// write has each event committed at its time, whether or not the earlier ones have ended: a slow moment must not reduce the
// load.
func (l *latencies) write(ctx context.Context, e *env, database, topic string, commit func(context.Context, begins, *rand.Rand, string, int) error) error {
	writers := 16
	if l.rate > latencyRate {
		writers = 64
	}
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
				if err := commit(ctx, pool, numbers, topic, number); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	start := time.Now().Add(500 * time.Millisecond) // the relay claims its lanes meanwhile
	for number := range l.sent {
		time.Sleep(time.Until(start.Add(time.Duration(number) * time.Second / time.Duration(l.rate))))
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
	of := usual(topic)
	of.payload = l.payload
	written := of.event(numbers)
	written.ID = strconv.Itoa(number)
	l.keys[number] = written.Key
	if err := outbox.Write(ctx, tx, written); err != nil {
		return err
	}
	l.sent[number] = time.Now()
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// spans are the sorted latencies of the events after the first skip.
func (l *latencies) spans(skip int) (spans []time.Duration) {
	for i := skip; i < len(l.sent); i++ {
		spans = append(spans, l.began.Add(time.Duration(l.acknowledged[i].Load())).Sub(l.sent[i]))
	}
	slices.Sort(spans)
	return spans
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
