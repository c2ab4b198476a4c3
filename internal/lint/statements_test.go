package lint

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pgserver"
	"github.com/holdfast-go/holdfast/internal/pgtest"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// statementsOf returns the SQL constants of a file, by name: those that begin with a comment that names them.
func statementsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, value := range spec.Values {
			if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && strings.HasPrefix(text, "-- ") {
					found[spec.Names[i].Name] = text
				}
			}
		}
		return true
	})
	return found
}

// Every statement of the library, and of docs/operations.md, fits the schema, on the oldest PostgreSQL that is supported and on the newest.
func TestEveryStatementIsPreparedOnTheOldestAndTheNewestPostgres(t *testing.T) {
	t.Parallel()
	statements := map[string]string{}
	for _, path := range sources(t) {
		if !strings.HasSuffix(path, "queries.go") { // retention_queries.go too
			continue
		}
		for name, sql := range statementsOf(t, filepath.Join(root, path)) {
			statements[path+" "+name] = sql
		}
	}
	for i, block := range regexp.MustCompile("(?ms)^```sql\n(.*?)^```").FindAllStringSubmatch(read(t, "docs/operations.md"), -1) {
		statements[fmt.Sprint("docs/operations.md, statement ", i+1)] = block[1]
	}
	if len(statements) < 100 {
		t.Fatalf("only %d statements were found: they are constants of queries.go, or of one that is named so behind a word, that begin with a comment", len(statements))
	}
	for _, server := range []struct {
		name string
		dsn  func(t *testing.T) string
	}{
		{"installed", func(t *testing.T) string { return pgtest.Own(t, pgserver.Options{Settings: pgserver.NoSync()}).DSN }},
		{pgtest.Image, func(t *testing.T) string { return pgtest.Container(t, pgtest.Image).DSN }},
	} {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.On(t, server.dsn(t))
			if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			t.Logf("%d statements on PostgreSQL %s", len(statements), conn.PgConn().ParameterStatus("server_version"))
			for name, sql := range statements {
				if _, err := conn.Prepare(t.Context(), "", sqlschema.In("holdfast", sql)); err != nil {
					t.Errorf("prepare %s: %v", name, err)
				}
			}
		})
	}
}
