package migrated

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Script runs a file of SQL that is written for the schema "holdfast", for another schema. migrations/testdata has what earlier
// versions left.
func Script(t testing.TB, pool *pgxpool.Pool, schema, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return tx.Conn().PgConn().Exec(t.Context(), sqlschema.In(schema, string(text))).Close()
	})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
