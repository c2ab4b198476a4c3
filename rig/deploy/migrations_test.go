package deploy

import (
	"database/sql"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jackc/tern/v2/migrate"
	"github.com/pressly/goose/v3"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

const (
	version1 = "../migrations/testdata/1.sql"      // what the first release's migrate --print made
	rows1    = "../migrations/testdata/1.rows.sql" // a row of each table
	orders   = "create table orders (id bigint primary key);\n"
)

// wantWhole wants the schema complete, and that relays may run: nothing needs a person.
func wantWhole(t *testing.T, db *pgtest.DB) {
	t.Helper()
	env := []string{"DATABASE_URL=" + db.DSN}
	for command, want := range map[string]string{"check": "is complete", "status": "nothing needs a person"} {
		if out := holdfast(t, env, command); !strings.Contains(out, want) {
			t.Errorf("holdfast %s says %s", command, out)
		}
	}
}

// upgraded is a folder of migrations: the first version of holdfast, a table of the service, and the upgrade.
func upgraded(t *testing.T, names [3]string, first, own, upgrade string) fs.FS {
	t.Helper()
	return fstest.MapFS{names[0]: {Data: []byte(first)}, names[1]: {Data: []byte(own)}, names[2]: {Data: []byte(upgrade)}}
}

func gooseOf(t *testing.T, db *pgtest.DB, files fs.FS) *goose.Provider {
	t.Helper()
	conn, err := sql.Open("pgx", db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	provider, err := goose.NewProvider(goose.DialectPostgres, conn, files)
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

func TestMigrations_GooseCreatesAndUpgradesTheSchema(t *testing.T) {
	t.Parallel()
	t.Run("new", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		script := holdfast(t, nil, "migrate", "--print", "--for", "goose")
		provider := gooseOf(t, db, fstest.MapFS{"00001_holdfast.sql": {Data: []byte(script)}})
		if done, err := provider.Up(t.Context()); err != nil || len(done) != 1 {
			t.Fatalf("%v, %v", done, err)
		}
		wantWhole(t, db)
		if _, err := provider.Down(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing undoes this migration of holdfast") {
			t.Errorf("down: %v", err)
		}
		if version, err := provider.GetDBVersion(t.Context()); version != 1 || err != nil {
			t.Errorf("after a down that failed it is at %d, %v", version, err)
		}
	})
	t.Run("upgrade", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		marked := func(script string) string {
			return "-- +goose Up\n-- +goose StatementBegin\n" + script + "\n-- +goose StatementEnd\n"
		}
		provider := gooseOf(t, db, upgraded(t, [3]string{"00001_holdfast.sql", "00002_orders.sql", "00003_holdfast_2.sql"}, marked(read(t, version1)), marked(orders),
			holdfast(t, nil, "migrate", "--print", "--from", "1", "--for", "goose")))
		if _, err := provider.UpTo(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, db.Pool, read(t, rows1))
		before := pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox")
		if done, err := provider.Up(t.Context()); err != nil || len(done) != 1 {
			t.Fatalf("%v, %v", done, err)
		}
		if out := holdfast(t, []string{"DATABASE_URL=" + db.DSN}, "check"); !strings.Contains(out, "is complete") {
			t.Error(out)
		}
		if after := pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox"); before == 0 || after != before {
			t.Errorf("the inbox had %d rows and has %d", before, after)
		}
	})
}

// ternOf are the migrations of a folder.
func ternOf(t *testing.T, db *pgtest.DB, files fs.FS) *migrate.Migrator {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	m, err := migrate.NewMigrator(t.Context(), conn, "public.schema_version")
	if err == nil {
		err = m.LoadMigrations(files)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMigrations_TernCreatesAndUpgradesTheSchema(t *testing.T) {
	t.Parallel()
	t.Run("new", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		m := ternOf(t, db, fstest.MapFS{"001_holdfast.sql": {Data: []byte(holdfast(t, nil, "migrate", "--print", "--for", "tern"))}})
		if err := m.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantWhole(t, db)
		if err := m.MigrateTo(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "Irreversible migration") {
			t.Errorf("down: %v", err)
		}
	})
	t.Run("upgrade", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		m := ternOf(t, db, upgraded(t, [3]string{"001_holdfast.sql", "002_orders.sql", "003_holdfast_2.sql"}, read(t, version1), orders,
			holdfast(t, nil, "migrate", "--print", "--from", "1", "--for", "tern")))
		if err := m.MigrateTo(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, db.Pool, read(t, rows1))
		if err := m.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out := holdfast(t, []string{"DATABASE_URL=" + db.DSN}, "check"); !strings.Contains(out, "is complete") {
			t.Error(out)
		}
	})
}
