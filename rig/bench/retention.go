package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

const (
	retentionBeside  = "retention, Receive beside it against without"
	retentionShare   = "retention, share of the time it works"
	retentionClients = 4
)

var retentionFigures = []string{retentionBeside, retentionShare}

// retentionRows are events that were settled over two weeks. The older half is older than the default window, but by no
// more than half a day, so that retention is not late.
const retentionRows = `
insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, received_at, processed_at, result)
select 'bench', 'orders-service', gen_random_uuid()::text, 'orders', n % 8, n / 8, sha256(int8send(n)), s.at, s.at, 'handled'
  from generate_series($1::bigint, $1::bigint + $3::bigint - 1) n, lateral (
    select now() - case when 2 * n < $2::bigint then interval '7 days 12 hours' - n * interval '12 hours' / ($2::bigint / 2)
                        else (2 * ($2::bigint - n)) * interval '7 days' / $2::bigint end as at) s`

// retentionPositions are past all rows, so that none has to stay.
const retentionPositions = `
insert into holdfast.consumer_position (consumer, topic, partition, position)
select 'bench', 'orders', p, $1::bigint from generate_series(0, 7) p`

// retentionRun is what one run saw.
type retentionRun struct {
	speed   float64 // events received a second
	spans   []time.Duration
	removed int64
	worked  time.Duration
	longest time.Duration
	took    time.Duration
}

// keptByDefault is the default of inbox.Config.Retention.
const keptByDefault = 7 * 24 * time.Hour

// measureRetention lets clients receive events while rows of a large inbox are removed, in turns with runs that remove none
// and with runs that are late because the window is a day: these may take more of the time.
func measureRetention(ctx context.Context, e *env, r *report) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	pool, err := e.pool(ctx, database, 3*retentionClients)
	if err != nil {
		return err
	}
	defer pool.Close()
	r.progress("retention: filling an inbox with %d rows", e.retention)
	for n := 0; n < e.retention; n += chunk {
		if _, err := pool.Exec(ctx, retentionRows, n, e.retention, min(chunk, e.retention-n)); err != nil {
			return fmt.Errorf("fill the inbox: %w", err)
		}
	}
	if _, err := pool.Exec(ctx, retentionPositions, e.retention); err != nil {
		return fmt.Errorf("set the positions: %w", err)
	}
	for _, statement := range []string{"vacuum analyze holdfast.inbox", "checkpoint"} {
		_, _ = pool.Exec(ctx, statement) // the role may lack the right
	}
	if err := inboxSizes(ctx, pool, e.retention, r); err != nil {
		return err
	}

	modes := []time.Duration{0, keptByDefault, 24 * time.Hour} // 0: nothing is removed
	runs := map[time.Duration][]retentionRun{}
	for round := range e.rounds {
		if round%2 == 1 {
			slices.Reverse(modes)
		}
		for _, window := range modes {
			run, err := e.receiveBeside(ctx, pool, window)
			if err != nil {
				return err
			}
			runs[window] = append(runs[window], run)
		}
		without, with, late := runs[0][round], runs[keptByDefault][round], runs[24*time.Hour][round]
		r.progress("retention %d/%d: without %s events/s; beside %s; late %s; removed %d and %d rows, longest turns %v and %v", round+1, e.rounds,
			number(without.speed), number(with.speed), number(late.speed), with.removed, late.removed, with.longest.Round(time.Millisecond), late.longest.Round(time.Millisecond))
	}

	speeds := func(runs []retentionRun) (all []float64) {
		for _, run := range runs {
			all = append(all, run.speed)
		}
		return all
	}
	r.info("retention, Receive without it", median(speeds(runs[0])), "events/s")
	for _, mode := range []struct {
		name   string
		window time.Duration
	}{{"without it", 0}, {"beside it", keptByDefault}, {"beside it when it is late", 24 * time.Hour}} {
		var spans []time.Duration
		for _, run := range runs[mode.window] {
			spans = append(spans, run.spans...)
		}
		slices.Sort(spans)
		for _, q := range []float64{0.5, 0.99} {
			if len(spans) > 0 {
				r.info(fmt.Sprintf("retention, Receive %s, p%g", mode.name, 100*q), spans[int(q*float64(len(spans)-1))].Seconds()*1000, "ms")
			}
		}
	}
	for _, mode := range []struct {
		name   string
		window time.Duration
	}{{"", keptByDefault}, {", late", 24 * time.Hour}} {
		var sum retentionRun
		for _, run := range runs[mode.window] {
			sum.removed, sum.worked, sum.took = sum.removed+run.removed, sum.worked+run.worked, sum.took+run.took
			sum.longest = max(sum.longest, run.longest)
		}
		if sum.removed == 0 {
			return errors.New("retention removed nothing")
		}
		r.info("retention, rows removed"+mode.name, float64(sum.removed)/sum.took.Seconds(), "rows/s")
		r.info("retention, rows removed while it works"+mode.name, float64(sum.removed)/sum.worked.Seconds(), "rows/s")
		r.info("retention, longest turn"+mode.name, sum.longest.Seconds()*1000, "ms")
		if share := 100 * sum.worked.Seconds() / sum.took.Seconds(); mode.name == "" {
			r.goal(retentionShare, share, "%", atMost(5)) // 3, and the last pause is cut off
		} else {
			r.info("retention, share of the time it works"+mode.name, share, "%")
		}
	}
	r.ratio("retention, Receive beside it when it is late, against without", speeds(runs[24*time.Hour]), speeds(runs[0]), "events/s", noGoal)
	r.ratio(retentionBeside, speeds(runs[keptByDefault]), speeds(runs[0]), "events/s", atLeast(0.9))
	return nil
}

// inboxSizes reports the size of a row on disk, in the table and in each index.
func inboxSizes(ctx context.Context, pool *pgxpool.Pool, n int, r *report) error {
	rows, err := pool.Query(ctx, `select c.relname, pg_relation_size(c.oid) from pg_class c
		where c.oid = 'holdfast.inbox'::regclass or c.oid in (select i.indexrelid from pg_index i where i.indrelid = 'holdfast.inbox'::regclass)
		order by c.relkind desc, c.relname`)
	if err != nil {
		return fmt.Errorf("ask for the inbox's size: %w", err)
	}
	var name string
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&name, &size}, func() error {
		r.info("retention, size of "+name, float64(size)/float64(n), "bytes a row")
		return nil
	})
	if err != nil {
		return fmt.Errorf("ask for the inbox's size: %w", err)
	}
	return nil
}

// receiveBeside lets clients receive events for a while, next to a Run with this window; 0 means no Run.
func (e *env) receiveBeside(ctx context.Context, pool *pgxpool.Pool, window time.Duration) (retentionRun, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var run retentionRun
	var mu sync.Mutex
	c := inbox.Config{Consumer: "bench", Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	in, err := inbox.New(pool, c)
	if err != nil {
		return run, err
	}
	in.Handle(eventType, func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	defer stop()
	began := time.Now()
	if window == 0 {
		ended <- nil
	} else {
		// In production the process that removes rows is another one, with handlers of its own.
		c.Retention = window
		c.Observer.OnCleaned = func(rows int, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			run.removed, run.worked, run.longest = run.removed+int64(rows), run.worked+took, max(run.longest, took)
		}
		remover, err := inbox.New(pool, c)
		if err != nil {
			return run, err
		}
		// The pause that the run before this set is over.
		if _, err := pool.Exec(ctx, "update holdfast.retention set next_at = '-infinity'"); err != nil {
			return run, err
		}
		go func() { ended <- remover.Run(running) }()
	}
	var group sync.WaitGroup
	for client := range retentionClients {
		group.Go(func() {
			numbers := random(7, client)
			var spans []time.Duration
			for time.Since(began) < e.receive && ctx.Err() == nil {
				taken := event(numbers, "orders")
				taken.ID, taken.Key = fmt.Sprintf("%d-%d-%d", began.UnixNano(), client, len(spans)), ""
				sent := time.Now()
				if out, err := in.Receive(ctx, taken); err != nil || out != inbox.Handled {
					cancel(fmt.Errorf("receive: %v, %w", out, err))
					return
				}
				spans = append(spans, time.Since(sent))
			}
			mu.Lock()
			defer mu.Unlock()
			run.spans = append(run.spans, spans...)
		})
	}
	group.Wait()
	run.took = time.Since(began)
	run.speed = float64(len(run.spans)) / run.took.Seconds()
	stop()
	err = errors.Join(context.Cause(ctx), <-ended)
	return run, err
}
