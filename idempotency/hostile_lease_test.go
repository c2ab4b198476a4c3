package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// What a handler under a lease, its store and its database may do that nobody thought of.

func TestHostileLease_AStepWhoseResultCannotBeReadAgainIsUndone(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			h := b.stepping(b.guard(), o, func(ctx context.Context) error {
				_, err := Step(ctx, "one", func(ctx context.Context, tx pgx.Tx) (error, error) { // JSON cannot make an error
					_, err := insertAmount("no")(ctx, tx)
					return errors.New("a result"), err
				})
				if err == nil || !strings.Contains(err.Error(), "its result cannot be read as error") {
					t.Errorf("got %v", err)
				}
				_, err = Step(ctx, "one", insertAmount("yes")) // as corrected, under its name
				return err
			})
			b.is(b.send(h, sent{key: "k"}), 201, "")
			if n := pgtest.Count(t, b.db, "select count(*) from charge where amount = 'no'"); n != 0 {
				t.Error("what it wrote is kept, and its result cannot be had")
			}
		})
	}
}

// R39.
func TestHostileLease_UnderALeaseTheValidityShownFirstIsTheDatabases(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	h := b.service(b.guard(func(c *Config) { c.ShowExpiry = true }), func(w http.ResponseWriter, r *http.Request) {
		// From here on the database's clock is some years ahead of the process's.
		w.WriteHeader(201)
	}, Route{Lease: aLease})
	pgtest.Exec(t, b.db, "create function holdfast.later() returns trigger language plpgsql as $$ begin if new.state = 'complete' then new.expires_at := new.expires_at + interval '3 years'; end if; return new; end $$")
	pgtest.Exec(t, b.db, "create trigger later before update on holdfast.idempotency for each row execute function holdfast.later()")
	first, second := b.send(h, sent{key: "k"}), b.send(h, sent{key: "k"})
	if a, z := first.Header().Get(headerExpires), second.Header().Get(headerExpires); a == "" || a != z {
		t.Errorf("it is %q first, and %q in a replay", a, z)
	}
}

// renewing answers renewals without the database, and counts them.
type renewing struct {
	store.Store
	times atomic.Int32
}

func (r *renewing) Renew(context.Context, store.Key, int64, time.Duration) (bool, error) {
	r.times.Add(1)
	return true, nil
}

// A step stops the renewals only once it has a connection: the wait for one may be longer than the lease.
func TestHostileLease_AClaimIsRenewedWhileAStepWaitsForAConnection(t *testing.T) {
	b := setup(t)
	pool := b.pool(1)
	g := b.guardOn(pool, func(c *Config) { c.AcquireTimeout = 2 * time.Minute })
	keys := &renewing{Store: g.pg()}
	g.store = keys
	h := b.stepping(g, Route{Lease: time.Second, Timeout: 2 * time.Minute}, func(ctx context.Context) error {
		held, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() {
			_, err := Step(ctx, "one", insertAmount("10"))
			done <- err
		}()
		wait.Until(b, "the step waits for the connection", func() bool { return pool.Stat().EmptyAcquireCount() >= 1 && handlingOf(ctx).steps.Busy() })
		before := keys.times.Load()
		wait.Until(b, "the claim is renewed meanwhile", func() bool { return keys.times.Load() >= before+3 })
		held.Release()
		return <-done
	})
	b.is(b.send(h, sent{key: "k"}), 201, "")
}

func TestHostileLease_ACompletedRequestHasThePatternOfItsRoute(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	var seen []string
	g := b.guard(soon(10))
	mux := http.NewServeMux()
	mux.Handle("POST /shops/{id}/sales", g.Route(completed())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, fmt.Sprint(r.Pattern, " ", r.PathValue("id")))
		w.WriteHeader(map[bool]int{true: 503, false: 201}[len(seen) == 1])
	})))
	b.is(b.send(mux, sent{key: "k", path: "/shops/1/sales"}), 503, "")
	b.complete(g, 1)
	if len(seen) != 2 || seen[0] != seen[1] || seen[0] != "POST /shops/{id}/sales 1" {
		t.Errorf("seen %q", seen)
	}
}
