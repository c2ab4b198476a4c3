package faultproxy

import (
	"context"
	"net/url"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// through gives a proxy before the database, and a pool through it.
func through(t *testing.T, db *pgtest.DB, mode pgx.QueryExecMode) (*bundle, *pgxpool.Pool) {
	t.Helper()
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	u.Host = p.Address()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = mode
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &bundle{TB: t, Proxy: p}, pool
}

// How a transaction that inserts id is committed.
var committers = map[string]func(ctx context.Context, pool *pgxpool.Pool, id string) error{
	"Commit": func(ctx context.Context, pool *pgxpool.Pool, id string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into things values ($1)", id)
			return err
		})
	},
	// As the inbox does: COMMIT and what begins the next transaction in one write.
	"a pipeline that goes on": func(ctx context.Context, pool *pgxpool.Pool, id string) error {
		return batch(ctx, pool, func(b *pgx.Batch) {
			b.Queue("commit")
			b.Queue("begin isolation level read committed")
			b.Queue("insert into things values ($1)", "next of "+id)
		}, id)
	},
	"a pipeline that comes before": func(ctx context.Context, pool *pgxpool.Pool, id string) error {
		return batch(ctx, pool, func(b *pgx.Batch) {
			b.Queue("insert into things values ($1)", "beside "+id)
			b.Queue("commit")
		}, id)
	},
}

// batch inserts id in a transaction, and sends more, COMMIT among it, as one batch. A transaction that it leaves open is
// rolled back.
func batch(ctx context.Context, pool *pgxpool.Pool, more func(*pgx.Batch), id string) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "insert into things values ($1)", id); err != nil {
		return err
	}
	b := &pgx.Batch{}
	more(b)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "rollback")
	return err
}

func TestPostgres_ACommitIsCutBeforeItArrivesOrAfterItIsCarriedOut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Exec(t, db, "create table things (id text primary key)")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for how, commit := range committers {
			for _, moment := range []Moment{Before, After} {
				name := mode.String() + ", " + how + ", " + string(moment)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					b, pool := through(t, db, mode)
					there := func(id string) int64 {
						return pgtest.Count(t, db, "select count(*) from things where id = $1", name+" "+id)
					}
					// First without a fault, so that statements are prepared; then with one that hits the first COMMIT.
					if err := commit(t.Context(), pool, name+" 1"); err != nil || there("1") != 1 {
						t.Fatalf("without a fault: %v, %d rows", err, there("1"))
					}
					b.set(CutCommit(moment, Cuts{Most: 1}))
					if err := commit(t.Context(), pool, name+" 2"); err == nil {
						t.Error("the client has no error")
					}
					c := b.Counts()
					if moment == Before && (c.CutBefore != 1 || c.CutAfter != 0) || moment == After && (c.CutBefore != 0 || c.CutAfter != 1) {
						t.Errorf("%d were cut before and %d after", c.CutBefore, c.CutAfter)
					}
					// The session has ended, and with it what it had not committed.
					b.eventually("the transaction has ended", func() bool { return idle(t, db, name) })
					if want := map[Moment]int64{Before: 0, After: 1}[moment]; there("2") != want {
						t.Errorf("%d rows are there, want %d", there("2"), want)
					}
					// That was all it may cut.
					if err := commit(t.Context(), pool, name+" 3"); err != nil || there("3") != 1 {
						t.Errorf("afterwards: %v, %d rows", err, there("3"))
					}
					if n := b.Counts().Commits; n < 3 {
						t.Errorf("%d COMMITs were seen, want 3 or more", n)
					}
				})
			}
		}
	}
}

// idle says whether a row of that name can be locked by anybody: no transaction that wrote it is open.
func idle(t *testing.T, db *pgtest.DB, name string) bool {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	pgtest.Exec(t, tx, "set local lock_timeout = '50ms'")
	_, err = tx.Exec(t.Context(), "insert into things values ($1) on conflict do nothing", name+" 2")
	return err == nil
}

func TestPostgres_TextsThatSpeakOfCommitAreNotCut(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Exec(t, db, "create table things (id text primary key)")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		b, pool := through(t, db, mode)
		b.set(CutCommit(Before, Cuts{}))
		pgtest.Exec(t, pool, "insert into things values ($1)", "it's '; commit; '"+mode.String())
		pgtest.Exec(t, pool, "insert into things values ($1)", "commit\x01"+mode.String())
		if n := pgtest.Count(t, pool, "select count(*) from things -- ; commit;"); n == 0 || b.Counts().Commits != 0 {
			t.Errorf("%s: %d rows, %d COMMITs", mode, n, b.Counts().Commits)
		}
	}
}

func TestPostgres_CommitsAreCutWithTheChanceThatTheSeedDraws(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	var runs [2][]bool
	for i := range runs {
		b, pool := through(t, db, pgx.QueryExecModeCacheStatement)
		b.set(CutCommit(Either, Cuts{Chance: 0.3, Seed: 7}))
		var conn *pgx.Conn
		for range 40 {
			if conn == nil || conn.IsClosed() {
				var err error
				if conn, err = pgx.Connect(t.Context(), pool.Config().ConnString()); err != nil {
					t.Fatal(err)
				}
				defer conn.Close(context.Background())
			}
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			runs[i] = append(runs[i], tx.Commit(t.Context()) != nil)
		}
		c := b.Counts()
		if c.CutBefore == 0 || c.CutAfter == 0 || c.CutBefore+c.CutAfter > 30 || c.Commits != 40 {
			t.Errorf("of 40: %+v", c)
		}
	}
	if !slices.Equal(runs[0], runs[1]) {
		t.Fatalf("the same seed cuts others:\n%v\n%v", runs[0], runs[1])
	}
}
