package pgtest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"testing"

	"github.com/holdfast-go/holdfast/internal/bouncer"
	"github.com/holdfast-go/holdfast/internal/skip"
)

// BouncerPool is how many connections to the server a Bouncer has for each database: fewer than its clients want.
const BouncerPool = 6

// Bouncer runs PgBouncer in transaction pooling before the server of db until the test ends, and returns the address of
// db through it. Clients say how they do without prepared statements, which old PgBouncers do not have in this mode: by
// pgx's default_query_exec_mode, for one.
func Bouncer(t testing.TB, db *DB) (dsn string) {
	t.Helper()
	through, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal("the database's address cannot be parsed")
	}
	password, _ := through.User.Password()
	s, err := bouncer.Start(context.Background(), bouncer.Options{
		Target: net.JoinHostPort(through.Hostname(), cmp.Or(through.Port(), "5432")),
		User:   through.User.Username(), Password: password, PoolSize: BouncerPool, MaxClients: 300,
	})
	if errors.Is(err, bouncer.ErrNoBouncer) {
		skip.Without(t, "PgBouncer", "apt-get install pgbouncer", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	t.Logf("%s, %d connections for each database", s.Version(), BouncerPool)
	through.Host = s.Address()
	return through.String()
}
