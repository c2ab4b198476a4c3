package sqltx_test

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/contrib/sql/sqltx"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bundle is what a test has: a database with the schema and a table for effects, and one connection to it, so that a connection that is
// not given back shows at once.
type bundle struct {
	*testing.T
	pool *pgxpool.Pool
}

func setup(t *testing.T) bundle {
	t.Helper()
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, "create table effect (id text primary key)")
	return bundle{t, db.PoolOf(t, 1)}
}

type handler = func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error

// inboxOf is an inbox with this handler of the type "t". A failed event is stored at once.
func (b bundle) inboxOf(h handler, change ...func(*inbox.Config)) *inbox.Inbox {
	b.Helper()
	c := inbox.Config{Consumer: "c", ImmediateRetries: -1, Retry: retry.Policy{Attempts: 3, Base: time.Hour}, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	in, err := inbox.New(b.pool, c)
	if err != nil {
		b.Fatal(err)
	}
	in.Handle("t", sqltx.Handler(h))
	return in
}

// receive hands an event to an inbox of this handler.
func (b bundle) receive(id string, h handler, change ...func(*inbox.Config)) inbox.Outcome {
	b.Helper()
	out, err := b.inboxOf(h, change...).Receive(b.Context(), holdfast.Event{ID: id, Topic: "o", Type: "t", Source: "s"})
	if err != nil {
		b.Fatal(err)
	}
	// A connection that was closed leaves the pool a moment later.
	wait.Until(b, "all connections are given back", func() bool { return b.pool.Stat().AcquiredConns() == 0 })
	return out
}

// effects are how many effects with this id committed.
func (b bundle) effects(id string) int64 {
	b.Helper()
	return pgtest.Count(b, b.pool, "select count(*) from effect where id = $1", id)
}

func insert(ctx context.Context, tx *sql.Tx, id string) error {
	_, err := tx.ExecContext(ctx, "insert into effect (id) values ($1)", id)
	return err
}

// lend lends a transaction that is committed unless f fails.
func (b bundle) lend(f func(tx *sql.Tx) error) error {
	b.Helper()
	return pgx.BeginFunc(b.Context(), b.pool, func(tx pgx.Tx) error { return sqltx.Lend(b.Context(), tx, f) })
}
