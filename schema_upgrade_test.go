package holdfast_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/catalog"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// catalogOf is what the database knows of the schema.
func catalogOf(t *testing.T, pool *pgxpool.Pool, schema string, lanes int) string {
	t.Helper()
	var text strings.Builder
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		objects, err := catalog.Of(t.Context(), tx, schema, lanes)
		for _, o := range objects {
			fmt.Fprintf(&text, "%s: %s\n", o.Name, o.Is)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// older are the versions from which there is an upgrade.
func older(t *testing.T) (versions []int) {
	t.Helper()
	for version := 1; version < holdfast.SchemaVersion; version++ {
		versions = append(versions, version)
		if _, err := os.Stat(filepath.Join("migrations", "testdata", strconv.Itoa(version)+".sql")); err != nil {
			t.Fatal(err)
		}
	}
	return versions
}

// on runs a test on the server that the tests share, and on the newest PostgreSQL.
func on(t *testing.T, f func(t *testing.T, db *pgtest.DB)) {
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		f(t, pgtest.New(t))
	})
	t.Run(pgtest.Image, func(t *testing.T) {
		t.Parallel()
		f(t, pgtest.Container(t, pgtest.Image))
	})
}

// A change of schema.sql without its migration, and a migration that makes something else, are found here.
func TestSchemaUpgrade_AnUpgradedSchemaIsThatOfANewInstallation(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, db *pgtest.DB) {
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: "fresh"}); err != nil {
			t.Fatal(err)
		}
		want := catalogOf(t, db.Pool, "fresh", 8)
		for _, version := range older(t) {
			for _, c := range []holdfast.SchemaConfig{{Schema: "holdfast"}, {Schema: "select"}} {
				migrated.Script(t, db.Pool, c.Schema, fmt.Sprintf("migrations/testdata/%d.sql", version))
				if err := holdfast.Migrate(t.Context(), db.Pool, c); err != nil {
					t.Fatalf("from version %d: %v", version, err)
				}
				if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(catalogOf(t, db.Pool, c.Schema, 8), "\n")); diff != "" {
					t.Errorf("from version %d (- a new installation, + an upgraded one; see migrations/README.md):\n%s", version, diff)
				}
				if err := holdfast.Check(t.Context(), db.Pool, c); err != nil {
					t.Error(err)
				}
				const row = "select version, compatible_from, lanes from holdfast.installation"
				var got, fresh [3]int
				for schema, to := range map[string]*[3]int{c.Schema: &got, "fresh": &fresh} {
					if err := db.QueryRow(t.Context(), sqlschema.In(schema, row)).Scan(&to[0], &to[1], &to[2]); err != nil {
						t.Fatal(err)
					}
				}
				if got != fresh || got[0] != holdfast.SchemaVersion || got[1] != holdfast.CompatibleFrom {
					t.Errorf("the upgraded installation says %d, a new one %d", got, fresh)
				}
				pgtest.Exec(t, db.Pool, `drop schema "`+c.Schema+`" cascade`)
			}
		}
	})
}

// rows is a fingerprint of each table's rows, in the columns that are asked for, which it returns.
func rows(t *testing.T, pool *pgxpool.Pool, columns map[string]string) (map[string]string, map[string]string) {
	t.Helper()
	if columns == nil {
		columns = map[string]string{}
		list, err := pool.Query(t.Context(), `select c.relname, string_agg(quote_ident(a.attname), ', ' order by a.attnum)
			from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
			where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and c.relname not in ('event', 'installation') group by 1`)
		if err != nil {
			t.Fatal(err)
		}
		var table, names string
		if _, err := pgx.ForEachRow(list, []any{&table, &names}, func() error { columns[table] = names; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	found := map[string]string{}
	for table, names := range columns {
		var of string
		if err := pool.QueryRow(t.Context(), fmt.Sprintf(`select count(*) || ' ' || coalesce(md5(string_agg(r::text, E'\n' order by r::text collate "C")), '')
			from (select %s from holdfast.%s) r`, names, table)).Scan(&of); err != nil {
			t.Fatal(err)
		}
		found[table] = of
	}
	return found, columns
}

func TestSchemaUpgrade_AnUpgradeKeepsTheRowsOfEveryTable(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", "migrations/testdata/1.sql")
	migrated.Script(t, db.Pool, "holdfast", "migrations/testdata/1.rows.sql")
	before, columns := rows(t, db.Pool, nil)
	if len(before) < 26 {
		t.Fatalf("version 1 has %d tables: %q", len(before), slices.Sorted(maps.Keys(before)))
	}
	for table, of := range before {
		if strings.HasPrefix(of, "0 ") {
			t.Errorf("%s has no row: 1.rows.sql gives none", table)
		}
	}
	const filesOfTheLog = "select string_agg(pg_relation_filepath(c.oid), ' ' order by relname) from pg_class c where c.relname ~ '^event_[0-3]$'"
	var logBefore, logAfter string
	if err := db.QueryRow(t.Context(), filesOfTheLog).Scan(&logBefore); err != nil {
		t.Fatal(err)
	}
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(t.Context(), filesOfTheLog).Scan(&logAfter); err != nil {
		t.Fatal(err)
	}
	if logBefore != logAfter {
		t.Error("the upgrade wrote the log anew, while producers waited")
	}
	after, _ := rows(t, db.Pool, columns)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the upgrade changed rows: %s", diff)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.birth where born::text::bigint & 4294967295 = xmin::text::bigint"); n != 1 {
		t.Error("the birth does not remember its own transaction any more: relays would refuse to run")
	}
	for _, c := range []struct{ table, where string }{
		{"inbox", "consumer = 'ä' and source = 'Z' and event_id = 'a-b2'"}, {"stored", "consumer = 'ß' and topic = 'orders' and key = 'Ä'"},
	} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "set local enable_seqscan = off; set local enable_bitmapscan = off")
		if n := pgtest.Count(t, tx, "select count(*) from holdfast."+c.table+" where "+c.where); n != 1 {
			t.Errorf("%s: %d rows are found by its index, want 1", c.table, n)
		}
		_ = tx.Rollback(t.Context())
	}
}

func TestSchemaUpgrade_AnUpgradeIsSafeFromManyNodesAtOnce(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", "migrations/testdata/1.sql")
	migrateByManyNodes(t, db.DSN)
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
}

// Version 1 reads the current segment from the table, version 2 from a function.
func TestSchemaUpgrade_AnUpgradeKeepsTheCurrentSegment(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", "migrations/testdata/1.sql")
	pgtest.Exec(t, db.Pool, "update holdfast.segments set current = 2")
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 't', '')")
	if n := pgtest.Count(t, db.Pool, "select count(*) from only holdfast.event_2"); n != 1 {
		t.Errorf("%d events are in the segment that was current before", n)
	}
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
	// What a copy of the rows without triggers leaves.
	pgtest.Exec(t, db.Pool, "alter table holdfast.segments disable trigger switch_segment")
	pgtest.Exec(t, db.Pool, "update holdfast.segments set current = 1")
	pgtest.Exec(t, db.Pool, "alter table holdfast.segments enable trigger switch_segment")
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err == nil || !strings.Contains(err.Error(), "writers write to another segment than the current one") {
		t.Errorf("Check says %v", err)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.segments set current = current")
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
}

func TestSchemaUpgrade_AnUpgradeThatFailsChangesNothing(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", "migrations/testdata/1.sql")
	before := catalogOf(t, db.Pool, "holdfast", 8)
	pgtest.Exec(t, db.Pool, "alter table holdfast.birth rename to keys") // what the end of the upgrade misses
	err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{})
	if err == nil || !strings.Contains(err.Error(), "lacks table birth") {
		t.Errorf("got %v", err)
	}
	pgtest.Exec(t, db.Pool, "alter table holdfast.keys rename to birth")
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(catalogOf(t, db.Pool, "holdfast", 8), "\n")); diff != "" {
		t.Errorf("the upgrade left this: %s", diff)
	}
	if n := pgtest.Count(t, db.Pool, "select version from holdfast.installation"); n != 1 {
		t.Errorf("it is at version %d", n)
	}
}

// An upgrade that waited for a lock would make every later writer wait behind it.
func TestSchemaUpgrade_AnUpgradeGivesWayToATransaction(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", "migrations/testdata/1.sql")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	pgtest.Exec(t, tx, "select from holdfast.installation")
	// A lock_timeout that the connection has set goes before holdfast's.
	pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "50ms" })
	err = holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{})
	for _, want := range []string{"from version 1 to", "other transactions hold its tables", "nothing was changed", "stop relays and consumers"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	done := make(chan error, 1)
	go func() { done <- holdfast.Migrate(context.Background(), pool, holdfast.SchemaConfig{}) }()
	pgtest.Exec(t, db.Pool, "select pg_sleep(0.2)") // at least one attempt
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the transaction ended: %v", err)
	}
}

// Whoever set a lock_timeout knows how long writers may wait.
func TestSchemaUpgrade_TheLockTimeoutOfAConnectionGoesBeforeThatOfAnUpgrade(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for own, want := range map[string]string{"50ms": "50ms", "0": "5s"} {
		schema := "own_" + own
		migrated.Script(t, db.Pool, schema, "migrations/testdata/1.sql")
		text, err := holdfast.UpgradeSQL(holdfast.SchemaConfig{Schema: schema}, 1)
		if err != nil {
			t.Fatal(err)
		}
		// Where the upgrade ends, before COMMIT: its bound is that of its transaction.
		text, whole := strings.CutSuffix(strings.TrimSpace(text), "commit;")
		if !whole {
			t.Fatalf("the script does not end with COMMIT: %q", text[max(0, len(text)-100):])
		}
		pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = own })
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if err := conn.Conn().PgConn().Exec(t.Context(), text).Close(); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := conn.QueryRow(t.Context(), "show lock_timeout").Scan(&got); err != nil || got != want {
			t.Errorf("with lock_timeout %s the upgrade waits for %s, %v, want %s", own, got, err, want)
		}
		pgtest.Exec(t, conn, "rollback")
	}
}

func TestSchemaUpgrade_OnlyTheOwnerCanUpgrade(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	migrated.Script(t, db.Pool, "holdfast", "migrations/testdata/1.sql")
	role := "no_owner_" + strings.TrimPrefix(db.Config().ConnConfig.Database, "test_")
	pgtest.Exec(t, db.Pool, "create role "+role)
	t.Cleanup(func() {
		db.Exec(context.Background(), "drop owned by "+role)
		db.Exec(context.Background(), "drop role "+role)
	})
	pgtest.Exec(t, db.Pool, "grant usage on schema holdfast to "+role)
	pgtest.Exec(t, db.Pool, "grant all on all tables in schema holdfast to "+role)
	pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{})
	if err == nil || !strings.Contains(err.Error(), "run it as the owner of the schema") {
		t.Errorf("got %v", err)
	}
}

func TestSchemaUpgrade_ThePrintedUpgradeDoesWhatMigrateDoes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, from := range older(t) {
		text, err := holdfast.UpgradeSQL(holdfast.SchemaConfig{Schema: "printed"}, from)
		if err != nil {
			t.Fatal(err)
		}
		run := func() error {
			conn, err := db.Acquire(t.Context())
			if err != nil {
				return err
			}
			defer conn.Release()
			defer func() { _, _ = conn.Exec(t.Context(), "rollback") }()
			return conn.Conn().PgConn().Exec(t.Context(), text).Close()
		}
		migrated.Script(t, db.Pool, "printed", fmt.Sprintf("migrations/testdata/%d.sql", from))
		if err := run(); err != nil {
			t.Fatal(err)
		}
		if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: "printed"}); err != nil {
			t.Error(err)
		}
		if err := run(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the schema is at version %d, this script upgrades version %d", holdfast.SchemaVersion, from)) {
			t.Errorf("a second time: %v", err)
		}
		pgtest.Exec(t, db.Pool, "drop schema printed cascade")
	}
	for _, from := range []int{0, holdfast.SchemaVersion} {
		if _, err := holdfast.UpgradeSQL(holdfast.SchemaConfig{}, from); err == nil || !strings.Contains(err.Error(), "it must be") {
			t.Errorf("from %d: %v", from, err)
		}
	}
}
