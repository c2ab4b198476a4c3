package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast/contrib/franz"
	"github.com/holdfast-go/holdfast/relay"
)

const (
	transactionsDrain   = "drain by franz-go in Kafka's transactions against without"
	transactionsLatency = "p50 at 500 events/s by franz-go in Kafka's transactions against without"
)

var transactionsFigures = []string{transactionsDrain, transactionsLatency}

// measureTransactions compares both publishers of contrib/franz, in turns: what once for readers of committed records costs. What they
// have published is counted as such readers see it.
func measureTransactions(ctx context.Context, e *env, r *report) error {
	marks, dropMarks, err := e.topicWith(ctx, map[string]string{"cleanup.policy": "compact"})
	if err != nil {
		return err
	}
	defer dropMarks()
	for _, m := range []struct {
		figure  string
		measure func(ctx context.Context, e *env, r *report, marks string) error
	}{{transactionsDrain, measureTransactionsDrain}, {transactionsLatency, measureTransactionsLatency}} {
		if selected(e.options.only, []string{m.figure}) {
			err = errors.Join(err, m.measure(ctx, e, r, marks))
		}
	}
	return err
}

func measureTransactionsDrain(ctx context.Context, e *env, r *report, marks string) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	without := franzRelay
	without.count = (*env).committed
	in := contestant{"in transactions", ".transactions", func(e *env, ctx context.Context, database string, events int) (float64, error) {
		return e.drainWith(ctx, transactionalRelay(marks), database, 1, 0, events)
	}, (*env).committed}
	if err := e.drainFirst(ctx, r, topic, in); err != nil {
		return err
	}
	plain, transactional, err := e.drainInTurns(ctx, r, "transactions", topic, usual(topic), e.drain, without, in)
	if err != nil {
		return err
	}
	plain.report(r, "drain, by franz-go without transactions")
	transactional.report(r, "drain, by franz-go in transactions")
	r.ratio(transactionsDrain, transactional.speed, plain.speed, "events/s", noGoal)
	return nil
}

// measureTransactionsLatency measures the time from sending COMMIT to the acknowledgement. In transactions that is the answer to Kafka's
// commit, after which readers of committed records see the event.
func measureTransactionsLatency(ctx context.Context, e *env, r *report, marks string) error {
	type quantiles struct{ p50, p99 []float64 }
	var without, in quantiles
	for round := range e.rounds {
		for _, w := range []struct {
			name     string
			newRelay newRelayFunc
			to       *quantiles
		}{{"without transactions", newFranzRelay, &without}, {"in transactions", transactionalRelay(marks), &in}} {
			spans, err := e.committedSpans(ctx, r, w.name, w.newRelay)
			if err != nil {
				return err
			}
			p50, p99 := milliseconds(quantile(spans, 0.5)), milliseconds(quantile(spans, 0.99))
			r.progress("transactions %d/%d: %s: p50 %s, p99 %s ms", round+1, e.rounds, w.name, number(p50), number(p99))
			w.to.p50, w.to.p99 = append(w.to.p50, p50), append(w.to.p99, p99)
		}
	}
	r.info("p50 at 500 events/s, by franz-go without transactions", median(without.p50), "ms")
	r.info("p50 at 500 events/s, by franz-go in transactions", median(in.p50), "ms")
	r.info("p99 at 500 events/s, by franz-go without transactions", median(without.p99), "ms")
	r.info("p99 at 500 events/s, by franz-go in transactions", median(in.p99), "ms")
	r.ratio(transactionsLatency, in.p50, without.p50, "ms", noGoal)
	return nil
}

// committedSpans is latencySpans of a relay that newRelay makes, and counts what readers of committed records get.
func (e *env) committedSpans(ctx context.Context, r *report, who string, newRelay newRelayFunc) ([]time.Duration, error) {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer drop()
	warmUp := latencyRate * 2
	n := warmUp + int(e.latency.Seconds()*latencyRate)
	l := newLatencies(e, n)
	l.newRelay = newRelay
	if err := e.exactlyBy(ctx, r, (*env).committed, topic, n, who, func() error { return l.measure(ctx, e, database, topic) }); err != nil {
		return nil, err
	}
	return l.spans(warmUp), nil
}

// drainFirst is a drain of a small backlog that is not measured: at the first transactions a new broker makes its own topic of them, and
// takes 100 ms and more a request until its JVM has compiled the path.
func (e *env) drainFirst(ctx context.Context, r *report, topic string, who contestant) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	events := e.drain / 10
	if err := e.writeBacklog(ctx, database, topic, events); err != nil {
		return err
	}
	return e.drainCopy(ctx, r, database, topic, who, events, &samples{}, 0)
}

// transactionalRelay is newFranzRelay with the transactional publisher. Each database has a transactional id of its own: the marks of
// another copy name the same events.
func transactionalRelay(marks string) newRelayFunc {
	return func(pool *pgxpool.Pool, brokers []string, o relay.Observer) (*relay.Relay, func(), error) {
		publisher, err := franz.NewTransactionalPublisher(franzOptions(brokers),
			franz.TransactionalConfig{TransactionalID: pool.Config().ConnConfig.Database, MarksTopic: marks})
		if err != nil {
			return nil, nil, err
		}
		r, err := newRelayBy(pool, publisher, o)
		return r, publisher.Close, err
	}
}

// committed counts the records of a topic that a reader of committed records gets. The end offsets count the markers of transactions
// too, and what was aborted.
func (e *env) committed(ctx context.Context, topic string) (records int64, err error) {
	ends, err := e.ends(ctx, topic)
	if err != nil {
		return 0, err
	}
	from := map[int32]kgo.Offset{}
	for p, end := range ends {
		if end > 0 {
			from[int32(p)] = kgo.NewOffset().At(0)
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(e.kafka.Brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, stalled)
	defer cancel()
	for len(from) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, fmt.Errorf("read the committed records of %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end := ends[int(r.Partition)]
			if r.Offset < end && !r.Attrs.IsControl() {
				records++
			}
			if r.Offset >= end-1 {
				delete(from, r.Partition)
			}
		})
	}
	return records, nil
}
