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
	"github.com/holdfast-go/holdfast/retry"
)

const (
	storedClaims = "stored events beside a snapshot held for an hour: p99 of a claim that finds some, 100 heads due a second"
	storedSpeed  = "stored events beside a snapshot held for an hour: handled, against without"

	storedPace = 100 // heads that come due a second while claims are timed
	storedRate = 20  // events a second that were handled in the hour, half of them heads and half followers
	storedFail = 10  // one of so many events fails once
)

var storedFigures = []string{storedClaims, storedSpeed}

// storedRows are events as the inbox stores them. The first $2 of them are due, since some time within the last hour: heads with
// one follower each. The others are in queues of twenty, whose heads come due within the next six hours. Followers are dormant.
const storedRows = `
with event as (
  select n, case when n <= $2::bigint then 'due ' || (n + 1) / 2 else 'later ' || n / 20 end as key,
         case when n <= $2::bigint then n % 2 = 1 else n % 20 = 0 end as head
    from generate_series($1::bigint, $1::bigint + $3::bigint - 1) n
), recorded as (
  insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, result)
  select 'bench', 'shop/orders', 'event ' || e.n, 'orders', e.n % 8, e.n, sha256(int8send(e.n)), 'stored' from event e)
insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, partition, "offset", attempts, next_at, errors, failed_at)
select 'bench', 'orders', e.key, e.n, 'shop/orders', 'event ' || e.n, 'order.placed', now(), convert_to(repeat(md5(e.n::text), 9), 'UTF8'), sha256(int8send(e.n)), e.n % 8, e.n,
       case when e.head then 1 else 0 end,
       case when not e.head then 'infinity'
            when e.n <= $2::bigint then now() - interval '1 hour' + e.n * interval '1 hour' / $2::bigint
            else now() + interval '10 minutes' + (e.n % 1000) * interval '20 seconds' end,
       case when e.head then '{a failure}'::text[] else '{}' end, case when e.head then now() end
  from event e`

// storedHour is what the inbox's statements do with the first $1 events of storedRows, a statement here for as many events as there
// are. Each row is changed by its claim (or, of a follower, by that of the next event), and removed. One of ten is returned and claimed
// once more.
var storedHour = []string{
	"update holdfast.stored set lease_token = gen_random_uuid(), lease_until = now() + interval '65 seconds', attempts = attempts + 1 where place <= $1 and place % 2 = 1",
	"update holdfast.stored set lease_token = null, lease_until = '-infinity', next_at = next_at + interval '1 second', errors = errors || '{another}'::text[] where place <= $1 and place % 20 = 1",
	"update holdfast.stored set lease_token = gen_random_uuid(), lease_until = now() + interval '65 seconds', attempts = attempts + 1 where place <= $1 and place % 20 = 1",
	"delete from holdfast.stored where place <= $1 and place % 2 = 1",
	"update holdfast.stored f set next_at = now() - interval '1 hour' + f.place * interval '1 hour' / $1, lease_token = gen_random_uuid(), lease_until = now() + interval '65 seconds', attempts = 1 where place <= $1",
	"delete from holdfast.stored where place <= $1",
	`update holdfast.inbox set processed_at = now(), result = 'handled' where consumer = 'bench' and "offset" <= $1`,
}

// storedComesDue lets heads come due one after the other, $3 a second, those of the events from $1 to $2. storedWaits has them wait before.
const (
	storedWaits    = "update holdfast.stored set next_at = now() + interval '6 hours' where place > $1 and place <= $2 and place % 2 = 1"
	storedComesDue = `
update holdfast.stored set next_at = now() + interval '2 seconds' + (place - $1) / 2 * interval '1 second' / $3::int
 where place > $1 and place <= $2 and place % 2 = 1`
)

// storedRun is what one run saw.
type storedRun struct {
	statements timedStatements // while all is handled that is due
	paced      timedStatements // while storedPace heads come due a second
	speed      float64         // events handled a second
	dead       int64           // versions of rows of stored that are superseded or removed, and are still there
	entries    float64         // of the indexes of stored that were read for an event
}

// measureStored handles stored events, among many more, with and without another session's snapshot that was held for an hour
// before. What that hour left is made by storedHour: at storedRate, 72,000 events, of which each leaves two versions of its row, and
// one of twenty two more. Without the snapshot vacuum has been there.
func measureStored(ctx context.Context, e *env, r *report) error {
	hour := storedRate * int(e.hour.Seconds())
	r.progress("stored: filling with %d events, of which %d are handled in the hour and %d are due then", e.stored, hour, e.due)
	filled, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), filled)
	if err := e.fillStored(ctx, filled, hour+e.due, e.storedPaced()); err != nil {
		return err
	}
	var runs [2][]*storedRun
	for round := range e.rounds {
		for i := range runs {
			held := (i+round)%2 == 1
			run, err := e.workStored(ctx, filled, hour, held)
			if err != nil {
				return err
			}
			which := 0
			if held {
				which = 1
			}
			runs[which] = append(runs[which], run)
			r.progress("stored %d/%d: snapshot held %v: %s events/s, %d dead versions, %s entries read for an event; %s; at %d/s: %s", round+1, e.rounds, held,
				number(run.speed), run.dead, number(run.entries), run.statements.String(), storedPace, run.paced.String())
		}
	}
	of := func(runs []*storedRun, value func(*storedRun) float64) (values []float64) {
		for _, run := range runs {
			values = append(values, value(run))
		}
		return values
	}
	speed := func(run *storedRun) float64 { return run.speed }
	claim := func(run *storedRun) float64 {
		_, p99, _ := run.paced.spans("inbox.claim")
		return milliseconds(p99)
	}
	for i, name := range []string{"without a snapshot", "beside a snapshot"} {
		for _, statement := range runs[i][0].statements.names() {
			r.info(fmt.Sprintf("stored events %s, %s, p50", name, statement), median(of(runs[i], func(run *storedRun) float64 { p50, _, _ := run.statements.spans(statement); return milliseconds(p50) })), "ms")
			r.info(fmt.Sprintf("stored events %s, %s, p99", name, statement), median(of(runs[i], func(run *storedRun) float64 { _, p99, _ := run.statements.spans(statement); return milliseconds(p99) })), "ms")
		}
		r.info(fmt.Sprintf("stored events %s, inbox.claim at %d/s, p50", name, storedPace), median(of(runs[i], func(run *storedRun) float64 { p50, _, _ := run.paced.spans("inbox.claim"); return milliseconds(p50) })), "ms")
		r.info(fmt.Sprintf("stored events %s, inbox.claim at %d/s, p99", name, storedPace), median(of(runs[i], claim)), "ms")
		r.info(fmt.Sprintf("stored events %s, dead versions", name), median(of(runs[i], func(run *storedRun) float64 { return float64(run.dead) })), "")
		r.info(fmt.Sprintf("stored events %s, index entries read for an event", name), median(of(runs[i], func(run *storedRun) float64 { return run.entries })), "")
		r.info(fmt.Sprintf("stored events %s, handled", name), median(of(runs[i], speed)), "events/s")
	}
	r.goal(storedClaims, median(of(runs[1], claim)), "ms", atMost(5))
	r.ratio(storedSpeed, of(runs[1], speed), of(runs[0], speed), "events/s", atLeast(0.8))
	return nil
}

// fillStored stores the events of measureStored.
func (e *env) fillStored(ctx context.Context, database string, due, paced int) error {
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	const chunk = 50_000
	for n := 0; n < e.stored; n += chunk {
		if _, err := pool.Exec(ctx, storedRows, n+1, due+paced, min(chunk, e.stored-n)); err != nil {
			return fmt.Errorf("store events: %w", err)
		}
	}
	if _, err := pool.Exec(ctx, storedWaits, due, due+paced); err != nil {
		return fmt.Errorf("store events: %w", err)
	}
	for _, statement := range []string{"vacuum (analyze) holdfast.stored", "vacuum (analyze) holdfast.inbox", "select setval('holdfast.stored_place', 10000000)"} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("store events: %w", err)
		}
	}
	return nil
}

// workStored lets the hour pass in a copy of a database, and then handles what is due, and times that.
func (e *env) workStored(ctx context.Context, filled string, hour int, held bool) (run *storedRun, err error) {
	database, err := e.database(ctx, filled)
	if err != nil {
		return nil, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	other, err := e.pool(ctx, database, 2)
	if err != nil {
		return nil, err
	}
	defer other.Close()
	if held {
		tx, err := other.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			return nil, err
		}
		defer tx.Rollback(context.WithoutCancel(ctx))
		if _, err := tx.Exec(ctx, "select from holdfast.stored limit 1"); err != nil {
			return nil, fmt.Errorf("hold a snapshot: %w", err)
		}
	}
	for _, statement := range storedHour {
		if _, err := other.Exec(ctx, statement, hour); err != nil {
			return nil, fmt.Errorf("let the hour pass: %w", err)
		}
	}
	for _, statement := range []string{"vacuum (analyze) holdfast.stored", "vacuum (analyze) holdfast.inbox", "checkpoint"} { // as autovacuum would
		_, _ = other.Exec(ctx, statement) // the role may lack the right
	}
	run = &storedRun{}
	before, err := indexEntries(ctx, other)
	if err != nil {
		return nil, err
	}
	if err := e.handleStored(ctx, database, run); err != nil {
		return nil, err
	}
	after, err := indexEntries(ctx, other)
	if err != nil {
		return nil, err
	}
	run.entries = float64(after-before) / float64(e.due)
	if err := e.paceStored(ctx, database, hour, other, &run.paced); err != nil {
		return nil, err
	}
	return run, other.QueryRow(ctx, "select n_dead_tup from pg_stat_user_tables where relname = 'stored'").Scan(&run.dead)
}

// indexEntries is how many entries of the indexes of stored were read so far, by sessions that said so.
func indexEntries(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	err = pool.QueryRow(ctx, "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname = 'stored'").Scan(&n)
	return n, err
}

// handleStored handles all that is due.
func (e *env) handleStored(ctx context.Context, database string, run *storedRun) error {
	first, last := e.due/10, e.due-e.due/10 // the last ones were delayed by their failures
	span, err := e.runStored(ctx, database, &run.statements, first, last)
	run.speed = float64(last-first) / span.Seconds()
	return err
}

// paceStored lets events come due one after the other, and handles them as they do. The machine is not busy then: what a claim takes is
// its own.
func (e *env) paceStored(ctx context.Context, database string, hour int, other *pgxpool.Pool, statements *timedStatements) error {
	from := hour + e.due
	if _, err := other.Exec(ctx, storedComesDue, from, from+e.storedPaced(), storedPace); err != nil {
		return fmt.Errorf("let events come due: %w", err)
	}
	_, err := e.runStored(ctx, database, statements, e.storedPaced()/4, e.storedPaced())
	return err
}

// storedPaced is how many events come due while claims are timed: heads, with a follower each.
func (e *env) storedPaced() int { return 2 * storedPace * int(e.paced.Seconds()) }

// runStored handles what is due until so many are handled, and returns how long it took from one number to the other. It times the
// statements from then on, when most connections have their plans.
func (e *env) runStored(ctx context.Context, database string, statements *timedStatements, from, to int) (time.Duration, error) {
	config, err := e.poolConfig(database)
	if err != nil {
		return 0, err
	}
	config.MaxConns = consumerWorkers + 4
	config.ConnConfig.Tracer = statements
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	var handled, tries atomic.Int64
	var begun atomic.Pointer[time.Time]
	done := make(chan time.Time, 1)
	in, err := inbox.New(pool, inbox.Config{
		Consumer: "bench", Retry: retry.Policy{Base: time.Second, Cap: time.Second},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observer: inbox.Observer{OnReceive: func(received inbox.Received) {
			if received.Outcome != inbox.Handled {
				return
			}
			switch now := time.Now(); handled.Add(1) {
			case int64(from):
				begun.Store(&now)
				statements.forget()
			case int64(to):
				done <- now
			}
		}},
	})
	if err != nil {
		return 0, err
	}
	in.Handle(eventType, func(context.Context, pgx.Tx, holdfast.Event) error {
		if tries.Add(1)%storedFail == 0 {
			return errors.New("one that succeeds the next time")
		}
		return nil
	})
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() {
		err := in.Run(running)
		ended <- err
		ended <- err
	}()
	end, err := await(ctx, done, ended, handled.Load, to)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return 0, err
	}
	return end.Sub(*begun.Load()), nil
}
