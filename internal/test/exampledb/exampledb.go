// Package exampledb gives each runnable Example its own database with holdfast's schema in it.
//
// A binary whose Examples use it calls pgtest.Main, which skips the Examples where no PostgreSQL is to be had.
package exampledb

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

var test = pgtest.Example() // here, so that pgtest.Main knows of the Examples

// New returns a pool to a new database, where holdfast.Migrate has run. It is dropped after the last Example.
func New() *pgxpool.Pool { return migrated.New(test).Pool }

// NewWith is New with more statements run, for the tables of the service that the Example shows.
func NewWith(ddl string) *pgxpool.Pool {
	pool := New()
	pgtest.Exec(test, pool, ddl)
	return pool
}

// T stands for the *testing.T of the reader's own test. A failure panics.
func T() testing.TB { return test }
