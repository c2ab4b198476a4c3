package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// ask asks for a version in a transaction of its own and commits it.
func (b *bundle) ask(in *Inbox, entity string, version int64) (fresh bool) {
	b.Helper()
	err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) (err error) {
		fresh, err = in.Watermark(b.Context(), tx, entity, version)
		return err
	})
	if err != nil {
		b.Fatalf("Watermark(%q, %d): %v", entity, version, err)
	}
	return fresh
}

// askTies is ask with WatermarkTies, on the inbox's own pool.
func (b *bundle) askTies(in *Inbox, entity string, version int64) (fresh bool) {
	b.Helper()
	err := pgx.BeginFunc(b.Context(), in.pool, func(tx pgx.Tx) (err error) {
		fresh, err = in.WatermarkTies(b.Context(), tx, entity, version)
		return err
	})
	if err != nil {
		b.Fatalf("WatermarkTies(%q, %d): %v", entity, version, err)
	}
	return fresh
}

func TestWatermark_AWatermarkCallsAVersionFreshThatIsNewerThanAllBefore(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for _, c := range []struct {
		name, entity string
		version      int64
		want         bool
	}{
		{"the first of an entity", "order/1", 2, true},
		{"an older one after it", "order/1", 1, false},
		{"the same again", "order/1", 2, false},
		{"a newer one", "order/1", 3, true},
		{"one that was passed meanwhile", "order/1", 2, false},
		{"the first of another entity, though it is low", "order/2", 1, true},
		{"the lowest there is, of an entity that is new", "low", math.MinInt64, true},
		{"the highest there is", "low", math.MaxInt64, true},
		{"the highest there is, again", "low", math.MaxInt64, false},
		{"an entity that differs in case", "Order/1", 1, true},
	} {
		if got := b.ask(in, c.entity, c.version); got != c.want {
			t.Errorf("%s: Watermark(%q, %d) = %v, want %v", c.name, c.entity, c.version, got, c.want)
		}
	}
	if n := b.count("select version from holdfast.watermark where consumer = 'billing' and entity = 'order/1'"); n != 3 {
		t.Errorf("the watermark of order/1 is %d, want 3", n)
	}
}

func TestWatermark_TheWatermarkOfOneConsumerIsNotAnothers(t *testing.T) {
	b := setup(t)
	billing, shipping := b.inbox(), b.inbox(func(c *Config) { c.Consumer = "shipping" })
	if !b.ask(billing, "order/1", 5) || !b.ask(shipping, "order/1", 4) {
		t.Error("what billing has seen is stale for shipping")
	}
	if b.ask(billing, "order/1", 5) || b.ask(shipping, "order/1", 4) {
		t.Error("one of them forgot what it had seen")
	}
}

func TestWatermark_TheWatermarkIsTakenBackWithTheHandlersTransaction(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	tx := pgtest.Begin(b, b.db)
	if fresh, err := in.Watermark(b.Context(), tx, "order/1", 7); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	if fresh, err := in.Watermark(b.Context(), tx, "order/1", 7); fresh || err != nil {
		t.Errorf("the transaction does not know what it raised itself: %v, %v", fresh, err)
	}
	if err := tx.Rollback(b.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.ask(in, "order/1", 6) {
		t.Error("a version that was rolled back made an older one stale")
	}

	// The same through Receive: the try that fails leaves no mark, so the next one is fresh again.
	var answers []bool
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		fresh, err := in.Watermark(ctx, tx, "order/2", 1)
		if answers = append(answers, fresh); err != nil {
			return err
		}
		if len(answers) == 1 {
			return errors.New("not this time")
		}
		return effectOf(ctx, tx, e)
	})
	in.c.ImmediateRetries = 1
	b.receive(in, event("1", "k"), Handled)
	if !slices.Equal(answers, []bool{true, true}) {
		t.Errorf("the answers of the two tries are %v, want fresh twice", answers)
	}
}

func TestWatermark_ByItsWatermarkAHandlerDoesNotGoBackWhenALetterIsReplayed(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox()
	fixed := false
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		version := int64(e.ID[1] - '0')
		if version == 1 && !fixed {
			return retry.Permanent(errors.New("cannot be read"))
		}
		fresh, err := in.Watermark(ctx, tx, e.Key, version)
		if err != nil || !fresh {
			return err
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("v1", "k"), Dead)
	b.receive(in, event("v2", "k"), Handled)
	fixed = true
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, letter)
		select consumer, topic, key, 1, source, event_id, type, time, payload, hash, id from holdfast.letter`)
	b.run(in.Run)
	b.awaitOutcome("v1", Handled)
	if b.effects("v1") != 0 || b.effects("v2") != 1 {
		t.Errorf("%d effects of v1 and %d of v2, want 0 and 1", b.effects("v1"), b.effects("v2"))
	}
}

// waits says that a session waits for another's transaction.
func (b *bundle) waits() {
	b.Helper()
	wait.Until(b, "the second transaction waits for the first", func() bool {
		return b.count(`select count(*) from pg_locks where not granted and locktype = 'transactionid'
			and pid in (select pid from pg_stat_activity where datname = current_database())`) > 0
	})
}

func TestWatermark_TheWatermarkMakesASecondTransactionWaitAndCompare(t *testing.T) {
	for _, c := range []struct {
		name          string
		before        int64 // 0 = the entity is new
		first, second int64
		commit, want  bool
	}{
		{"the older one waits for the newer, which commits", 1, 3, 2, true, false},
		{"the older one waits for the newer, which rolls back", 1, 3, 2, false, true},
		{"the newer one waits for the older, which commits", 1, 2, 3, true, true},
		{"the same version waits, and the first commits", 1, 2, 2, true, false},
		{"a stale one waits as well", 5, 6, 4, false, false},
		{"both are the entity's first, and the newer commits", 0, 3, 2, true, false},
		{"both are the entity's first, and the newer rolls back", 0, 3, 2, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			if c.before != 0 && !b.ask(in, "e", c.before) {
				t.Fatal("the first version is stale")
			}
			first := pgtest.Begin(b, b.db)
			if fresh, err := in.Watermark(b.Context(), first, "e", c.first); !fresh || err != nil {
				t.Fatal(fresh, err)
			}
			second := make(chan bool, 1)
			go func() {
				var fresh bool
				if err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) (err error) {
					fresh, err = in.Watermark(b.Context(), tx, "e", c.second)
					return err
				}); err != nil {
					t.Error(err)
				}
				second <- fresh
			}()
			b.waits()
			end := first.Rollback
			if c.commit {
				end = first.Commit
			}
			if err := end(b.Context()); err != nil {
				t.Fatal(err)
			}
			if got := <-second; got != c.want {
				t.Errorf("the second got %v, want %v", got, c.want)
			}
		})
	}
}

func TestWatermark_FiftyHandlersOnOneWatermarkOnlyEverGoUp(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout = time.Minute })
	pgtest.Exec(t, b.db, "create table history (n bigint generated always as identity, version bigint)")
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var version int64
		if _, err := fmt.Sscan(e.ID, &version); err != nil {
			return err
		}
		fresh, err := in.Watermark(ctx, tx, "the one", version)
		if err != nil || !fresh {
			return err
		}
		_, err = tx.Exec(ctx, "insert into history (version) values ($1)", version)
		return err
	})
	seed := seed.New(t)
	versions := rand.New(rand.NewPCG(seed, 0)).Perm(200)
	next := make(chan int, len(versions))
	for _, v := range versions {
		next <- v
	}
	close(next)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for v := range next {
				e := event(fmt.Sprint(v), "") // without a key, so that nothing else puts them in order
				if out, err := in.Receive(b.Context(), e); out != Handled || err != nil {
					t.Errorf("version %d: %v, %v", v, out, err)
				}
			}
		})
	}
	wg.Wait()
	if n := b.count("select version from holdfast.watermark"); n != 199 {
		t.Errorf("the watermark ends at %d, want 199", n)
	}
	if n := b.count("select version from history order by n desc limit 1"); n != 199 {
		t.Errorf("the state ends at version %d, want 199", n)
	}
	if n := b.count("select count(*) from (select version <= lag(version) over (order by n) as back from history) h where back"); n != 0 {
		t.Errorf("the state went back %d times", n)
	}
}

func TestWatermark_AWatermarkOfABadEntityIsRefusedAndTheTxGoesOn(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	tx := pgtest.Begin(b, b.db)
	for name, c := range map[string]struct{ entity, want string }{
		"empty":                    {"", "entity is empty: it must have 1 to 1024 bytes"},
		"too long":                 {strings.Repeat("e", 1025), "entity has 1025 bytes"},
		"not UTF-8":                {"order\xff", `entity is "order\xff": it must be UTF-8`},
		"with the character NUL":   {"order\x00", `entity is "order\x00": it must not hold the character NUL`},
		"too long, and quoted cut": {strings.Repeat("é", 600), "…): it must have 1 to 1024"},
	} {
		if fresh, err := in.Watermark(b.Context(), tx, c.entity, 1); fresh || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v, want %q", name, fresh, err, c.want)
		}
	}
	if fresh, err := in.Watermark(b.Context(), tx, strings.Repeat("e", 1024), 1); !fresh || err != nil {
		t.Errorf("after refusals, with the longest entity: %v, %v", fresh, err)
	}
	if _, err := in.Watermark(b.Context(), nil, "e", 1); err == nil || !strings.Contains(err.Error(), "tx is nil") {
		t.Errorf("without a transaction: %v", err)
	}
	if err := tx.Commit(b.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Watermark(b.Context(), tx, "e", 2); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("with a transaction that has ended: %v", err)
	}
}

func TestWatermark_TheWatermarkUsesTheConfiguredSchema(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	if err := holdfast.Migrate(b.Context(), b.db.Pool, holdfast.SchemaConfig{Schema: "other_one"}); err != nil {
		t.Fatal(err)
	}
	b.ask(b.inbox(func(c *Config) { c.Schema = "other_one" }), "e", 1)
	if b.count("select count(*) from other_one.watermark") != 1 || b.count("select count(*) from holdfast.watermark") != 0 {
		t.Error("the row is in another schema than the one configured")
	}
}

func TestWatermark_RaisingWatermarksTouchesNoIndexAndFindsRoomOnTheirPages(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "insert into holdfast.watermark (consumer, entity, version) select 'billing', 'entity ' || n, 1 from generate_series(1, 2000) n")
	tx := pgtest.Begin(b, b.db)
	raised := pgtest.Exec(t, tx, "update holdfast.watermark set version = 2, updated_at = now() where right(entity, 1) = '0'")
	hot := pgtest.Count(t, tx, "select pg_stat_get_xact_tuples_hot_updated('holdfast.watermark'::regclass)")
	if raised != 200 || hot != raised {
		t.Errorf("%d of %d updates were HOT, want all while a tenth of the entities changes", hot, raised)
	}
}

func TestWatermark_AWatermarkWithTiesCallsTheSameVersionFresh(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for _, c := range []struct {
		version int64
		want    bool
	}{{5, true}, {5, true}, {4, false}, {6, true}, {5, false}, {6, true}} {
		if fresh := b.askTies(in, "order/1", c.version); fresh != c.want {
			t.Errorf("WatermarkTies(%d) = %v, want %v", c.version, fresh, c.want)
		}
	}
	if _, err := in.WatermarkTies(b.Context(), nil, "order/1", 1); err == nil {
		t.Error("a missing transaction is no error")
	}
}
