package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/contrib/sql/sqltx"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestHandler_AHandlersWorkAndItsEventAreOneCommit(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	h := func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
		if err := insert(ctx, tx, e.ID); err != nil {
			return err
		}
		if err := sqloutbox.Write(ctx, tx, holdfast.Event{Topic: "next", Type: "n", Key: e.ID}); err != nil {
			return err
		}
		if e.ID == "fails" {
			return errors.New("planned")
		}
		return nil
	}
	if out := b.receive("works", h); out != inbox.Handled {
		t.Errorf("it is %s", out)
	}
	if out := b.receive("works", h); out != inbox.Duplicate {
		t.Errorf("the second time it is %s", out)
	}
	if out := b.receive("fails", h); out != inbox.Retrying {
		t.Errorf("one that fails is %s", out)
	}
	written := pgtest.Count(b, b.pool, "select count(*) from holdfast.event where topic = 'next'")
	if works, fails := b.effects("works"), b.effects("fails"); works != 1 || fails != 0 || written != 1 {
		t.Errorf("%d and %d effects and %d events, want 1, 0 and 1", works, fails, written)
	}
}

func TestHandler_AHandlerThatEndsTheTransactionIsADeadLetter(t *testing.T) {
	b := setup(t)
	for name, end := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"commit":                      func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		"commit, and the error lost":  func(_ context.Context, tx *sql.Tx) error { _ = tx.Commit(); return nil },
		"rollback, deferred":          func(_ context.Context, tx *sql.Tx) error { defer tx.Rollback(); return nil },
		"commit as a statement":       func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, "commit"); return err },
		"commit, the error lost, too": func(ctx context.Context, tx *sql.Tx) error { _, _ = tx.ExecContext(ctx, "commit"); return nil },
		"rollback as a prepared statement": func(ctx context.Context, tx *sql.Tx) error {
			s, err := tx.PrepareContext(ctx, "/* now */ rollback")
			if err != nil {
				return err
			}
			_, err = s.ExecContext(ctx)
			return err
		},
		"commit in a query": func(ctx context.Context, tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, "end")
			if err != nil {
				return err
			}
			return rows.Close()
		},
	} {
		out := b.receive(name, func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
			if err := insert(ctx, tx, e.ID); err != nil {
				return err
			}
			return end(ctx, tx)
		})
		if out != inbox.Dead || b.effects(name) != 0 {
			t.Errorf("%s: it is %s, with %d effects", name, out, b.effects(name))
		}
	}
}

// A request to cancel that overtakes its statement is lost. The backend then sleeps on, with the lock on the event's row, and must be
// done before those who wait for that give up.
func TestHandler_ATimeOutEndsAStatementWithoutAContext(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	b := setup(t)
	short := func(c *inbox.Config) { c.Timeout = 300 * time.Millisecond }
	for name, sleep := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"a statement": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "select pg_sleep(5)")
			return err
		},
		"a statement without a context": func(_ context.Context, tx *sql.Tx) error { _, err := tx.Exec("select pg_sleep(5)"); return err },
		"a query without a context": func(_ context.Context, tx *sql.Tx) error {
			var none sql.NullString
			return tx.QueryRow("select pg_sleep(5)::text").Scan(&none)
		},
		"rows without a context": func(_ context.Context, tx *sql.Tx) error {
			rows, err := tx.Query("select pg_sleep(case when n = 1 then 0 else 5 end)::text from generate_series(1, 2) n")
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			return rows.Err()
		},
		"a statement, and the error lost": func(_ context.Context, tx *sql.Tx) error { _, _ = tx.Exec("select pg_sleep(5)"); return nil },
	} {
		if out := b.receive(name, func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
			if err := insert(ctx, tx, e.ID); err != nil {
				return err
			}
			return sleep(ctx, tx)
		}, short); out != inbox.Retrying || b.effects(name) != 0 {
			t.Errorf("%s: it is %s, with %d effects", name, out, b.effects(name))
		}
	}
	reasons := pgtest.Count(b, b.pool, "select count(*) from holdfast.stored where errors[1] like '%cancelled after 300ms%'")
	if reasons != 5 {
		t.Errorf("%d of 5 say that the time was up", reasons)
	}
}

func TestHandler_AFailedStatementFailsAHandlerThatReturnsNil(t *testing.T) {
	b := setup(t)
	out := b.receive("e", func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
		_ = insert(ctx, tx, e.ID)
		_ = insert(ctx, tx, e.ID) // the same key
		return nil
	})
	if out != inbox.Retrying || b.effects("e") != 0 {
		t.Errorf("it is %s, with %d effects", out, b.effects("e"))
	}
}

func TestHandler_ASavepointUndoesAFailedStatement(t *testing.T) {
	b := setup(t)
	out := b.receive("e", func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
		if err := insert(ctx, tx, e.ID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "savepoint s"); err != nil {
			return err
		}
		if err := insert(ctx, tx, e.ID); err == nil {
			return errors.New("the same key is no error")
		}
		_, err := tx.ExecContext(ctx, "rollback to savepoint s")
		return err
	})
	if out != inbox.Handled || b.effects("e") != 1 {
		t.Errorf("it is %s, with %d effects", out, b.effects("e"))
	}
}

func TestHandler_APanicGivesTheConnectionBack(t *testing.T) {
	b := setup(t)
	out := b.receive("e", func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
		if err := insert(ctx, tx, e.ID); err != nil {
			return err
		}
		panic("planned")
	})
	if out != inbox.Retrying || b.effects("e") != 0 {
		t.Errorf("it is %s, with %d effects", out, b.effects("e"))
	}
}

func TestHandler_ABatchHandlerGetsItsEventsInOneTransaction(t *testing.T) {
	b := setup(t)
	h := sqltx.BatchHandler(func(ctx context.Context, tx *sql.Tx, events []holdfast.Event) error {
		for _, e := range events {
			if err := insert(ctx, tx, e.ID); err != nil {
				return err
			}
		}
		if len(events) == 3 {
			return tx.Rollback()
		}
		return nil
	})
	var _ inbox.BatchHandler = h
	run := func(ids ...string) error {
		var events []holdfast.Event
		for _, id := range ids {
			events = append(events, holdfast.Event{ID: id})
		}
		return pgx.BeginFunc(b.Context(), b.pool, func(tx pgx.Tx) error { return h(b.Context(), tx, events) })
	}
	if err := run("1", "2"); err != nil || b.effects("1")+b.effects("2") != 2 {
		t.Errorf("got %v and %d effects", err, b.effects("1")+b.effects("2"))
	}
	if err := run("3", "4", "5"); !errors.Is(err, sqltx.ErrLent) || b.effects("3") != 0 {
		t.Errorf("got %v and %d effects", err, b.effects("3"))
	}
}

// A route's work, its answer and its key are one commit.
func TestHandler_AnIdempotentRouteWorksInALentTransaction(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	guard, err := idempotency.New(b.pool, idempotency.Config{Principal: func(*http.Request) (string, error) { return "alice", nil }})
	if err != nil {
		t.Fatal(err)
	}
	route := guard.Route(idempotency.Route{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := sqltx.Lend(r.Context(), idempotency.Tx(r.Context()), func(tx *sql.Tx) error {
			if err := insert(r.Context(), tx, r.Header.Get("Idempotency-Key")); err != nil {
				return err
			}
			return sqloutbox.Write(r.Context(), tx, holdfast.Event{Topic: "charges", Type: "charge.made"})
		})
		if err != nil || r.Header.Get("Fail") != "" {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	post := func(key, fail string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader("{}")).WithContext(b.Context())
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Fail", fail)
		w := httptest.NewRecorder()
		route.ServeHTTP(w, r)
		return w.Code, w.Header().Get("Idempotent-Replayed")
	}
	if code, replayed := post("k1", ""); code != http.StatusCreated || replayed == "true" {
		t.Errorf("the first time: %d, replayed %q", code, replayed)
	}
	if code, replayed := post("k1", ""); code != http.StatusCreated || replayed != "true" {
		t.Errorf("the second time: %d, replayed %q", code, replayed)
	}
	if code, _ := post("k2", "yes"); code != http.StatusInternalServerError {
		t.Errorf("a failure: %d", code)
	}
	if n := pgtest.Count(b, b.pool, "select count(*) from holdfast.event"); n != 1 || b.effects("k1") != 1 || b.effects("k2") != 0 {
		t.Errorf("%d events, %d and %d effects", n, b.effects("k1"), b.effects("k2"))
	}
}
