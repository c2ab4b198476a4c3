// Package migrated gives each test a database of its own with holdfast's schema in it.
package migrated

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
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
	db := m.(*pgtest.Model).New(t)
	t.Cleanup(func() { wantResults(t, db) })
	return db
}

// wantResults checks what the table inbox would otherwise need CHECK constraints for, in the rows that a test has left: each has a
// result that is known, and says when the event was settled, unless it is stored. It says nothing if the server or the table is gone.
func wantResults(t testing.TB, db *pgtest.DB) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	var wrong []string
	err := db.QueryRow(ctx, `select array_agg(concat_ws(' ', i.consumer, i.source, i.event_id, i.result, i.processed_at)) from holdfast.inbox i
		where i.result not in ('handled', 'stored', 'dead', 'skipped', 'discarded') or (i.processed_at is null) <> (i.result = 'stored')`).Scan(&wrong)
	if err == nil && len(wrong) > 0 {
		t.Errorf("%d rows of the inbox have an unknown result, or are settled at no time, or wait although they are settled, the first of them %s", len(wrong), wrong[0])
	}
}
