package idempotency

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// Promises whose breach nothing else shows.

// R28.
func TestHostilePromises_AnAnswerThatSomebodyElseStoredIsNotTakenForOnesOwn(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	other := b.service(b.guardOn(b.pool(4)), b.charge)
	var between *httptest.ResponseRecorder
	f := &faulty{t: t, point: points[5], fault: fault{"the transaction is gone, and another request is quicker", func(f *faulty) {
		faults[3].do(f)
		wait.Until(b, "its lock is free", func() bool {
			between = b.send(other, sent{key: "k"})
			return between.Code == 201
		})
	}}, admin: b.server.Pool}
	pool := faultyPool(t, b.db.DSN, f)
	h := b.service(b.guardOn(pool), b.charge)
	b.is(b.send(h, sent{key: "warm"}), 201, "")
	f.armed.Store(true)
	first := b.send(h, sent{key: "k"})
	if !f.struck.Load() {
		t.Fatal("the fault did not happen")
	}
	b.is(first, 503, codeStoreUnavailable) // not 201 with a charge that was rolled back
	b.same(between, b.send(h, sent{key: "k"}))
	b.kept(2, 2, 2)
}

// C4.
func TestHostilePromises_TheStatusOfARequestIsThatOfWhoeverAsks(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	handler, entered, letGo := b.slow()
	defer letGo()
	h := b.service(b.guard(), handler, Route{Operation: "charge", StatusURL: func(r *http.Request, key string) string {
		return "/accounts/" + r.Header.Get("Account") + r.URL.Path + "/" + key
	}})
	done := make(chan int, 2)
	for _, account := range []string{"a", "b"} {
		go func() { done <- b.send(h, sent{key: "k", account: account}).Code }()
		<-entered
	}
	for _, account := range []string{"a", "b"} {
		w := b.send(h, sent{key: "k", account: account})
		if b.is(w, 202, codeInProgress); w.Header().Get("Location") != "/accounts/"+account+"/charges/k" {
			t.Errorf("%s is sent to %s", account, w.Header().Get("Location"))
		}
	}
	letGo()
	if one, two := <-done, <-done; one != 201 || two != 201 {
		t.Errorf("got %d and %d", one, two)
	}
}

func TestHostilePromises_ASessionThatFallsSilentOrWaitsForALockIsEndedByPostgres(t *testing.T) {
	for mode, c := range map[string]struct {
		o    Route
		idle string
	}{
		"in a transaction":               {Route{Timeout: 7 * time.Second}, "17s"},
		"in a transaction without a key": {Route{Timeout: 7 * time.Second, Optional: true}, "17s"},
		"in a step":                      {Route{Timeout: 7 * time.Second, Lease: 3 * time.Second}, "13s"},
	} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			h := b.stepping(b.guard(), c.o, func(ctx context.Context) error {
				_, err := Step(ctx, "one", func(ctx context.Context, tx pgx.Tx) (string, error) {
					var idle, lock string
					err := tx.QueryRow(ctx, "select current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')").Scan(&idle, &lock)
					if idle != c.idle || lock != "7s" {
						t.Errorf("it is ended after %s of silence, and waits %s for a lock", idle, lock)
					}
					return "", err
				})
				return err
			})
			key := map[bool]string{false: "k"}[c.o.Optional]
			b.is(b.send(h, sent{key: key}), 201, "")
			// And it is theirs alone: the session goes back as it was.
			if n := pgtest.Count(t, b.db, "select count(*) from pg_settings where name = 'idle_in_transaction_session_timeout' and setting <> reset_val"); n != 0 {
				t.Error("the session has kept it")
			}
		})
	}
}

// R45.
func TestHostilePromises_ABudgetNeverGivesAHandlerMoreTimeThanItsRoute(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			o.Timeout = 200 * time.Millisecond
			for name, c := range map[string]struct{ route, budget string }{"a longer one": {"long", "60"}, "none": {"none", ""}} {
				o.Operation = c.route
				h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-r.Context().Done():
					case <-time.After(wait.Limit()):
						t.Errorf("%s: its context does not end", name)
					}
					if !errors.Is(r.Context().Err(), context.DeadlineExceeded) {
						t.Errorf("%s: got %v", name, r.Context().Err())
					}
					w.WriteHeader(503)
				}, o)
				b.is(b.send(h, sent{key: "k", header: http.Header{"X-Request-Timeout": {c.budget}}}), 503, "")
			}
		})
	}
}

func TestHostilePromises_TheTransactionEndsForGoroutinesThatTheHandlerLeft(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			var left pgx.Tx
			h := b.stepping(b.guardOn(b.pool(1)), o, func(ctx context.Context) error {
				_, err := Step(ctx, "one", func(ctx context.Context, tx pgx.Tx) (string, error) {
					if left = tx; o.Lease == 0 {
						left = Tx(ctx)
					}
					return insertAmount("in time")(ctx, tx)
				})
				return err
			})
			b.is(b.send(h, sent{key: "k"}), 201, "")
			if _, err := left.Exec(t.Context(), "insert into charge (amount) values ('late')"); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("got %v", err)
			}
			b.kept(1, 0, 1)
		})
	}
}

// R30.
func TestHostilePromises_AnAnswerAsLongAsMayBeIsKeptAndOneByteMoreIsNot(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			o.MaxResponse = 100
			for length, omitted := range map[int]string{100: "", 101: "omitted"} {
				o.Operation = strconv.Itoa(length)
				h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, length)) }, o)
				b.is(b.send(h, sent{key: "k"}), 200, "")
				if w := b.send(h, sent{key: "k"}); w.Header().Get(headerBody) != omitted || (w.Body.Len() == length) != (omitted == "") {
					t.Errorf("%d bytes: a replay has %d, %v", length, w.Body.Len(), w.Header())
				}
			}
		})
	}
}
