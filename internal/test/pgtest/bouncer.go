package pgtest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/servers"
)

// BouncerPool is how many connections to the server a Bouncer has for each database: fewer than its clients want.
const BouncerPool = 6

// Bouncer returns the address of db through a PgBouncer in transaction pooling. The tests of a binary share one for each
// server; it ends with them, as New's server does. Clients say how they do without prepared statements, which old
// PgBouncers do not have in this mode: by pgx's default_query_exec_mode, for one.
func Bouncer(t testing.TB, db *DB) (dsn string) {
	t.Helper()
	return bouncerOf(t, db, nil)
}

// StatementBouncer is Bouncer in statement pooling, in which there are no transactions.
func StatementBouncer(t testing.TB, db *DB) (dsn string) {
	t.Helper()
	return bouncerOf(t, db, map[string]string{"pool_mode": "statement"})
}

func bouncerOf(t testing.TB, db *DB, settings map[string]string) (dsn string) {
	t.Helper()
	through, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal("the database's address cannot be parsed")
	}
	server := *through
	through.Host, err = of(&bouncers, fmt.Sprint(server.Host, server.User, settings)).Get(func() (string, error) { return startBouncer(&server, settings) })
	servers.Need(t, err, "PgBouncer", "apt-get install pgbouncer", "")
	t.Logf("PgBouncer, %d connections for each database", BouncerPool)
	return through.String()
}

// startBouncer starts one before a server.
func startBouncer(server *url.URL, settings map[string]string) (address string, err error) {
	password, _ := server.User.Password()
	var reply servers.BouncerReply
	err = servers.Call(context.Background(), "Bouncer", servers.BouncerArgs{
		Target:     net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), "5432")),
		User:       server.User.Username(),
		Password:   password,
		PoolSize:   BouncerPool,
		MaxClients: 800,
		Settings:   settings,
	}, &reply)
	switch {
	case err != nil:
		return "", err
	case reply.Missing != "":
		return "", servers.Missing(reply.Missing)
	}
	return reply.Address, nil
}
