package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

// queues are the shapes of stored events whose claims are timed.
var queues = []struct {
	name string
	keys int // 0: each event has its own
}{{"a key for each event, all due", 0}, {"1,000 keys, their heads due", 1000}}

// waitingRows are events that wait in the inbox for their handlers: the first of each key is due, the others are dormant. $3 is
// how many keys there are, and $4 the payload's size.
const waitingRows = `
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, next_at)
select 'bench', 'orders', 'order-' || n % $3::bigint, nextval('holdfast.stored_place'), 'shop/orders', n::text, 'order.placed', now(),
       convert_to('{"note":"' || repeat('x', $4::int - 11) || '"}', 'UTF8'), sha256(int8send(n)),
       case when n < $3::bigint then now() else 'infinity' end
  from generate_series($1::bigint, $1::bigint + $2::bigint - 1) n
 order by n`

const storedResults = `
insert into holdfast.inbox (consumer, source, event_id, topic, hash, result)
select 'bench', 'shop/orders', n::text, 'orders', sha256(int8send(n)), 'stored'
  from generate_series($1::bigint, $1::bigint + $2::bigint - 1) n`

// chunk is how many rows are written at once where a table is filled.
const chunk = 50_000

// growClaims times the claims of stored events, as they are sent, while more and more of them wait.
func growClaims(ctx context.Context, e *env, r *report) ([]curve, error) {
	c := curve{
		Name:    claimByStored,
		Title:   "Claim of stored events against how many wait",
		X:       axis{"stored events", "events"},
		Y:       axis{"a claim that found some, the fastest tenth", "ms"},
		Caption: []string{fmt.Sprintf("One consumer with 8 workers and a handler that does nothing, payloads of %d bytes; a claim leases up to 8 events.", payloadBytes)},
	}
	for i, q := range queues {
		c.Series = append(c.Series, series{Name: q.name})
		for _, n := range e.growth.stored {
			spans, err := e.claimsOf(ctx, r, n, q.keys)
			if err != nil {
				return nil, fmt.Errorf("%d stored events: %w", n, err)
			}
			slices.Sort(spans)
			fast := spans[len(spans)/10] // other work makes most claims slower, and few of the fastest
			c.Series[i].add(float64(n), fast)
			r.progress("%d stored events, %s: the fastest tenth of %d claims within %s ms, the median %s", n, q.name, len(spans), number(fast), number(median(spans)))
		}
	}
	c.extend(sameStep, e.growth.past...)
	return []curve{c}, nil
}

// claimsOf are the times of the claims, in milliseconds, until some events were handled.
func (e *env) claimsOf(ctx context.Context, r *report, n, keys int) ([]float64, error) {
	database, err := e.migrated(ctx)
	if err != nil {
		return nil, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	if keys == 0 {
		keys = n
	}
	r.progress("storing %d events", n)
	if err := e.fill(ctx, database, n, "holdfast.stored, holdfast.inbox", func(pool *pgxpool.Pool, from, rows int) error {
		_, err := pool.Exec(ctx, waitingRows, from, rows, keys, payloadBytes)
		if err == nil {
			_, err = pool.Exec(ctx, storedResults, from, rows)
		}
		return err
	}); err != nil {
		return nil, err
	}
	config, err := e.poolConfig(database)
	if err != nil {
		return nil, err
	}
	var statements timedStatements
	config.MaxConns, config.ConnConfig.Tracer = consumerWorkers+4, &statements
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	want := min(e.growth.claimed, n/2)
	var handled atomic.Int64
	enough := make(chan struct{})
	in, err := inbox.New(pool, inbox.Config{
		Consumer: "bench",
		Logger:   warnings(),
		Observer: inbox.Observer{OnReceive: func(inbox.Received) {
			if handled.Add(1) == int64(want) {
				close(enough)
			}
		}},
	})
	if err != nil {
		return nil, err
	}
	in.Handle(eventType, doNothing)
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- in.Run(running) }()
	if _, err = await(ctx, enough, ended, handled.Load, want); err != nil {
		return nil, err
	}
	stop()
	err = <-ended
	var spans []float64
	for _, span := range statements.of["inbox.claim"] {
		spans = append(spans, milliseconds(span))
	}
	if err == nil && len(spans) == 0 {
		err = errors.New("no claim was seen: the statement has another name")
	}
	return spans, err
}

// fill writes n rows in chunks, and does what autovacuum does within a minute after that.
func (e *env) fill(ctx context.Context, database string, n int, tables string, write func(pool *pgxpool.Pool, from, rows int) error) error {
	pool, err := e.pool(ctx, database, 1, "synchronous_commit", "off")
	if err != nil {
		return err
	}
	defer pool.Close()
	for from := 0; from < n; from += chunk {
		if err := write(pool, from, min(chunk, n-from)); err != nil {
			return fmt.Errorf("fill %s: %w", tables, err)
		}
	}
	if _, err := pool.Exec(ctx, "vacuum analyze "+tables); err != nil {
		return fmt.Errorf("vacuum %s: %w", tables, err)
	}
	_, _ = pool.Exec(ctx, "checkpoint") // the role may lack the right
	return nil
}

func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func doNothing(context.Context, pgx.Tx, holdfast.Event) error { return nil }

// growRetention times turns of retention on larger and larger inboxes.
func growRetention(ctx context.Context, e *env, r *report) ([]curve, error) {
	c := curve{
		Name:    retentionByRows,
		Title:   "Cost of retention against rows of the inbox",
		X:       axis{"rows of the inbox, half of them due", "rows"},
		Y:       axis{"fastest turn of 1,000 rows, with its commit", "ms"},
		Series:  make([]series, 1),
		Caption: []string{fmt.Sprintf("One consumer, rows of 14 days and a retention of 7; %d turns at each size, nothing beside them.", e.growth.turns)},
	}
	for _, n := range e.growth.rows {
		cost, err := e.retentionOf(ctx, r, n)
		if err != nil {
			return nil, fmt.Errorf("%d rows: %w", n, err)
		}
		c.Series[0].add(float64(n), cost)
		r.progress("retention of %d rows: %s ms for 1,000", n, number(cost))
	}
	c.extend(sameStep, e.growth.past...)
	return []curve{c}, nil
}

// retentionOf is what a turn takes to remove 1,000 rows of n, in milliseconds.
func (e *env) retentionOf(ctx context.Context, r *report, n int) (float64, error) {
	database, err := e.migrated(ctx)
	if err != nil {
		return 0, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	r.progress("filling an inbox with %d rows", n)
	if err := e.fill(ctx, database, n, "holdfast.inbox", func(pool *pgxpool.Pool, from, rows int) error {
		_, err := pool.Exec(ctx, retentionRows, from, n, rows)
		return err
	}); err != nil {
		return 0, err
	}
	pool, err := e.pool(ctx, database, consumerWorkers+4)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, retentionPositions, n); err != nil {
		return 0, fmt.Errorf("set the positions: %w", err)
	}
	var costs []float64
	for range e.growth.turns {
		rows, took, err := e.retentionTurn(ctx, pool)
		if err != nil {
			return 0, err
		}
		costs = append(costs, milliseconds(took)*1000/float64(rows))
	}
	return slices.Min(costs), nil // other work only makes a turn slower
}

// retentionTurn lets an inbox that has just started make its first turn, which reads 1,000 rows.
func (e *env) retentionTurn(ctx context.Context, pool *pgxpool.Pool) (rows int, took time.Duration, err error) {
	// The pause after the turn before is over.
	if _, err := pool.Exec(ctx, "update holdfast.retention set next_at = '-infinity'"); err != nil {
		return 0, 0, fmt.Errorf("make retention due: %w", err)
	}
	type turn struct {
		rows int
		took time.Duration
	}
	turns := make(chan turn, 1)
	in, err := inbox.New(pool, inbox.Config{
		Consumer:  "bench",
		Retention: keptByDefault,
		Logger:    warnings(),
		Observer: inbox.Observer{OnCleaned: func(rows int, took time.Duration) {
			select {
			case turns <- turn{rows, took}:
			default: // a second one before we have stopped it
			}
		}},
	})
	if err != nil {
		return 0, 0, err
	}
	in.Handle(eventType, doNothing)
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- in.Run(running) }()
	first, err := await(ctx, turns, ended, func() int64 { return 0 }, 1)
	if err != nil {
		return 0, 0, err
	}
	stop()
	return first.rows, first.took, <-ended
}
