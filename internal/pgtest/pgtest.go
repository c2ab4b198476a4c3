// Package pgtest gives each test its own database on a real PostgreSQL.
package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/pgserver"
)

// DB is a test's own database.
type DB struct {
	*pgxpool.Pool
	// DSN connects to the same database.
	DSN string
}

type server struct {
	dsn  string
	stop func()
}

var shared = sync.OnceValues(func() (*server, error) {
	if dsn := os.Getenv("HOLDFAST_TEST_DATABASE_URL"); dsn != "" {
		return &server{dsn: dsn, stop: func() {}}, nil
	}
	s, err := pgserver.Start(context.Background(), pgserver.Options{Settings: pgserver.NoSync()})
	if err != nil {
		return nil, err
	}
	return &server{dsn: s.DSN, stop: s.Stop}, nil
})

// New makes an empty database on the test binary's server and drops it when the test ends.
func New(t testing.TB) *DB {
	t.Helper()
	s, err := shared()
	if err != nil {
		unavailable(t, err)
	}
	return newDB(t, s.dsn)
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("REQUIRE_SERVICES") == "1" {
		t.Fatalf("needs PostgreSQL: %v", err)
	}
	t.Skipf("needs PostgreSQL: %v", err)
}

func newDB(t testing.TB, adminDSN string) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	name := "test_" + strings.ToLower(rand.Text())
	admin, err := pgx.Connect(ctx, adminDSN)
	if err != nil {
		t.Fatalf("connect to the test server: %v", err)
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		t.Fatalf("create the test's database: %v", err)
	}
	dsn, err := withDatabase(adminDSN, name)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		t.Fatalf("open the test's pool: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		admin, err := pgx.Connect(ctx, adminDSN)
		if err == nil {
			defer admin.Close(ctx)
			_, err = admin.Exec(ctx, "drop database if exists "+pgx.Identifier{name}.Sanitize()+" with (force)")
		}
		if err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
		pool.Close()
	})
	return &DB{Pool: pool, DSN: dsn}
}

func withDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("the server's address must be a URL, postgres://…")
	}
	u.Path = "/" + name
	return u.String(), nil
}

// Main runs the tests of a binary, stops the servers that they shared and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	if s, err := shared(); err == nil {
		s.stop()
	}
	return code
}

// execer is a pool, a connection or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Exec runs a statement and returns how many rows it touched; an error fails the test.
func Exec(t testing.TB, db execer, sql string, args ...any) int64 {
	t.Helper()
	tag, err := db.Exec(context.Background(), sql, args...)
	if err != nil {
		t.Fatalf("exec %q: %v", sql, err)
	}
	return tag.RowsAffected()
}

// Count runs a query that returns one number.
func Count(t testing.TB, db execer, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("count %q: %v", sql, err)
	}
	return n
}
