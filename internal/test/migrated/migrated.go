// Package migrated gives each test a database of its own with holdfast's schema in it.
package migrated

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// models are of *pgtest.Model, by the number of lanes.
var models sync.Map

// New is pgtest.New with holdfast's schema, which is made once for a test binary and then copied. The binary calls
// pgtest.Main.
func New(t testing.TB) *pgtest.DB {
	t.Helper()
	return Lanes(t, 0)
}

// Lanes is New with that many lanes. 0 is the schema's default.
func Lanes(t testing.TB, lanes int) *pgtest.DB {
	t.Helper()
	m, _ := models.LoadOrStore(lanes, &pgtest.Model{Fill: func(ctx context.Context, pool *pgxpool.Pool) error {
		return holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{Lanes: lanes})
	}})
	return m.(*pgtest.Model).New(t)
}
