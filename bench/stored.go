package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

const (
	storedClaims = "stored events beside a snapshot held for an hour: p99 of a claim"
	storedSpeed  = "stored events beside a snapshot held for an hour: handled, against without"

	storedRate = 20 // events a second that were handled in the hour, half of them heads and half followers
	storedFail = 10 // one of so many events fails once
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

// storedRun is what one run saw.
type storedRun struct {
	statements timedStatements
	speed      float64 // events handled a second
	dead       int64   // versions of rows of stored that are superseded or removed, and are still there
	entries    float64 // of the indexes of stored that were read for an event
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
	if err := e.fillStored(ctx, filled, hour+e.due); err != nil {
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
			r.progress("stored %d/%d: snapshot held %v: %s events/s, %d dead versions, %s entries read for an event; %s", round+1, e.rounds, held,
				number(run.speed), run.dead, number(run.entries), run.statements.String())
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
		_, p99, _ := run.statements.spans("inbox.claim")
		return milliseconds(p99)
	}
	for i, name := range []string{"without a snapshot", "beside a snapshot"} {
		for _, statement := range runs[i][0].statements.names() {
			r.info(fmt.Sprintf("stored events %s, %s, p50", name, statement), median(of(runs[i], func(run *storedRun) float64 { p50, _, _ := run.statements.spans(statement); return milliseconds(p50) })), "ms")
			r.info(fmt.Sprintf("stored events %s, %s, p99", name, statement), median(of(runs[i], func(run *storedRun) float64 { _, p99, _ := run.statements.spans(statement); return milliseconds(p99) })), "ms")
		}
		r.info(fmt.Sprintf("stored events %s, dead versions", name), median(of(runs[i], func(run *storedRun) float64 { return float64(run.dead) })), "")
		r.info(fmt.Sprintf("stored events %s, index entries read for an event", name), median(of(runs[i], func(run *storedRun) float64 { return run.entries })), "")
		r.info(fmt.Sprintf("stored events %s, handled", name), median(of(runs[i], speed)), "events/s")
	}
	r.goal(storedClaims, median(of(runs[1], claim)), "ms", atMost(5))
	r.goal(storedSpeed, median(ratios(of(runs[1], speed), of(runs[0], speed))), "x", atLeast(0.8))
	return nil
}

// fillStored stores the events of measureStored.
func (e *env) fillStored(ctx context.Context, database string, due int) error {
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	const chunk = 50_000
	for n := 0; n < e.stored; n += chunk {
		if _, err := pool.Exec(ctx, storedRows, n+1, due, min(chunk, e.stored-n)); err != nil {
			return fmt.Errorf("store events: %w", err)
		}
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
	return run, other.QueryRow(ctx, "select n_dead_tup from pg_stat_user_tables where relname = 'stored'").Scan(&run.dead)
}

// indexEntries is how many entries of the indexes of stored were read so far, by sessions that said so.
func indexEntries(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	err = pool.QueryRow(ctx, "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname = 'stored'").Scan(&n)
	return n, err
}

// handleStored handles all that is due.
func (e *env) handleStored(ctx context.Context, database string, run *storedRun) error {
	config, err := e.poolConfig(database)
	if err != nil {
		return err
	}
	config.MaxConns = consumerWorkers + 4
	config.ConnConfig.Tracer = &run.statements
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	var handled, tries atomic.Int64
	var tenth atomic.Pointer[time.Time]
	done := make(chan time.Time, 1)
	in, err := inbox.New(pool, inbox.Config{
		Consumer: "bench", Retry: retry.Policy{Base: time.Second, Cap: time.Second},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observer: inbox.Observer{OnReceive: func(received inbox.Received) {
			if received.Outcome != inbox.Handled {
				return
			}
			switch now := time.Now(); handled.Add(1) {
			case int64(e.due / 10):
				tenth.Store(&now)
			case int64(e.due - e.due/10): // the last ones were delayed by their failures
				done <- now
			}
		}},
	})
	if err != nil {
		return err
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
	end, err := await(ctx, done, ended, handled.Load, e.due)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	run.speed = float64(e.due-2*(e.due/10)) / end.Sub(*tenth.Load()).Seconds()
	return nil
}

// timedStatements times the statements of a pool by their names. A batch has the name of its second statement: the first takes a lock.
type timedStatements struct {
	mu sync.Mutex
	of map[string][]time.Duration
}

type timedStatement struct {
	name  string
	began time.Time
}

type statementKey struct{}

func statementName(sql string) string {
	if name, found := strings.CutPrefix(strings.SplitN(sql, "\n", 2)[0], "-- "); found {
		return name
	}
	return ""
}

func (s *timedStatements) start(ctx context.Context, sql string) context.Context {
	return context.WithValue(ctx, statementKey{}, timedStatement{statementName(sql), time.Now()})
}

func (s *timedStatements) end(ctx context.Context) {
	t, ok := ctx.Value(statementKey{}).(timedStatement)
	if !ok || t.name == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string][]time.Duration{}
	}
	s.of[t.name] = append(s.of[t.name], time.Since(t.began))
}

func (s *timedStatements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return s.start(ctx, data.SQL)
}

func (s *timedStatements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	s.end(ctx)
}

func (s *timedStatements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	queries := data.Batch.QueuedQueries
	return s.start(ctx, queries[min(1, len(queries)-1)].SQL)
}

func (s *timedStatements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (s *timedStatements) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	s.end(ctx)
}

// names are the statements of the way of a stored event, as far as they were made.
func (s *timedStatements) names() (names []string) {
	for _, name := range []string{"inbox.claim", "inbox.is_head", "inbox.take", "inbox.retry", "inbox.sweep"} {
		if len(s.of[name]) > 0 {
			names = append(names, name)
		}
	}
	return names
}

func (s *timedStatements) spans(name string) (p50, p99, most time.Duration) {
	all := slices.Sorted(slices.Values(s.of[name]))
	if len(all) == 0 {
		return 0, 0, 0
	}
	return all[len(all)/2], all[len(all)*99/100], all[len(all)-1]
}

func (s *timedStatements) String() string {
	var parts []string
	for _, name := range s.names() {
		p50, p99, most := s.spans(name)
		parts = append(parts, fmt.Sprintf("%s %d times, %s, %s and %s ms", name, len(s.of[name]), number(milliseconds(p50)), number(milliseconds(p99)), number(milliseconds(most))))
	}
	return strings.Join(parts, "; ")
}
