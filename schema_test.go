package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, kafkatest.Stop))
}

func TestSchema_MigrateCreatesWhatCheckAsksForAndIsCalmTheSecondTime(t *testing.T) {
	t.Parallel()
	for _, c := range []holdfast.SchemaConfig{{}, {Schema: "my_events", Lanes: 3}, {Schema: "select"}} {
		t.Run(c.Schema, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if err := holdfast.Check(t.Context(), db.Pool, c); !errors.Is(err, holdfast.ErrSchemaMissing) || !strings.Contains(err.Error(), "holdfast migrate") {
				t.Errorf("before: got %v, want ErrSchemaMissing and what to do", err)
			}
			for range 2 {
				if err := holdfast.Migrate(t.Context(), db.Pool, c); err != nil {
					t.Fatal(err)
				}
				if err := holdfast.Check(t.Context(), db.Pool, c); err != nil {
					t.Fatal(err)
				}
			}
			o, err := outbox.New(outbox.Config{Schema: c.Schema})
			if err != nil {
				t.Fatal(err)
			}
			if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				if err := o.Lock(t.Context(), tx, "k"); err != nil {
					return err
				}
				return o.Write(t.Context(), tx, holdfast.Event{Topic: "o", Type: "t", Key: "k"})
			}); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.Count(t, db.Pool, "select count(*) from pg_namespace where nspname = 'holdfast'"); n != 0 && c.Schema != "" {
				t.Error("a schema named holdfast was made as well")
			}
		})
	}
}

func TestSchema_MigrateIsSafeFromManyNodesAtOnce(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	migrateByManyNodes(t, db.DSN)
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.lane"); n != 8 {
		t.Errorf("%d lanes, want 8", n)
	}
}

// migrateByManyNodes runs Migrate on eight nodes at once.
func migrateByManyNodes(t *testing.T, dsn string) {
	t.Helper()
	var nodes sync.WaitGroup
	for range 8 {
		nodes.Go(func() {
			pool, err := pgxpool.New(context.Background(), dsn)
			if err != nil {
				t.Error(err)
				return
			}
			defer pool.Close()
			if err := holdfast.Migrate(context.Background(), pool, holdfast.SchemaConfig{}); err != nil {
				t.Error(err)
			}
		})
	}
	nodes.Wait()
}

func TestSchema_ThePrintedSQLMakesTheSameSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	script, err := holdfast.SQL(holdfast.SchemaConfig{Schema: "printed", Lanes: 5})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := conn.Conn().PgConn().Exec(t.Context(), script).Close(); err != nil {
		t.Fatal(err)
	}
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: "printed", Lanes: 5}); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from printed.birth where born::text::bigint & 4294967295 = xmin::text::bigint"); n != 1 {
		t.Error("the birth does not remember its own transaction")
	}
}

func TestSchema_ABadSchemaConfigIsRefusedWithEveryProblem(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, name := range []string{"Holdfast", "a-b", `x"; drop table y; --`, "pg_x", strings.Repeat("x", 64), "ä"} {
		err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: name, Lanes: 257})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) || !strings.Contains(err.Error(), "lanes is 257") {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

func TestSchema_TheNumberOfLanesIsFixedForLife(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Migrate": holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Lanes: 8}),
		"Check":   holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{Lanes: 8}),
	} {
		if err == nil || !strings.Contains(err.Error(), "lanes is 8") || !strings.Contains(err.Error(), "created with 4") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestSchema_CheckNamesWhatWasDroppedAndWhatIsTooOldOrTooNew(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "drop index holdfast.parked_due")
	pgtest.Exec(t, db.Pool, "drop function holdfast.lock(text[])")
	err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{})
	for _, want := range []string{"index parked_due", "function lock()", "holdfast migrate --print"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	pgtest.Exec(t, db.Pool, "update holdfast.installation set version = 99, compatible_from = 99")
	for _, err := range []error{holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}), holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{})} {
		if err == nil || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "newer build") {
			t.Errorf("got %v", err)
		}
	}
	pgtest.Exec(t, db.Pool, "update holdfast.installation set version = 0")
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err == nil || !strings.Contains(err.Error(), "run holdfast migrate") {
		t.Errorf("got %v", err)
	}
}

// A build from before the views has made the schema at the same version: Migrate must not call that complete.
func TestSchema_MigrateNamesWhatASchemaOfItsVersionLacks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "drop view holdfast.inbox_events")
	pgtest.Exec(t, db.Pool, "alter table holdfast.segments rename to ring") // its name in earlier builds
	err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{})
	if err == nil || !strings.Contains(err.Error(), "lacks table segments, trigger segments.switch_segment, view inbox_events") || !strings.Contains(err.Error(), "--print") {
		t.Errorf("got %v", err)
	}
}

func TestSchema_MigrateWorksInASchemaThatADatabaseOwnerMade(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := "migrator_without_rights_on_the_database"
	pgtest.Exec(t, db.Pool, "drop role if exists "+role)
	pgtest.Exec(t, db.Pool, "create role "+role)
	t.Cleanup(func() {
		db.Exec(context.Background(), "drop owned by "+role+" cascade")
		db.Exec(context.Background(), "drop role "+role)
	})
	pgtest.Exec(t, db.Pool, "create schema holdfast authorization "+role)
	pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
}

func TestSchema_ADatabaseThatIsNotUTF8IsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	name := "latin_" + strings.ToLower(t.Name()[:8])
	pgtest.Exec(t, db.Pool, "drop database if exists "+name)
	pgtest.Exec(t, db.Pool, "create database "+name+" encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
	t.Cleanup(func() { db.Exec(context.Background(), "drop database "+name+" with (force)") })
	pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.Database = name })
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{}); err == nil || !strings.Contains(err.Error(), "LATIN1") || !strings.Contains(err.Error(), "UTF8") {
		t.Errorf("got %v", err)
	}
}
