package lint

import (
	"context"
	"errors"
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
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// named is how a statement begins: with its name, "-- relay.claim".
var named = regexp.MustCompile(`^-- [a-z]+\.\w+\n`)

// statementsOf returns the statements of a file, by the places where they begin: texts that begin with their name, and all
// that is put together from them, the file's constants and those of the packages sqlschema and waitroom.
func statementsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]ast.Expr{}
	for _, of := range []struct{ prefix, path string }{
		{"sqlschema.", filepath.Join(root, "internal/sqlschema/limits.go")}, {"waitroom.", filepath.Join(root, "internal/waitroom/waitroom.go")}, {"", path},
	} {
		in, err := parser.ParseFile(files, of.path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(in, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for i, value := range spec.Values {
					constants[of.prefix+spec.Names[i].Name], constants[spec.Names[i].Name] = value, value // also by its name in its own file
				}
			}
			return true
		})
	}
	var textOf func(ast.Expr) (text string, known bool)
	textOf = func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			text, err := strconv.Unquote(e.Value)
			return text, err == nil && e.Kind == token.STRING
		case *ast.Ident:
			value, ok := constants[e.Name]
			if !ok {
				return "", false
			}
			return textOf(value)
		case *ast.SelectorExpr:
			value, ok := constants[fmt.Sprint(e.X, ".", e.Sel.Name)]
			if !ok {
				return "", false
			}
			return textOf(value)
		case *ast.BinaryExpr:
			left, known := textOf(e.X)
			right, both := textOf(e.Y)
			return left + right, known && both && e.Op == token.ADD
		}
		return "", false
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		switch e.(type) {
		case *ast.Ident, *ast.SelectorExpr: // It is found where it is declared.
			return true
		}
		text, known := textOf(e)
		if known && named.MatchString(text) {
			found[fmt.Sprintf("line %d, %s", files.Position(e.Pos()).Line, strings.SplitN(text, "\n", 2)[0])] = text
		}
		return !known
	})
	return found
}

// Every statement of the library, and of the pages for operators, fits the schema, on the oldest PostgreSQL that is supported and on the newest.
func TestStatements_EveryStatementIsPreparedOnTheOldestAndTheNewestPostgres(t *testing.T) {
	t.Parallel()
	statements := map[string]string{}
	for _, path := range sources(t) {
		if !strings.HasSuffix(path, "queries.go") && path != "schema.go" { // letter_queries.go too
			continue
		}
		for name, sql := range statementsOf(t, filepath.Join(root, path)) {
			statements[path+" "+name] = sql
		}
	}
	for _, page := range []string{"docs/operations/relays.md", "docs/operations/consumers.md"} {
		for i, block := range regexp.MustCompile("(?ms)^```sql\n(.*?)^```").FindAllStringSubmatch(read(t, page), -1) {
			statements[fmt.Sprint(page, ", statement ", i+1)] = block[1]
		}
	}
	if len(statements) < 150 {
		t.Fatalf("only %d statements were found: they are constants of queries.go, or of a file whose name ends so, that begin with their name, or stand in schema.go so", len(statements))
	}
	for _, server := range []struct {
		name  string
		major int64
		on    func(t *testing.T) *pgtest.DB
	}{
		{"the oldest", sqlschema.MinPostgres / 10000, oldest},
		{"the newest", 18, func(t *testing.T) *pgtest.DB { return pgtest.Container(t, pgtest.Image) }},
	} {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			db := server.on(t)
			if major := majorOf(t, db); major != server.major {
				t.Fatalf("it is PostgreSQL %d, want %d: nothing would be known of that one", major, server.major)
			}
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

// oldest is a database on the oldest PostgreSQL that is supported: this machine's where it is that one, else a container's.
func oldest(t *testing.T) *pgtest.DB {
	t.Helper()
	const major = sqlschema.MinPostgres / 10000
	server, err := pgserver.Start(context.Background(), pgserver.Options{Settings: pgserver.NoSync(), NoDownload: true})
	if err == nil {
		t.Cleanup(server.Stop)
		if db := pgtest.On(t, server.DSN); majorOf(t, db) == major {
			return db
		}
	} else if !errors.Is(err, pgserver.ErrNoServer) {
		t.Fatal(err) // there are binaries and they do not work: that is to be seen
	}
	return pgtest.Container(t, fmt.Sprint("postgres:", major))
}

func majorOf(t *testing.T, db *pgtest.DB) int64 {
	t.Helper()
	return pgtest.Count(t, db, "select current_setting('server_version_num')::int / 10000")
}
