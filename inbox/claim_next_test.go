package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// storeMany stores n events of a key, named by their places in it.
func (b *bundle) storeMany(in *Inbox, n int, key string) {
	b.Helper()
	err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) error {
		for i := range n {
			if _, err := in.StoreTx(b.Context(), tx, event(fmt.Sprint(key, " ", i), key)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// A worker that has settled an event goes on with the next of its key, without a claim for it, but leaves others their turn.
func TestClaimNext_AWorkerGoesOnWithAKeyAndLeavesOthersTheirTurn(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	const n = 3 * maxInARow
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	var mu sync.Mutex
	var order []string
	claims := map[string]int{} // events of each lease token
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var token string
		if err := tx.QueryRow(ctx, "select lease_token::text from holdfast.stored where event_id = $1", e.ID).Scan(&token); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, e.ID)
		claims[token]++
		return effectOf(ctx, tx, e)
	})
	b.storeMany(in, n, "hot")
	b.storeMany(in, 1, "cold")
	stop := b.run(in.Run)
	b.await("all are handled", func(*observations) bool { mu.Lock(); defer mu.Unlock(); return len(order) == n+1 })
	stop()
	if len(claims) != 4 {
		t.Errorf("%d claims for three rows of a key and an event of another, want 4: %v", len(claims), claims)
	}
	hot := 0
	for place, id := range order {
		switch {
		case id == "cold 0" && place > maxInARow:
			t.Errorf("the event of another key came as number %d, want %d at most", place, maxInARow)
		case id != "cold 0" && id != fmt.Sprint("hot ", hot):
			t.Fatalf("%q was handled as number %d of its key", id, hot)
		case id != "cold 0":
			hot++
		}
	}
}

// The lease of the next is as long as any: it does not begin before the handler of the one before has ended.
func TestClaimNext_TheLeaseOfTheNextBeginsWhenItIsClaimed(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	var left atomic.Int64 // of the second's lease, in microseconds, counted from the end of the first handler
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "k 0" {
			if _, err := tx.Exec(ctx, "select pg_sleep(0.3)"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "create table public.ended as select clock_timestamp() as at")
			return err
		}
		var micros int64
		err := tx.QueryRow(ctx, "select (extract(epoch from lease_until - (select at from public.ended)) * 1000000)::bigint from holdfast.stored where event_id = $1", e.ID).Scan(&micros)
		left.Store(micros)
		return err
	})
	b.storeMany(in, 2, "k")
	stop := b.run(in.Run)
	b.await("both are handled", func(*observations) bool { return left.Load() != 0 })
	stop()
	if got, want := time.Duration(left.Load())*time.Microsecond, in.c.lease(); got < want {
		t.Errorf("its lease ends %v after the first handler, want %v at least", got, want)
	}
}

// A worker that is told to stop gives back the one that was claimed with the end of the one before, and it costs no attempt.
func TestClaimNext_AWorkerThatIsToldToStopGivesTheNextBack(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "k 2" {
			cancel()
		}
		return effectOf(ctx, tx, e)
	})
	b.storeMany(in, 10, "k")
	if err := in.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if handled := b.count("select count(*) from effect"); handled != 3 {
		t.Errorf("%d were handled, want 3", handled)
	}
	if spoilt := b.count("select count(*) from holdfast.stored where attempts > 0 or lease_until > now() or place = (select min(place) from holdfast.stored) and next_at > now()"); spoilt != 0 {
		t.Errorf("%d rows have spent an attempt, are leased, or sleep as a head", spoilt)
	}
}

// The next of a key is claimed under the conditions of a claim.
func TestClaimNext_TheNextOfAKeyIsClaimedWhereAClaimWouldTakeIt(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	const head, behind = "place = (select min(place) from holdfast.stored)", "place = (select max(place) from holdfast.stored)"
	for name, c := range map[string]struct {
		sql  string
		want bool
	}{
		"due":                               {"select", true},
		"dormant":                           {"update holdfast.stored set next_at = 'infinity'", true},
		"leased by a clock that was wrong":  {"update holdfast.stored set lease_until = now() + interval '1 year' where " + head, true},
		"due later":                         {"update holdfast.stored set next_at = now() + interval '1 minute' where " + head, false},
		"leased":                            {"update holdfast.stored set lease_until = now() + interval '1 minute' where " + head, false},
		"of a type that nobody here knows":  {"update holdfast.stored set type = 'another' where " + head, false},
		"before one that a worker is at":    {"update holdfast.stored set lease_until = now() + interval '1 minute' where " + behind, false},
		"held by a letter":                  {letterOfKey, false},
		"a replay of the letter that holds": {letterOfKey + "; update holdfast.stored set letter = 1 where " + head, true},
	} {
		pgtest.Exec(t, b.db, "truncate holdfast.stored, holdfast.letter cascade")
		pgtest.Exec(t, b.db, "delete from holdfast.inbox")
		b.storeMany(in, 2, "k")
		pgtest.Exec(t, b.db, c.sql)
		var ids []string
		err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			s := &claimed{e: event("", "k"), token: uuid.NewString()}
			until := in.claims.queueNext(batch, s)
			br := tx.SendBatch(t.Context(), batch)
			next, err := readNext(br, s, until)
			if next != nil {
				ids = append(ids, next.e.ID)
				if next.attempts != 1 || next.token != s.token {
					t.Errorf("%s: it is attempt %d, and the token is not kept: %v", name, next.attempts, next.token != s.token)
				}
			}
			return errors.Join(err, br.Close())
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := len(ids) == 1 && ids[0] == "k 0"; got != c.want || len(ids) > 1 {
			t.Errorf("%s: %q were claimed, want the head: %v", name, ids, c.want)
		}
	}
}

const letterOfKey = `insert into holdfast.letter (id, origin, consumer, reason, fingerprint, holds, event_id, source, type, topic, key, time, hash, attempts)
	overriding system value values (1, 'inbox', 'billing', 'r', 'f', true, 'before', '', 'order.placed', (select min(topic) from holdfast.stored), 'k', now(), '', 1)`
