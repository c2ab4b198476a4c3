package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
)

// load is what the writers of a test write, and how.
type load struct {
	writers, keys int
	perSecond     int  // transactions a second, all writers together; they do not catch up
	outages       bool // errors of the database are expected
	seed          uint64
}

// writing tells of writers at work. What they committed stands in the table written; these are only figures.
type writing struct {
	committed, rolledBack, unknown atomic.Int64 // transactions
	wg                             sync.WaitGroup

	mu sync.Mutex
	ok []string // ids whose COMMIT was answered
}

var errAbort = errors.New("the change failed")

// write runs writers until ctx is done: transactions on one or two keys, under row locks taken in order, with
// savepoints, rolled-back savepoints, rollbacks and pauses everywhere. Their xids are often drawn long before their
// locks, so that they commit in another order than they were numbered in. One transaction is open from beginning to
// end, and two more take turns.
func (l load) write(ctx context.Context, p *path) *writing {
	p.Helper()
	if l.seed == 0 {
		l.seed = seed.New(p)
	}
	pgtest.Exec(p, p.Db, "insert into aggregate select 'k' || g from generate_series(0, $1::int - 1) g", l.keys)
	pool := p.Pool(l.writers + 3)
	w := &writing{}
	for i := range l.writers {
		w.wg.Go(func() {
			rng := rand.New(rand.NewPCG(l.seed, uint64(i)))
			pace := time.NewTicker(time.Second * time.Duration(l.writers) / time.Duration(l.perSecond))
			defer pace.Stop()
			for ctx.Err() == nil {
				ids, err := l.transaction(p, pool, rng)
				if !w.note(p, ids, err, l.outages) {
					return
				}
				select {
				case <-pace.C:
				case <-ctx.Done():
				}
			}
		})
	}
	held := func(key string, number int64, hold <-chan time.Time) bool {
		e := p.Event(key, number)
		err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
			if err := p.Write(tx, number, e); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
			case <-hold:
			}
			return nil
		})
		return w.note(p, []string{e.ID}, err, l.outages)
	}
	w.wg.Go(func() { held("open all the time", 1, nil) })
	for i := range 2 {
		w.wg.Go(func() {
			number := int64(1)
			for ctx.Err() == nil {
				if !held(fmt.Sprint("long ", i), number, time.After(700*time.Millisecond)) {
					return
				}
				number++ // also after a rollback: the order has a gap then, and is one still
			}
		})
	}
	return w
}

// note counts a transaction. It is false when the writer should give up.
func (w *writing) note(t testing.TB, ids []string, err error, outages bool) bool {
	var failed *commitError
	switch {
	case err == nil:
		w.committed.Add(1)
		w.mu.Lock()
		w.ok = append(w.ok, ids...)
		w.mu.Unlock()
	case errors.Is(err, errAbort):
		w.rolledBack.Add(1)
	case !outages:
		t.Errorf("writer: %v", err)
		return false
	case errors.As(err, &failed):
		w.unknown.Add(1)
	default:
		w.rolledBack.Add(1)
		time.Sleep(20 * time.Millisecond) // sleep: the database is away: do not spin
	}
	return true
}

// kept checks the database's own word: what it said was committed is there.
func (w *writing) kept(p *path) {
	p.Helper()
	if n := p.Count("select count(*) from unnest($1::text[]) id where not exists (select 1 from written w where w.id = id)", w.ok); n > 0 {
		p.Errorf("%d of %d events whose commit was answered are not in the database", n, len(w.ok))
	}
}

func (w *writing) String() string {
	return fmt.Sprintf("transactions: %d committed, %d rolled back, %d unknown", w.committed.Load(), w.rolledBack.Load(), w.unknown.Load())
}

type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// transaction is one change and its events. It returns the ids of the events that should be there if it committed.
func (l load) transaction(p *path, pool *pgxpool.Pool, rng *rand.Rand) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	if rng.IntN(2) == 0 {                   // an early xid
		if _, err := tx.Exec(ctx, "insert into other values (1)"); err != nil {
			return nil, err
		}
		pause(rng, 6)
	}
	picks := []int{rng.IntN(l.keys)}
	if other := rng.IntN(l.keys); other != picks[0] && rng.IntN(3) == 0 {
		picks = append(picks, other)
	}
	slices.Sort(picks) // one order for all, so that writers cannot deadlock
	for _, k := range picks {
		key := fmt.Sprint("k", k)
		if rng.IntN(4) == 0 {
			if err := outbox.Lock(ctx, tx, key); err != nil {
				return nil, err
			}
		}
		for range 1 + rng.IntN(2) {
			var number int64
			if err := tx.QueryRow(ctx, "update aggregate set n = n + 1 where key = $1 returning n", key).Scan(&number); err != nil {
				return nil, err
			}
			pause(rng, 3)
			e := p.Event(key, number)
			if rng.IntN(4) == 0 { // under a savepoint, after one that is rolled back
				sp, err := tx.Begin(ctx)
				if err != nil {
					return nil, err
				}
				if err := p.Write(sp, number, p.Event(key, number)); err != nil {
					return nil, err
				}
				if err := sp.Rollback(ctx); err != nil {
					return nil, err
				}
				err = pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error { return p.Write(sp, number, e) })
				if err != nil {
					return nil, err
				}
			} else if err := p.Write(tx, number, e); err != nil {
				return nil, err
			}
			ids = append(ids, e.ID)
		}
	}
	pause(rng, 5)
	if rng.IntN(10) == 0 {
		if err := tx.Rollback(ctx); err != nil {
			return nil, err
		}
		return nil, errAbort
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, &commitError{err}
	}
	return ids, nil
}

// pause is a moment in which others overtake.
func pause(rng *rand.Rand, ms int) {
	if rng.IntN(3) == 0 {
		// sleep: transactions of drawn lengths overtake each other at a real Postgres
		time.Sleep(time.Duration(rng.IntN(ms*1000)) * time.Microsecond)
	}
}
