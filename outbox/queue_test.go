package outbox_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// named is an event that a test finds again.
func named(id string) holdfast.Event {
	e := good()
	e.ID = id
	return e
}

// changeWith is a batch with a change of table `change` and events behind it.
func changeWith(t *testing.T, events ...holdfast.Event) *pgx.Batch {
	t.Helper()
	batch := &pgx.Batch{}
	batch.Queue("insert into change values (1)")
	if err := outbox.Queue(batch, events...); err != nil {
		t.Fatal(err)
	}
	return batch
}

func setupQueue(t *testing.T) *pgtest.DB {
	t.Helper()
	db := setup(t)
	pgtest.Exec(t, db.Pool, "create table change (x int)")
	return db
}

// thereAre checks how many changes and events were committed.
func thereAre(t *testing.T, db *pgtest.DB, changes, events int64) {
	t.Helper()
	if c, e := pgtest.Count(t, db.Pool, "select count(*) from change"), pgtest.Count(t, db.Pool, "select count(*) from holdfast.event"); c != changes || e != events {
		t.Errorf("%d changes and %d events are committed, want %d and %d", c, e, changes, events)
	}
}

func TestQueue_QueuedEventsAreWrittenInTheirOrderInEveryExecModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := setupQueue(t)
			pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			batch := changeWith(t, named("b"), named("a"))
			if err := outbox.Queue(batch, named("c")); err != nil {
				t.Fatal(err)
			}
			if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return tx.SendBatch(t.Context(), batch).Close() }); err != nil {
				t.Fatal(err)
			}
			rows, err := db.Query(t.Context(), "select id from holdfast.event order by seq")
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil || !slices.Equal(got, []string{"b", "a", "c"}) {
				t.Errorf("the log has %q, %v", got, err)
			}
			thereAre(t, db, 1, 3)
		})
	}
}

func TestQueue_ABatchThatRollsBackLeavesNoEvent(t *testing.T) {
	t.Parallel()
	db := setupQueue(t)
	sentinel := errors.New("no")
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return errors.Join(tx.SendBatch(t.Context(), changeWith(t, good())).Close(), sentinel)
	}); !errors.Is(err, sentinel) {
		t.Fatal(err)
	}
	thereAre(t, db, 0, 0)
}

// A batch outside of a transaction is one of its own, whichever statement fails.
func TestQueue_ABatchThatAPoolSendsIsOneTransaction(t *testing.T) {
	t.Parallel()
	db := setupQueue(t)
	behind := changeWith(t, good())
	behind.Queue("insert into change values (1 / $1::int)", 0)
	before := &pgx.Batch{}
	before.Queue("insert into change values (1 / $1::int)", 0)
	if err := outbox.Queue(before, good()); err != nil {
		t.Fatal(err)
	}
	for _, batch := range []*pgx.Batch{behind, before} {
		if err := db.SendBatch(t.Context(), batch).Close(); err == nil || !strings.Contains(err.Error(), "division by zero") {
			t.Fatal(err)
		}
	}
	thereAre(t, db, 0, 0)
	if err := db.SendBatch(t.Context(), changeWith(t, good())).Close(); err != nil {
		t.Fatal(err)
	}
	thereAre(t, db, 1, 1)
}

func TestQueue_AnEventOutsideTheLimitsQueuesNothing(t *testing.T) {
	t.Parallel()
	batch := &pgx.Batch{}
	bad := good()
	bad.Topic = ""
	err := outbox.Queue(batch, good(), bad)
	var limit *outbox.LimitError
	if !errors.As(err, &limit) || limit.Index != 1 || limit.Field != "topic" {
		t.Errorf("got %v", err)
	}
	if err := outbox.Queue(batch); err != nil {
		t.Errorf("no events: %v", err)
	}
	if batch.Len() != 0 {
		t.Errorf("%d statements are queued", batch.Len())
	}
	if err := outbox.Queue(nil, good()); err == nil || !strings.Contains(err.Error(), "batch is nil") {
		t.Errorf("no batch: %v", err)
	}
}

// What the change waits for is one answer of the server, with its events as without.
func TestQueue_QueuedEventsCostNoRoundTrip(t *testing.T) {
	t.Parallel()
	db := setupQueue(t)
	config, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	var writes atomic.Int64
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return writesCounted{conn, &writes}, err
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	send := func(batch *pgx.Batch) int64 {
		t.Helper()
		before := writes.Load()
		if err := conn.SendBatch(t.Context(), batch).Close(); err != nil {
			t.Fatal(err)
		}
		return writes.Load() - before
	}
	alone := &pgx.Batch{}
	alone.Queue("insert into change values (1)")
	send(alone) // The statements are prepared once a connection.
	send(changeWith(t, good()))
	without, with := send(alone), send(changeWith(t, good()))
	if without != 1 || with != 1 {
		t.Errorf("%d messages are sent without events and %d with them, want 1 and 1", without, with)
	}
	thereAre(t, db, 4, 2)
}

type writesCounted struct {
	net.Conn
	n *atomic.Int64
}

func (c writesCounted) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}

// The cheapest transaction: one round trip in all.
func TestQueue_ABatchWithBeginAndCommitIsATransaction(t *testing.T) {
	t.Parallel()
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := setupQueue(t)
			pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode, c.MaxConns = mode, 1 })
			send := func(change string) error {
				batch := &pgx.Batch{}
				batch.Queue("begin isolation level repeatable read")
				batch.Queue(change)
				if err := outbox.Queue(batch, good(), good()); err != nil {
					t.Fatal(err)
				}
				batch.Queue("commit")
				return pool.SendBatch(t.Context(), batch).Close()
			}
			if err := send("insert into change values (1)"); err != nil {
				t.Fatal(err)
			}
			thereAre(t, db, 1, 2)
			if err := send("insert into change values (1/(select 0))"); err == nil {
				t.Error("a batch with a failing statement: no error")
			}
			thereAre(t, db, 1, 2)
			if err := send("insert into change values (2)"); err != nil { // by the only connection of the pool
				t.Errorf("after a batch that failed: %v", err)
			}
			thereAre(t, db, 2, 4)
		})
	}
}
