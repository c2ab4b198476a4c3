package inbox

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// trace notes the order of calls.
type trace struct {
	mu    sync.Mutex
	calls []string
}

func (tr *trace) add(s string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.calls = append(tr.calls, s)
}

func (tr *trace) around(name string) func(next Handler) Handler {
	return func(next Handler) Handler {
		return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			tr.add(name + " begins")
			err := next(ctx, tx, e)
			tr.add(name + " ends")
			return err
		}
	}
}

func TestMiddleware_TheFirstMiddlewareIsOutermost(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	var tr trace
	in.Use(tr.around("a"), tr.around("b"))
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { tr.add("handler"); return nil })
	On(in, "order.paid", func(context.Context, pgx.Tx, orderV2, holdfast.Event) error { tr.add("typed"); return nil })
	in.HandleBatch("batch", func(context.Context, pgx.Tx, []holdfast.Event) error { tr.add("batch"); return nil })
	OnBatch(in, "values", func(context.Context, pgx.Tx, []Value[orderV2]) error { tr.add("values"); return nil })
	in.Use(tr.around("c"))
	in.UseBatch(func(next BatchHandler) BatchHandler {
		return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
			tr.add("d")
			return next(ctx, tx, events)
		}
	}, func(next BatchHandler) BatchHandler {
		return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
			tr.add("e")
			return next(ctx, tx, events)
		}
	})
	around := func(h string) []string {
		return []string{"a begins", "b begins", "c begins", h, "c ends", "b ends", "a ends"}
	}
	for eventType, want := range map[string][]string{
		"order.placed": around("handler"), "order.paid": around("typed"),
		"batch": {"d", "e", "batch"}, "values": {"d", "e", "values"},
	} {
		tr.calls = nil
		b.receive(in, withPayload(typed(eventType, eventType, eventType), `{"Cents":1}`), Handled)
		if !slices.Equal(tr.calls, want) {
			t.Errorf("%s: %v, want %v", eventType, tr.calls, want)
		}
	}
	tr.calls = nil // What does not decode is a failure that middleware sees.
	b.receive(in, withPayload(typed("bad", "bad", "order.paid"), `[]`), Dead)
	if want := []string{"a begins", "b begins", "c begins", "c ends", "b ends", "a ends"}; !slices.Equal(tr.calls, want) {
		t.Errorf("%v, want %v", tr.calls, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("Use after the start did not panic")
		}
	}()
	in.Use(tr.around("late"))
}

// misuse is a middleware, and what becomes of an event that it handles: its effects, and what the error says ("" for handled).
type misuse struct {
	middleware func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error
	handler    Handler // effectOf if nil
	effects    int64
	says       string
}

var errBroken = errors.New("the handler is broken")

func breaks(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	if err := effectOf(ctx, tx, e); err != nil {
		return err
	}
	return errBroken
}

var misuses = map[string]misuse{
	"all is well": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error { return next(ctx, tx, e) }, nil, 1, ""},
	"it fails after the handler": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		return errors.Join(next(ctx, tx, e), errors.New("mine"))
	}, nil, 0, "mine"},
	"it fails before the handler": {func(context.Context, pgx.Tx, holdfast.Event, Handler) error { return errors.New("mine") }, nil, 0, "mine"},
	"it panics":                   {func(context.Context, pgx.Tx, holdfast.Event, Handler) error { panic("mine") }, nil, 0, "panic: mine"},
	"it panics after the handler": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		_ = next(ctx, tx, e)
		panic("mine")
	}, nil, 0, "panic: mine"},
	"it swallows an error": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		_ = next(ctx, tx, e)
		return nil
	}, breaks, 0, "a middleware returned nil, but the handler failed (to settle the event all the same, return inbox.ErrSettle): the handler is broken"},
	"it swallows a panic": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		defer func() { _ = recover() }()
		return next(ctx, tx, e)
	}, func(context.Context, pgx.Tx, holdfast.Event) error { panic("the handler's") }, 0, "but the handler failed (to settle the event all the same, return inbox.ErrSettle): the handler panicked"},
	"it swallows an error on purpose": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		if err := next(ctx, tx, e); errors.Is(err, errBroken) {
			return ErrSettle
		}
		return nil
	}, breaks, 1, ""},
	"it swallows an error and its effect": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return next(ctx, tx, e) }); err != nil {
			return ErrSettle
		}
		return nil
	}, breaks, 0, ""},
	"it never calls the handler": {func(context.Context, pgx.Tx, holdfast.Event, Handler) error { return nil }, nil, 0,
		"a middleware returned nil without calling the handler: call next, or return inbox.ErrSettle to settle the event without it"},
	"it never calls the handler on purpose": {func(context.Context, pgx.Tx, holdfast.Event, Handler) error { return ErrSettle }, nil, 0, ""},
	"it calls the handler twice": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		return errors.Join(next(ctx, tx, e), next(ctx, tx, e))
	}, nil, 0, "a middleware called the handler again after it had succeeded: its effect would come twice"},
	"it calls the handler twice and swallows that": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		_, err := next(ctx, tx, e), next(ctx, tx, e)
		_ = err
		return nil
	}, nil, 1, ""},
	"it calls the handler again after a failure": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		try := func(n string) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return next(context.WithValue(ctx, attemptKey{}, n), tx, e) })
		}
		if try("first") == nil {
			return nil
		}
		return try("second")
	}, func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if ctx.Value(attemptKey{}) == "first" {
			return breaks(ctx, tx, e)
		}
		return effectOf(ctx, tx, e)
	}, 1, ""},
	"it passes another context": {func(_ context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		return next(context.Background(), tx, e)
	}, nil, 0, "with a context that was not made from its own"},
	"it passes another event": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		e.ID = "another"
		return next(ctx, tx, e)
	}, nil, 0, `a middleware called the handler with the event "another" of "shop", which it was not given`},
	"it passes another payload": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		e.Payload = []byte("mine")
		return next(ctx, tx, e)
	}, func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if string(e.Payload) != "mine" {
			return errors.New("it is another")
		}
		return effectOf(ctx, tx, e)
	}, 1, ""},
	"it swallows an error of Postgres": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		_, _ = tx.Exec(ctx, "select 1/0")
		return ErrSettle
	}, nil, 0, "a statement failed, but the handler returned nil"},
	"it ends the transaction": {func(ctx context.Context, tx pgx.Tx, e holdfast.Event, next Handler) error {
		return errors.Join(next(ctx, tx, e), tx.Commit(ctx))
	}, nil, 0, "holdfast ends the handler's transaction itself"},
}

type attemptKey struct{}

func TestMiddleware_NoMiddlewareLosesAnEventOrMarksItHandledWrongly(t *testing.T) {
	ways := slices.Sorted(maps.Keys(arrivals))
	for i, name := range slices.Sorted(maps.Keys(misuses)) {
		m := misuses[name]
		for j, how := range ways {
			arrive := arrivals[how]
			t.Run(name+", "+how, func(t *testing.T) {
				if i%len(ways) != j {
					skip.InShort(t, "all pairs take a minute beside the others; -short has each misuse once, and each way a few times")
				}
				b := setup(t)
				in := b.inbox(func(c *Config) { c.Retry.Attempts = 2 })
				in.Use(func(next Handler) Handler {
					return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return m.middleware(ctx, tx, e, next) }
				})
				h := m.handler
				if h == nil {
					h = effectOf
				}
				in.Handle("order.placed", h)
				arrive(b, in, event("1", "k"))
				if m.says == "" {
					b.nothingStored()
					b.settled("1")
				} else {
					b.awaitLetters(1)
					if n := b.count("select count(*) from holdfast.letter where position($1 in errors[1]) > 0", m.says); n != 1 {
						t.Errorf("the letter does not say %q", m.says)
					}
				}
				if n := b.count("select count(*) from effect"); n != m.effects {
					t.Errorf("%d effects, want %d", n, m.effects)
				}
			})
		}
	}
}

// settled waits until an event was handled.
func (b *bundle) settled(id string) {
	b.Helper()
	if !wait.For(wait.Limit(), func() bool {
		return b.count("select count(*) from holdfast.inbox where event_id = $1 and result = 'handled'", id) == 1
	}) {
		b.Fatalf("%s was not handled", id)
	}
}

func TestMiddleware_AMiddlewareMayNotOutliveItsHandler(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retry.Attempts = 1 })
	release, late, begun := make(chan struct{}), make(chan error, 1), make(chan struct{})
	in.Use(func(next Handler) Handler {
		return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			switch e.ID {
			case "after":
				go func() { <-release; late <- next(ctx, tx, e) }()
				return ErrSettle
			case "during":
				go func() { late <- next(ctx, tx, e) }()
				<-begun
				return nil
			default: // at once
				both := make(chan error, 1)
				go func() { both <- next(ctx, tx, e) }()
				<-begun
				err := next(ctx, tx, e)
				release <- struct{}{}
				return errors.Join(err, <-both)
			}
		}
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		begun <- struct{}{}
		<-release
		return nil
	})
	b.receive(in, event("after", "a"), Handled)
	release <- struct{}{}
	if err := <-late; err == nil || !strings.Contains(err.Error(), "after it had returned") {
		t.Errorf("a late call returned %v", err)
	}
	b.receive(in, event("during", "b"), Dead)
	release <- struct{}{}
	<-late
	b.receive(in, event("at once", "c"), Dead)
	for id, says := range map[string]string{"during": "returned while the handler was running", "at once": "while it was running: a transaction is for one at a time"} {
		if n := b.count("select count(*) from holdfast.letter where event_id = $1 and position($2 in errors[1]) > 0", id, says); n != 1 {
			t.Errorf("no letter of %s says %q", id, says)
		}
	}
}

func TestMiddleware_AMiddlewareOfBatchesHandlesEveryEvent(t *testing.T) {
	pass := func(ctx context.Context, tx pgx.Tx, events []holdfast.Event, next BatchHandler) error {
		return next(ctx, tx, events)
	}
	for name, c := range map[string]struct {
		middleware func(ctx context.Context, tx pgx.Tx, events []holdfast.Event, next BatchHandler) error
		handled    int64
	}{
		"it passes on": {pass, 20},
		"in parts": {func(ctx context.Context, tx pgx.Tx, events []holdfast.Event, next BatchHandler) error {
			for len(events) > 0 {
				n := min(3, len(events))
				if err := next(ctx, tx, events[:n]); err != nil {
					return err
				}
				events = events[n:]
			}
			return nil
		}, 20},
		"it leaves one out": {func(ctx context.Context, tx pgx.Tx, events []holdfast.Event, next BatchHandler) error {
			kept := slices.DeleteFunc(slices.Clone(events), func(e holdfast.Event) bool { return e.ID == "00007" })
			return next(ctx, tx, kept)
		}, 19},
		"it leaves one out on purpose": {func(ctx context.Context, tx pgx.Tx, events []holdfast.Event, next BatchHandler) error {
			kept := slices.DeleteFunc(slices.Clone(events), func(e holdfast.Event) bool { return e.ID == "00007" })
			return errors.Join(next(ctx, tx, kept), ErrSettle)
		}, 19},
		"it swallows errors": {func(ctx context.Context, tx pgx.Tx, events []holdfast.Event, next BatchHandler) error {
			_ = next(ctx, tx, events)
			return nil
		}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.BatchSize, c.Retry.Attempts = 20, 1 })
			in.UseBatch(func(next BatchHandler) BatchHandler {
				return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
					return c.middleware(ctx, tx, events, next)
				}
			})
			in.HandleBatch("order.placed", func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
				for _, e := range events {
					if err := effectOf(ctx, tx, e); err != nil {
						return err
					}
				}
				return nil
			})
			b.consumeFake(in, newFakeGeneration(logOf(keyed(20, 20)...)))
			b.awaitSettled(20)
			letters := int64(0)
			if name == "it leaves one out" {
				letters = 1
			}
			if n := b.count("select count(*) from effect"); n != c.handled {
				t.Errorf("%d effects, want %d", n, c.handled)
			}
			if n := b.count("select count(*) from holdfast.letter"); n != letters {
				t.Errorf("%d dead letters, want %d", n, letters)
			}
		})
	}
}

func TestMiddleware_TheContextOfAHandlerSaysWhatItIsAbout(t *testing.T) {
	b := setup(t)
	var log said
	in := b.inbox(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	var attempts []int
	in.Use(func(next Handler) Handler {
		return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			LoggerFrom(ctx).Info("begins")
			return next(ctx, tx, e)
		}
	})
	in.Handle("order.placed", func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		about, ok := EventFrom(ctx)
		if !ok || about.ID != e.ID || about.Type != e.Type || string(about.Payload) != string(e.Payload) {
			t.Errorf("EventFrom = %+v, %v", about, ok)
		}
		attempts = append(attempts, AttemptFrom(ctx))
		if len(attempts) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	b.run(in.Run)
	b.receive(in, event("1", "k"), Retrying)
	b.awaitOutcome("1", Handled)
	if !slices.Equal(attempts, []int{1, 2, 3}) {
		t.Errorf("attempts %v, want 1, 2 and 3", attempts)
	}
	for _, attempt := range []string{"1", "2", "3"} {
		if want := "msg=begins consumer=billing topic=orders type=order.placed source=shop event_id=1 attempt=" + attempt; !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, ok := EventFrom(ctx); ok || AttemptFrom(ctx) != 0 || LoggerFrom(ctx) != slog.Default() {
		t.Error("a context outside of a handler knows an event")
	}
}
