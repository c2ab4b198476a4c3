package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/wait"
)

const (
	// callTimeout bounds each call that this package makes for a test.
	callTimeout = time.Minute
	// poolSize is the least that a test's pool may grow to. pgx's own default is 4, and a test
	// with a few relays and consumers waits for itself at that.
	poolSize = 20
)

// DB is a test's own database. It is its pool, and can be used wherever one can.
type DB struct {
	*pgxpool.Pool
	// DSN connects to the same database, as a user who may do anything on the server unless
	// HOLDFAST_TEST_DATABASE_URL says otherwise.
	DSN string
}

// On makes an empty database for the test on the server that dsn, a URL, leads to. It is dropped
// when the test ends, if the server still answers then. A connection that the test never gave
// back to the pool fails the test.
func On(t testing.TB, dsn string) *DB {
	t.Helper()
	return copyOf(t, dsn, "template1")
}

// copyOf is On with all that is in the database model.
func copyOf(t testing.TB, dsn, model string) *DB {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	own, err := withDatabase(dsn, name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(own)
	if err != nil {
		t.Fatalf("open the test's pool: %v", err)
	}
	config.MaxConns = max(config.MaxConns, poolSize)
	if err := onServer(dsn, "create database "+pgx.Identifier{name}.Sanitize()+" template "+pgx.Identifier{model}.Sanitize()); err != nil {
		t.Fatalf("create the test's database: %v", err)
	}
	t.Cleanup(func() { drop(t, dsn, own, name) })
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("open the test's pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool, wait.Limit()) }) // before the drop
	return &DB{Pool: pool, DSN: own}
}

// PoolOf is another pool to the database, of so many connections, until the test ends.
func (db *DB) PoolOf(t testing.TB, connections int32) *pgxpool.Pool {
	t.Helper()
	return db.PoolWith(t, func(c *pgxpool.Config) { c.MaxConns = connections })
}

// PoolWith is another pool to the database, until the test ends, with what change makes of the configuration of the first.
func (db *DB) PoolWith(t testing.TB, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	change(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("open another pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool, wait.Limit()) })
	return pool
}

// withDatabase returns dsn with another database's name.
func withDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", errors.New("the server's address must be a URL: postgres://user:password@host:port/database")
	}
	u.Path = "/" + name
	return u.String(), nil
}

// closePool waits for the pool no longer than it must: Close blocks for as long as a connection
// is out, which a test that hangs on to one would make forever.
func closePool(t testing.TB, pool *pgxpool.Pool, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pool.Close()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Errorf("%d connections were never given back to the pool", pool.Stat().AcquiredConns())
	}
}

// drop removes a test's database. Sessions in it are ended by force; prepared transactions, which
// outlive their sessions and which force does not touch, are rolled back.
func drop(t testing.TB, dsn, own, name string) {
	sql := "drop database if exists " + pgx.Identifier{name}.Sanitize() + " with (force)"
	err := onServer(dsn, sql)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "55006" { // object_in_use
		if err = rollbackPrepared(own); err == nil {
			err = onServer(dsn, sql)
		}
	}
	var unreachable *pgconn.ConnectError
	if errors.As(err, &unreachable) {
		return // the test killed its server
	}
	if err != nil {
		t.Errorf("drop the test's database: %v", err)
	}
}

// rollbackPrepared must run in the database of the prepared transactions.
func rollbackPrepared(dsn string) error {
	return connected(dsn, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select gid from pg_prepared_xacts where database = current_database()")
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, id := range ids {
			// This statement takes no parameters.
			if _, err := conn.Exec(ctx, "rollback prepared '"+strings.ReplaceAll(id, "'", "''")+"'"); err != nil {
				return err
			}
		}
		return nil
	})
}

func onServer(dsn, sql string) error {
	return connected(dsn, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

func connected(dsn string, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	defer conn.Close(ctx)
	return f(ctx, conn)
}

// Querier is a pool, a connection, a transaction or a DB.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Begin begins a transaction, which is rolled back when the test ends; an error fails the test.
func Begin(t testing.TB, db *DB) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// Exec runs a statement and returns how many rows it touched; an error fails the test.
func Exec(t testing.TB, db Querier, sql string, args ...any) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	tag, err := db.Exec(ctx, sql, args...)
	if err != nil {
		t.Fatalf("exec %q: %v", sql, err)
	}
	return tag.RowsAffected()
}

// Count runs a query of one number and returns it; an error fails the test.
func Count(t testing.TB, db Querier, sql string, args ...any) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var n int64
	if err := db.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		t.Fatalf("count %q: %v", sql, err)
	}
	return n
}

// Text runs a query of one text and returns it, "" for null; an error fails the test.
func Text(t testing.TB, db Querier, sql string, args ...any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var text *string
	if err := db.QueryRow(ctx, sql, args...).Scan(&text); err != nil {
		t.Fatalf("read %q: %v", sql, err)
	}
	if text == nil {
		return ""
	}
	return *text
}
