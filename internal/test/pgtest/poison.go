package pgtest

import (
	"context"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// BouncerPoolOf returns a pool of db through a Bouncer.
func BouncerPoolOf(t testing.TB, db *DB) *pgxpool.Pool {
	t.Helper()
	dsn, err := url.Parse(Bouncer(t, db))
	if err != nil {
		t.Fatal("the pooler's address cannot be parsed")
	}
	query := dsn.Query()
	query.Set("default_query_exec_mode", "exec")
	dsn.RawQuery = query.Encode()
	pool, err := pgxpool.New(context.Background(), dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// LeaveRoles leaves a role without rights on all connections that a Bouncer has to a pool's database.
func LeaveRoles(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var open []*pgx.Conn
	for range BouncerPool {
		conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		open = append(open, conn)
		for _, sql := range []string{"begin", "set role pg_monitor"} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, conn := range open {
		if _, err := conn.Exec(ctx, "commit"); err != nil {
			t.Fatal(err)
		}
	}
}
