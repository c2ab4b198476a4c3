// Package roletest gives tests the roles of roles.sql.
package roletest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Names are the roles' names without their prefix.
var Names = []string{"producer", "relay", "consumer", "web", "operator", "reader", "owner"}

// Make creates the roles for the schema holdfast of a database, and returns the prefix of their names: prefix + "_relay". They are
// dropped when the test ends.
func Make(t testing.TB, db *pgtest.DB) (prefix string) {
	t.Helper()
	prefix = fmt.Sprintf("r%d", time.Now().UnixNano())
	script, err := holdfast.RolesSQL(holdfast.SchemaConfig{}, prefix)
	if err != nil {
		t.Fatal(err)
	}
	// Roles are of the whole server: another test that drops its own at the same moment may be in the way.
	const deadlock = "40P01"
	var refused *pgconn.PgError
	_, err = db.Pool.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol)
	for range 5 {
		if !errors.As(err, &refused) || refused.Code != deadlock {
			break
		}
		_, err = db.Pool.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol)
	}
	if err != nil {
		t.Fatalf("create roles: %v", err)
	}
	DropAtEnd(t, db, prefix)
	return prefix
}

// DropAtEnd drops the roles with this prefix, and what they own in the database, when the test ends.
func DropAtEnd(t testing.TB, db *pgtest.DB, prefix string) {
	t.Cleanup(func() {
		for _, name := range Names {
			db.Exec(context.Background(), "drop owned by "+prefix+"_"+name+" cascade")
			db.Exec(context.Background(), "drop role "+prefix+"_"+name)
		}
	})
}

// Login makes a user who can log in and is a member of roles, with options such as "noinherit", and returns a pool of its own
// connections, as a service of that name has one, and the user's name. The user is dropped when the test ends.
func Login(t testing.TB, db *pgtest.DB, options string, roles ...string) (pool *pgxpool.Pool, name string) {
	t.Helper()
	name = fmt.Sprintf("user%d", time.Now().UnixNano())
	pgtest.Exec(t, db.Pool, "create role "+name+" login password 'secret' "+options)
	t.Cleanup(func() {
		db.Exec(context.Background(), "drop owned by "+name+" cascade")
		db.Exec(context.Background(), "drop role "+name)
	})
	for _, role := range roles {
		pgtest.Exec(t, db.Pool, "grant "+role+" to "+name)
	}
	return db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = name, "secret" }), name
}

// DSNOf is the address of db for a user that Login made.
func DSNOf(t testing.TB, db *pgtest.DB, name string) string {
	t.Helper()
	dsn, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal("the database's address cannot be parsed")
	}
	dsn.User = url.UserPassword(name, "secret")
	return dsn.String()
}

// BindConsumer binds a role to a consumer and the topic of its letters.
func BindConsumer(t testing.TB, db *pgtest.DB, role, consumer, letterTopic string) {
	t.Helper()
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_binding (role, consumer, letter_topic) values ($1, $2, $3)", role, consumer, letterTopic)
}
