package pgtest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestPgTest_EachTestHasADatabaseOfItsOwn(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	a, b := pgtest.New(t), pgtest.New(t)
	pgtest.Exec(t, a, "create table things (n int)")
	if got := pgtest.Exec(t, a, "insert into things values (1), ($1)", 2); got != 2 {
		t.Errorf("Exec touched %d rows, want 2", got)
	}
	if got := pgtest.Count(t, a, "select count(*) from things where n > $1", 1); got != 1 {
		t.Errorf("Count is %d, want 1", got)
	}
	if got := pgtest.Count(t, b, "select count(*) from pg_class where relname = 'things'"); got != 0 {
		t.Errorf("b sees %d tables of a", got)
	}
}

func TestPgTest_TheDatabaseIsGoneWhenItsTestEnds(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	outside := pgtest.New(t)
	for name, use := range map[string]func(*testing.T, *pgtest.DB){
		"in good order": func(*testing.T, *pgtest.DB) {},
		"while a session outside the pool is in it": func(t *testing.T, db *pgtest.DB) {
			if _, err := pgx.Connect(t.Context(), db.DSN); err != nil {
				t.Fatal(err)
			}
		},
		"with a prepared transaction in it": func(t *testing.T, db *pgtest.DB) {
			pgtest.Exec(t, db, "create table things (n int)")
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, tx, "insert into things values (1)")
			pgtest.Exec(t, tx, "prepare transaction 'it''s pgtest'")
			_ = tx.Rollback(context.Background())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var database string
			t.Run("a test", func(t *testing.T) {
				db := pgtest.New(t)
				database = db.Config().ConnConfig.Database
				use(t, db)
			})
			if n := pgtest.Count(t, outside, "select count(*) from pg_database where datname = $1", database); n != 0 {
				t.Errorf("database %s is still there", database)
			}
		})
	}
}

func TestPgTest_AServerOfOnesOwnCanBeKilledUnderItsDatabase(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	server := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
	db := pgtest.On(t, server.DSN)
	pgtest.Exec(t, db, "create table things (n int)")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(t.Context()); err == nil {
		t.Error("the pool answers without a server")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Count(t, db, "select count(*) from things"); got != 0 {
		t.Errorf("%d things", got)
	}
	if err := server.Kill(); err != nil { // the clean-up finds no server
		t.Fatal(err)
	}
}

func TestPgTest_ContainerRunsTheVersionOfItsImage(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	began := time.Now()
	db := pgtest.Container(t, "postgres:18")
	t.Logf("ready in %s", time.Since(began).Round(time.Millisecond))
	if got := pgtest.Count(t, db, "select current_setting('server_version_num')::int / 10000"); got != 18 {
		t.Errorf("it is version %d", got)
	}
	if got := pgtest.Count(t, db, "select current_setting('max_prepared_transactions')::int"); got != 20 {
		t.Errorf("max_prepared_transactions is %d", got)
	}
}

func TestPgTest_ABouncerGivesASessionToAnotherClientBetweenTransactions(t *testing.T) {
	skip.InShort(t, "it takes 9 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(pgtest.Bouncer(t, db))
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	var pids [2 * pgtest.BouncerPool]int64
	for i := range pids {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		pids[i] = pgtest.Count(t, conn, "select pg_backend_pid()")
		if pids[i] != pids[0] {
			t.Errorf("one after the other they had sessions %v", pids[:i+1])
		}
	}
}
