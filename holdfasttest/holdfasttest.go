// Package holdfasttest helps you test services that use holdfast. It runs a handler on one event, reports what was
// written to the outbox, compares it with a golden file, waits until everything is idle, makes databases for tests, and has a Kafka in
// memory and a clock that stands.
//
//	db := holdfasttest.Database(t, os.Getenv("TEST_DATABASE_URL")) // a new one, migrated, dropped after the test
//	tx := holdfasttest.Begin(t, db)                                // rolled back after the test
//
//	event := holdfast.Event{Type: "order.placed", Key: "alice", Payload: []byte(`{"cents": 1200}`)}
//	outcome, err := holdfasttest.Handle(t, tx, billing, event)
//	if outcome != inbox.Handled || err != nil {
//		t.Fatalf("got %s, %v", outcome, err)
//	}
//	holdfasttest.RequireWritten(t, tx, holdfast.Event{Type: "invoice.sent", Key: "alice"})
//
// Functions with a testing.TB use its Context and fail the test on any error of their own: call them from the test's
// goroutine. WaitIdle is also useful elsewhere, so it takes a context and returns an error. Postgres is never a mock: the
// package needs one for your tests, and does not start one. It links what packages inbox and relay link.
package holdfasttest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

// cleanupTimeout bounds the cleanup after a test, whose context has ended by then.
const cleanupTimeout = 30 * time.Second

// Database makes a database for this test on the server at url, creates holdfast's schema in it, and drops it when the
// test ends. url is anything that pgxpool.ParseConfig reads. Its user must be allowed to create databases; the database
// it names is used only to create and drop the others. Parallel tests do not see each other's events, and each starts
// with an empty log. It takes some tenths of a second.
//
// If your tests have a database already, call holdfast.Migrate on it instead.
func Database(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	if url == "" {
		t.Fatalf("url is empty: it must be the address of a database server where tests may create databases")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("read url of the database server: %v", err)
	}
	admin := config.ConnConfig.Copy()
	config.ConnConfig.Database = "holdfasttest_" + strings.ToLower(rand.Text())
	name := pgx.Identifier{config.ConnConfig.Database}.Sanitize()
	if err := execOn(t.Context(), admin, "create database "+name); err != nil {
		t.Fatalf("create the test's database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := execOn(ctx, admin, "drop database if exists "+name+" with (force)"); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("open the test's pool: %v", err)
	}
	t.Cleanup(func() {
		// Close waits until every connection was released. A connection that a test kept must not block the test.
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(cleanupTimeout):
			t.Errorf("%d connections were never released to the test's pool", pool.Stat().AcquiredConns())
		}
	})
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatalf("%v", err)
	}
	return pool
}

func execOn(ctx context.Context, c *pgx.ConnConfig, sql string) error {
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

// Begin begins a transaction that is rolled back when the test ends, unless the test ended it before.
func Begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	// The inbox begins its transactions the same way, whatever the database's default is.
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatalf("begin the test's transaction: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // on an error it has ended already, or its connection is lost
	})
	return tx
}

// Handle receives e and runs its handler in tx, as in.ReceiveTx does, and returns the handler's error unchanged. The
// transaction belongs to the test: look at what the handler wrote, then roll back (Begin does) or commit. Steps (inbox.Step) are recorded beside
// it, through the inbox's pool: an event that comes again under the same id has done them.
//
// If the handler failed, the outcome is Retrying or Dead, as Receive would decide after the last immediate retry. tx
// contains nothing of the handler and stays usable; no retry is stored. A panic is an error too, and so is a handler
// that exceeds Config.Timeout. The same event a second time is a Duplicate. An event that waits for others of its key
// is Stored. In both cases no handler ran.
//
// The event needs a Type. Handle fills in a missing ID, Topic ("test") and Time, because an event from Kafka always has
// them. The test fails if no handler is registered for the type, if the event exceeds a limit, and if the database
// fails.
func Handle(t testing.TB, tx pgx.Tx, in *inbox.Inbox, e holdfast.Event) (inbox.Outcome, error) {
	t.Helper()
	if e.ID == "" {
		e.ID = rand.Text()
	}
	if e.Topic == "" {
		e.Topic = "test"
	}
	if e.Time.IsZero() {
		e.Time = time.Now().UTC().Truncate(time.Microsecond) // the precision of Postgres
	}
	outcome, failure, err := in.Hooks().Handle(t.Context(), tx, e)
	if err != nil {
		t.Fatalf("handle %s: %v", describe(e), err)
	}
	return outcome, failure
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

var (
	_ querier = (*pgxpool.Pool)(nil)
	_ querier = pgx.Tx(nil)
)

func excerpt(s string) string {
	const longest = 200
	if len(s) <= longest {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:longest], ""), len(s))
}
