package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// tenant is a middleware that gives events a header.
func tenant(name string) func(next outbox.WriteFunc) outbox.WriteFunc {
	return func(next outbox.WriteFunc) outbox.WriteFunc {
		return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
			marked := make([]holdfast.Event, len(events))
			for i, e := range events {
				marked[i] = e
				marked[i].Headers = map[string]string{"tenant": e.Headers["tenant"] + name}
			}
			return next(ctx, tx, marked)
		}
	}
}

func TestMiddleware_TheMiddlewareOfAnOutboxSeesWhatIsWritten(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	o, err := outbox.New(outbox.Config{Use: []func(outbox.WriteFunc) outbox.WriteFunc{tenant("a"), tenant("b")}})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		return o.Write(t.Context(), tx, holdfast.Event{Topic: "orders", Type: "order.placed"}, holdfast.Event{Topic: "orders", Type: "order.paid"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, db, "select count(*) from holdfast.event where headers->>'tenant' = 'ab'"); n != 2 {
		t.Errorf("%d events have both marks, the outermost first; want 2", n)
	}
	if err := o.Queue(&pgx.Batch{}, holdfast.Event{Topic: "orders", Type: "order.placed"}); err == nil || !strings.Contains(err.Error(), "use Write") {
		t.Errorf("Queue went past the middleware: %v", err)
	}
	exec := func(context.Context, string, ...any) error { t.Error("WriteThrough wrote"); return nil }
	if err := o.WriteThrough(t.Context(), exec, holdfast.Event{Topic: "orders", Type: "order.placed"}); err == nil || !strings.Contains(err.Error(), "use an Outbox without") {
		t.Errorf("WriteThrough went past the middleware: %v", err)
	}
}

func TestMiddleware_NoMiddlewareOfAnOutboxLosesEvents(t *testing.T) {
	t.Parallel()
	good := holdfast.Event{Topic: "orders", Type: "order.placed"}
	for name, c := range map[string]struct {
		middleware func(ctx context.Context, tx pgx.Tx, events []holdfast.Event, next outbox.WriteFunc) error
		says       string // "" if it is written
	}{
		"it passes on": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			return next(ctx, tx, es)
		}, ""},
		"it refuses": {func(context.Context, pgx.Tx, []holdfast.Event, outbox.WriteFunc) error { return errors.New("mine") }, "mine"},
		"it never calls next": {func(context.Context, pgx.Tx, []holdfast.Event, outbox.WriteFunc) error { return nil },
			"write events: a middleware returned nil without calling next: the events were not written"},
		"it calls next twice": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			return errors.Join(next(ctx, tx, es), next(ctx, tx, es))
		}, "the events would be written twice"},
		"it swallows an error": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			_ = next(ctx, tx, []holdfast.Event{{Topic: "orders"}, {Topic: "orders"}})
			return nil
		}, "a middleware returned nil, but the events were not written: write events: "},
		"it leaves events out": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			return next(ctx, tx, es[:1])
		}, "a middleware gave next 1 events, of 2"},
		"it gives none": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			return next(ctx, tx, nil)
		}, "a middleware gave next 0 events, of 2"},
		"it swallows that": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			_ = next(ctx, tx, es[:1])
			return nil
		}, "the events were not written: write events: a middleware gave next 1 events, of 2"},
		"it fails afterwards": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			if err := next(ctx, tx, es); err != nil {
				return err
			}
			return errors.New("mine")
		}, "a middleware failed after the events were written, so roll the transaction back: mine"},
		"it tries again": {func(ctx context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			if next(ctx, tx, []holdfast.Event{{Topic: "orders"}, {Topic: "orders"}}) == nil {
				return errors.New("an event without a type was written")
			}
			return next(ctx, tx, es)
		}, ""},
		"it passes another context": {func(_ context.Context, tx pgx.Tx, es []holdfast.Event, next outbox.WriteFunc) error {
			return next(context.Background(), tx, es)
		}, "a context that was not made from its own"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := migrated.New(t)
			o, err := outbox.New(outbox.Config{Use: []func(outbox.WriteFunc) outbox.WriteFunc{func(next outbox.WriteFunc) outbox.WriteFunc {
				return func(ctx context.Context, tx pgx.Tx, es []holdfast.Event) error {
					return c.middleware(ctx, tx, es, next)
				}
			}}})
			if err != nil {
				t.Fatal(err)
			}
			err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return o.Write(t.Context(), tx, good, good) })
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("Write returned %v, want %q", err, c.says)
			}
			want := int64(2)
			if c.says != "" {
				want = 0
			}
			if n := pgtest.Count(t, db, "select count(*) from holdfast.event"); n != want {
				t.Errorf("%d events, want %d", n, want)
			}
		})
	}
}
