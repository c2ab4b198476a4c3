package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// player is a transaction that a schedule moves step by step.
type player struct {
	t  *testing.T
	tx pgx.Tx
}

func begin(t *testing.T, pool *pgxpool.Pool) player {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return player{t, tx}
}

func (p player) drawXid() player { pgtest.Exec(p.t, p.tx, "select pg_current_xact_id()"); return p }
func (p player) lock(key string) player {
	p.t.Helper()
	if err := outbox.Lock(p.t.Context(), p.tx, key); err != nil {
		p.t.Fatal(err)
	}
	return p
}
func (p player) write(key, payload string) player {
	p.t.Helper()
	if err := outbox.Write(p.t.Context(), p.tx, event(key, payload)); err != nil {
		p.t.Fatal(err)
	}
	return p
}
func (p player) commit() {
	p.t.Helper()
	if err := p.tx.Commit(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// The schedules on which other readers lose events or break the order of a key. Each is played before a relay of its
// own that has read everything before it, and each is played again for a relay that finds it as a backlog.
func TestRead_SchedulesThatOtherReadersFallFor(t *testing.T) {
	t.Parallel()
	schedules := []struct {
		name string
		play func(t *testing.T, pool *pgxpool.Pool, arrive func(payloads ...string))
		want []string // of key k
	}{
		{"a transaction that drew its xid first writes last: order by xid reverses them",
			func(t *testing.T, pool *pgxpool.Pool, arrive func(...string)) {
				t2, t1 := begin(t, pool).drawXid(), begin(t, pool).drawXid()
				t1.lock("k").write("k", "e1").commit()
				t2.lock("k").write("k", "e2").commit()
				arrive("e1", "e2")
			}, []string{"e1", "e2"}},
		{"as before, and the reader comes between: a high-water mark of xids loses the second",
			func(t *testing.T, pool *pgxpool.Pool, arrive func(...string)) {
				t2, t1 := begin(t, pool).drawXid(), begin(t, pool).drawXid()
				t1.lock("k").write("k", "e1").commit()
				arrive("e1")
				t2.lock("k").write("k", "e2").commit()
				arrive("e2")
			}, []string{"e1", "e2"}},
		{"a long transaction between two others: the horizon below it holds back one and lets the other go",
			func(t *testing.T, pool *pgxpool.Pool, arrive func(...string)) {
				t2, t3, t1 := begin(t, pool).drawXid(), begin(t, pool).drawXid(), begin(t, pool).drawXid()
				t1.lock("k").write("k", "e1").commit()
				t2.lock("k").write("k", "e2").commit()
				arrive("e1", "e2") // although t3 is open
				t3.lock("k").write("k", "e3").commit()
				arrive("e3")
			}, []string{"e1", "e2", "e3"}},
		{"a seq that was drawn long before it is committed: a high-water mark of seq loses it",
			func(t *testing.T, pool *pgxpool.Pool, arrive func(...string)) {
				late := begin(t, pool).write("late", "late")
				begin(t, pool).lock("k").write("k", "e1").commit()
				arrive("e1")
				late.commit()
				arrive("late")
			}, []string{"e1"}},
		{"a seq that was drawn before its transaction had an xid: nobody in flight covers the gap",
			func(t *testing.T, pool *pgxpool.Pool, arrive func(...string)) {
				seq := pgtest.Count(t, pool, "select nextval('holdfast.event_seq')")
				begin(t, pool).lock("k").write("k", "e1").commit()
				arrive("e1")
				pgtest.Exec(t, pool, "insert into holdfast.event_0 (seq, lane, id, type, topic, key, payload) values ($1, 0, 'late', 't', 'orders', 'late', 'late')", seq)
				arrive("late")
			}, []string{"e1"}},
		{"a transaction that is prepared and committed much later",
			func(t *testing.T, pool *pgxpool.Pool, arrive func(...string)) {
				p := begin(t, pool).write("prepared", "prepared")
				name := pool.Config().ConnConfig.Database
				pgtest.Exec(t, p.tx, "prepare transaction '"+name+"'")
				begin(t, pool).lock("k").write("k", "e1").commit()
				arrive("e1")
				pgtest.Exec(t, pool, "commit prepared '"+name+"'")
				arrive("prepared")
			}, []string{"e1"}},
		{"savepoints, some of them rolled back, inside transactions that end in the other order",
			func(t *testing.T, pool *pgxpool.Pool, arrive func(...string)) {
				a, c := begin(t, pool), begin(t, pool).write("c", "c1")
				pgtest.Exec(t, a.tx, "savepoint s")
				a.lock("k").write("k", "ghost")
				pgtest.Exec(t, a.tx, "rollback to s")
				pgtest.Exec(t, a.tx, "savepoint s2")
				a.lock("k").write("k", "e1")
				pgtest.Exec(t, c.tx, "savepoint s")
				c.write("c", "c2").commit()
				arrive("c1", "c2")
				a.commit()
				arrive("e1")
			}, []string{"e1"}},
	}
	for _, s := range schedules {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			pool, live, late := setup(t, 1), newBroker(), newBroker()
			write(t, pool, event("before", "before"))
			stop := run(t, pool, live, relay.Config{})
			arrives(t, live, "before")
			s.play(t, pool, func(payloads ...string) { t.Helper(); arrives(t, live, payloads...) })
			stop()
			wantFirsts(t, live, "k", s.want...)
			wantOnce(t, live)
			// All of it again, as one backlog, from the beginning of the log.
			pgtest.Exec(t, pool, "update holdfast.lane set done = '3:3:', upto = null, pos = 0")
			run(t, pool, late, relay.Config{BatchSize: 1})
			arrives(t, late, live.payloads()...)
			wantFirsts(t, late, "k", s.want...)
		})
	}
}

// cutOften makes nearly every write leave a cut, where one in a thousand does.
func cutOften(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, name := range []string{"append_unchecked", "append_one"} {
		_, function, _ := strings.Cut(holdfast.SchemaSQL(), "create function holdfast."+name+"(")
		function, _, _ = strings.Cut(function, "\nend $$;")
		often := strings.Replace(function, "0.001", "0.9", 1)
		if often == function {
			t.Fatalf("holdfast.%s does not say how often it cuts where this test looks for it", name)
		}
		pgtest.Exec(t, pool, "create or replace function holdfast."+name+"("+often+"\nend $$;")
	}
}

// A snapshot leaves its own transaction out, so a cut calls the transaction ended whose write it lies beside.
func TestRead_CutsInsideTheTransactionsTheyCutKeepTheOrder(t *testing.T) {
	t.Parallel()
	for _, size := range []int{5, 50} {
		t.Run(fmt.Sprintf("pages of %d", size), func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 4), newBroker()
			cutOften(t, pool)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h, wg := writers(ctx, t, pool, 8, 12, seed.New(t), "")
			longTransaction(ctx, t, pool, h, wg)
			wait.Until(t, "a backlog", func() bool { return pgtest.Count(t, pool, "select count(*) from holdfast.event") > 300 })
			stop := run(t, pool, b, relay.Config{BatchSize: size}) // among the writers
			began := time.Now()
			wait.Until(t, "there are cuts enough to show anything, and some written beside the relay", func() bool {
				return time.Since(began) > 2*time.Second && pgtest.Count(t, pool, "select count(*) from holdfast.event where snap is not null") >= 30
			})
			cancel()
			wg.Wait()
			wait.Until(t, "all that was committed arrives", func() bool { return h.complete(b) })
			stop()
			if dups := h.check(t, b.events()); dups > 0 {
				t.Errorf("%d duplicates without any fault", dups)
			}
		})
	}
}

func TestRead_ALongTransactionHoldsBackItsOwnEventsOnly(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	run(t, pool, b, relay.Config{})
	var alone, beside []time.Duration
	for round := range 10 { // in turn, so that a machine that gets busier meanwhile is so for both
		some := func(name string) (took []time.Duration) {
			for i := range 5 {
				p := fmt.Sprint(name, round, " ", i)
				write(t, pool, event("k", p))
				began := time.Now()
				arrives(t, b, p)
				took = append(took, time.Since(began))
			}
			return took
		}
		alone = append(alone, some("alone ")...) // is what this machine takes
		payload := fmt.Sprint("long ", round)
		long := begin(t, pool).write("long", payload)
		beside = append(beside, some("beside ")...)
		if b.has(payload) {
			t.Error("the event of an open transaction was published")
		}
		long.commit()
		arrives(t, b, payload)
	}
	median := func(took []time.Duration) time.Duration { slices.Sort(took); return took[len(took)/2] }
	if without, with := median(alone), median(beside); with > 3*without+400*time.Millisecond {
		t.Errorf("half of the events took more than %v after another session's transaction, and %v without it", with, without)
	}
	wantOnce(t, b)
}
