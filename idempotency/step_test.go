package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// stepping is a service whose handler is f, on a route with a lease or in transaction mode, and answers 201 where f has
// no error, else 500.
func (b *bundle) stepping(g *Guard, o Route, f func(ctx context.Context) error) http.Handler {
	return b.service(g, func(w http.ResponseWriter, r *http.Request) {
		if err := f(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}, o)
}

func insertAmount(amount string) func(ctx context.Context, tx pgx.Tx) (string, error) {
	return func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "insert into charge (amount) values ($1)", amount)
		return amount, err
	}
}

var modes = map[string]Route{"in a transaction": {}, "under a lease": {Lease: 10 * time.Second}}

func TestStep_AStepThatIsMisusedSaysHow(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			var after context.Context
			h := b.stepping(b.guard(), o, func(ctx context.Context) error {
				after = ctx
				run := func(ctx context.Context, name string, fn func(ctx context.Context, tx pgx.Tx) (string, error)) error {
					_, err := Step(ctx, name, fn)
					return err
				}
				for _, c := range []struct {
					what string
					err  error
					part string
				}{
					{"no name", run(ctx, "", insertAmount("no")), "1 to 128 bytes"},
					{"a long name", run(ctx, strings.Repeat("n", 129), insertAmount("no")), "1 to 128 bytes"},
					{"a name that is not UTF-8", run(ctx, "\xff", insertAmount("no")), "1 to 128 bytes"},
					{"no request", run(context.Background(), "a", insertAmount("no")), "belongs to no guarded request"},
					{"its own error", run(ctx, "b", func(ctx context.Context, tx pgx.Tx) (string, error) {
						insertAmount("no")(ctx, tx)
						return "", errors.New("planned")
					}), "planned"},
					{"the same name after an error", run(ctx, "b", insertAmount("yes")), ""},
					{"the same name again", run(ctx, "b", insertAmount("no")), "each step its own name"},
					{"one in another", run(ctx, "c", func(ctx context.Context, tx pgx.Tx) (string, error) {
						return Step(ctx, "d", insertAmount("no"))
					}), "inside another step"},
					{"a statement that failed unseen", run(ctx, "e", func(ctx context.Context, tx pgx.Tx) (string, error) {
						tx.Exec(ctx, "insert into charge (amount) values ('no')")
						tx.Exec(ctx, "select 1/0")
						return "", nil
					}), "transaction"},
					{"a commit of its own", run(ctx, "f", func(ctx context.Context, tx pgx.Tx) (string, error) {
						return "", tx.Commit(ctx)
					}), "Step ends the step's transaction"},
					{"a result that JSON has no form for", run(ctx, "g", func(ctx context.Context, tx pgx.Tx) (string, error) {
						return strings.Repeat("x", defaultMaxResponse), nil
					}), "it must be at most 1048576"},
				} {
					if c.part == "" && c.err != nil || c.part != "" && (c.err == nil || !strings.Contains(c.err.Error(), c.part)) {
						t.Errorf("%s: got %v", c.what, c.err)
					}
				}
				return nil
			})
			b.is(b.send(h, sent{key: "k"}), 201, "")
			if _, err := Step(after, "late", insertAmount("no")); !errors.Is(err, errNoRequest) {
				t.Errorf("after the handler: got %v", err)
			}
			if n, m := pgtest.Count(t, b.db, "select count(*) from charge"), pgtest.Count(t, b.db, "select count(*) from charge where amount = 'yes'"); n != 1 || m != 1 {
				t.Errorf("%d rows, %d of them right", n, m)
			}
			if n := b.db.Stat().AcquiredConns(); n != 0 {
				t.Errorf("%d connections were never given back", n)
			}
		})
	}
}

func TestStep_AHandlerInStepsWorksInBothModes(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			fail := true
			h := b.stepping(b.guard(), o, func(ctx context.Context) error {
				if _, err := Tx(ctx).Exec(ctx, "select 1"); (err != nil) != (o.Lease > 0) {
					t.Errorf("its transaction says %v", err)
				}
				for _, name := range []string{"one", "two"} {
					if got, err := Step(ctx, name, insertAmount(name)); err != nil || got != name {
						return fmt.Errorf("got %q, %w", got, err)
					}
					if fail {
						fail = false
						return errors.New("planned")
					}
				}
				return nil
			})
			b.is(b.send(h, sent{key: "k"}), 500, "")
			if n := pgtest.Count(t, b.db, "select count(*) from charge"); (n == 1) != (o.Lease > 0) {
				t.Errorf("%d rows are kept", n)
			}
			b.is(b.send(h, sent{key: "k"}), 201, "")
			b.kept(2, 0, 1)
		})
	}
}

func TestStep_AStepsResultIsTheSameTheFirstTimeAndLater(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	type result struct {
		Text  string
		Big   int64
		Bytes []byte
		Float float64
		Map   map[string]any
		Gone  string `json:"-"`
	}
	want := result{Text: "\x00 <é> \u2028", Big: 9007199254740993, Bytes: []byte{0, 255}, Float: 1e300, Map: map[string]any{"a": nil}}
	var seen []string
	h := b.stepping(b.guard(), Route{Lease: aLease}, func(ctx context.Context) error {
		got, err := Step(ctx, "all", func(ctx context.Context, tx pgx.Tx) (result, error) {
			first := want
			first.Gone = "only in memory"
			return first, nil
		})
		seen = append(seen, fmt.Sprintf("%+v", got))
		if _, err := Step(ctx, "nothing", func(ctx context.Context, tx pgx.Tx) (any, error) { return nil, nil }); err != nil {
			return err
		}
		if err == nil && len(seen) == 1 {
			err = errors.New("planned")
		}
		return err
	})
	b.is(b.send(h, sent{key: "k"}), 500, "")
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if len(seen) != 2 || seen[0] != seen[1] || seen[0] != fmt.Sprintf("%+v", want) {
		t.Errorf("got %q", seen)
	}
	changed := b.stepping(b.guard(), Route{Lease: aLease}, func(ctx context.Context) error {
		if len(seen) == 2 {
			seen = nil
			_, err := Step(ctx, "all", insertAmount("text"))
			return errors.Join(err, errors.New("planned"))
		}
		_, err := Step(ctx, "all", func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, nil })
		return err
	})
	b.is(b.send(changed, sent{key: "k2"}), 500, "")
	if w := b.send(changed, sent{key: "k2"}); w.Code != 500 || !strings.Contains(w.Body.String(), `step "all"`) {
		t.Errorf("a step whose result has another type now: got %d %s", w.Code, w.Body)
	}
}

func TestStep_ASerializationFailureRunsAStepAgainAndNothingElse(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, "create table balance (id int primary key, cents int)")
	pgtest.Exec(t, b.db, "insert into balance values (1, 0)")
	runs := 0
	h := b.stepping(b.guard(), Route{Lease: 10 * time.Second, Isolation: pgx.RepeatableRead}, func(ctx context.Context) error {
		b.runs.Add(1)
		_, err := Step(ctx, "add", func(ctx context.Context, tx pgx.Tx) (int, error) {
			var cents int
			if err := tx.QueryRow(ctx, "select cents from balance").Scan(&cents); err != nil {
				return 0, err
			}
			if runs++; runs == 1 {
				pgtest.Exec(t, b.db, "update balance set cents = 10")
			}
			_, err := tx.Exec(ctx, "update balance set cents = $1", cents+1)
			return cents, err
		})
		return err
	})
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if cents := pgtest.Count(t, b.db, "select cents from balance"); cents != 11 || runs != 2 || b.runs.Load() != 1 {
		t.Errorf("the balance is %d after %d runs of the step and %d of the handler", cents, runs, b.runs.Load())
	}
}

func TestStep_StepsOfOneRequestRunOneAtATime(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			h := b.stepping(b.guard(), o, func(ctx context.Context) error {
				var wg sync.WaitGroup
				errs := make(chan error, 5)
				for i := range 5 {
					wg.Go(func() {
						_, err := Step(ctx, fmt.Sprint("step ", i), insertAmount("x"))
						errs <- err
					})
				}
				wg.Wait()
				close(errs)
				var all error
				for err := range errs {
					all = errors.Join(all, err)
				}
				return all
			})
			b.is(b.send(h, sent{key: "k"}), 201, "")
			b.kept(5, 0, 1)
		})
	}
}

func TestStep_AStepWaitsForTheEndOfOneWhoseCommitIsUnknown(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	// The reply to the step's COMMIT is lost, and its transaction still has the row: another session stands in for it.
	b := setup(t)
	g := b.guard()
	h := b.stepping(g, Route{Lease: 10 * time.Second}, func(ctx context.Context) error {
		hd := handlingOf(ctx)
		k := hd.lease.key
		tx, err := b.db.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, g.sql.stepLock, k.Scope, k.Operation, k.Key, hd.lease.fence); err != nil {
			return err
		}
		type confirmed struct {
			result []byte
			err    error
		}
		done := make(chan confirmed)
		go func() {
			result, err := hd.confirmStep(ctx, "one")
			done <- confirmed{result, err}
		}()
		wait.Until(b, "it waits for the row", func() bool {
			return pgtest.Count(t, b.db, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%idempotency.step_lo%'") == 1
		})
		if _, err := tx.Exec(ctx, g.sql.stepDone, k.Scope, k.Operation, k.Key, hd.lease.fence, "one", 1_000_000, 1_000_000, `"yes"`); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		if c := <-done; c.err != nil || string(c.result) != `"yes"` {
			t.Errorf("got %s, %v", c.result, c.err)
		}
		if result, err := hd.confirmStep(ctx, "another"); !errors.Is(err, errUndone) {
			t.Errorf("a step that was undone: got %s, %v", result, err)
		}
		pgtest.Exec(t, b.db, "update holdfast.idempotency set fence = nextval('holdfast.idempotency_fence')")
		if result, err := hd.confirmStep(ctx, "one"); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("without the lease: got %s, %v", result, err)
		}
		return nil
	})
	b.is(b.send(h, sent{key: "k"}), 409, codeInProgress)
}

func TestStep_AStepIsNotedWithItsWritesOrNotAtAll(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	// Whoever has taken the row away from under the step, by hand: it is not committed without its note.
	b := setup(t)
	h := b.stepping(b.guard(), Route{Lease: 10 * time.Second}, func(ctx context.Context) error {
		_, err := Step(ctx, "one", func(ctx context.Context, tx pgx.Tx) (string, error) {
			if _, err := tx.Exec(ctx, "delete from holdfast.idempotency"); err != nil {
				return "", err
			}
			return insertAmount("no")(ctx, tx)
		})
		if err == nil {
			t.Error("no error")
		}
		return err
	})
	b.is(b.send(h, sent{key: "k"}), 500, "")
	b.kept(0, 0, 1)
}
