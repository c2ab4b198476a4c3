// Package holdfasttest helps to test services that use holdfast: it runs a handler on one event, says what was written
// to the outbox, waits until everything has come to rest, and makes databases for tests.
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
// What takes a testing.TB works on its Context and fails the test where it cannot do what it is for: call it from the
// test's own goroutine. WaitIdle, which may be of use elsewhere too, takes a context and returns an error. Nothing here
// mocks: it needs the Postgres that your tests have. It links what package inbox links, and nothing for starting servers.
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

// cleanupTimeout bounds what is done when a test has ended, and its context with it.
const cleanupTimeout = 30 * time.Second

// Database makes a database of its own for the test on the server that url leads to, with holdfast's schema in it, and
// drops it when the test ends. url is whatever pgxpool.ParseConfig reads; its user must be allowed to create databases,
// and the database that it names is only used to create and drop the others. Tests that run at once do not see each
// other's events, and each knows that its log was empty at the start. It takes some tenths of a second.
//
// Where your tests have a database already, call holdfast.Migrate on it instead.
func Database(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	if url == "" {
		t.Fatalf("the address of the database server is empty: say where tests may create databases")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("read the address of the database server: %v", err)
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
		// Close waits for every connection to be given back. One that a test kept must not keep the test.
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(cleanupTimeout):
			t.Errorf("%d connections were never given back to the test's pool", pool.Stat().AcquiredConns())
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
	// As the inbox begins its own, whatever the database's default is.
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatalf("begin the test's transaction: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // it has ended already, or its connection is lost
	})
	return tx
}

// Handle takes e in and runs its handler in tx, as in.ReceiveTx does, and returns what the handler returned as it is.
// The transaction is the test's: look at what the handler wrote, then roll back (Begin does) or commit.
//
// Where the handler failed, the outcome is what Receive would make of that after the last quick try, Retrying or Dead,
// and nothing of the handler is left in tx, which can go on being used; that it is to be tried again is not written
// down. A panic is an error too, and so is a handler that does not keep to Config.Timeout. The same event a second time
// is a Duplicate, one that waits behind others of its key is Stored: then no handler ran.
//
// An event needs a Type here. An ID, a Topic ("test") and a Time that it lacks it is given, as they are never missing
// from an event that comes through Kafka. The test fails where no handler is registered for the type, where the event
// is outside the limits, and where the database fails.
func Handle(t testing.TB, tx pgx.Tx, in *inbox.Inbox, e holdfast.Event) (inbox.Outcome, error) {
	t.Helper()
	if e.ID == "" {
		e.ID = rand.Text()
	}
	if e.Topic == "" {
		e.Topic = "test"
	}
	if e.Time.IsZero() {
		e.Time = time.Now().UTC().Truncate(time.Microsecond) // what Postgres keeps of it
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
