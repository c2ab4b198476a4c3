package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/steps"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// bank is a system that handlers call in a step. It ignores keys, so that every call counts.
type bank struct {
	mu    sync.Mutex
	keys  []string
	steps []Stepped
}

// charge is a call: it returns how many there were.
func (b *bank) charge(_ context.Context, key string) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys = append(b.keys, key)
	return len(b.keys), nil
}

func (b *bank) calls() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.keys)
}

// watch lets the bank note how steps end.
func (b *bank) watch(c *Config) {
	c.Observer.OnStep = func(s Stepped) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.steps = append(b.steps, s)
	}
}

// ended is how steps ended, as "charge done".
func (b *bank) ended() (got []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.steps {
		got = append(got, fmt.Sprint(s.Step, " ", s.Result))
	}
	return got
}

// recorded is how many steps are recorded.
func (b *bundle) recorded() int64 {
	b.Helper()
	return b.count("select count(*) from holdfast.inbox_step")
}

func (b *bundle) replay(o dlq.ReplayOptions) {
	b.Helper()
	o.By = "ann"
	if n, err := b.letters().Replay(b.Context(), dlq.Filter{}, o); n != 1 || err != nil {
		b.Fatalf("%d replayed, %v", n, err)
	}
}

// However an event comes, a step that is recorded is not called again when its handler fails, on whichever node that runs.
func TestStep_ARecordedCallIsNotMadeAgain(t *testing.T) {
	numbered := event("1", "k")
	numbered.Payload = []byte("1")
	receive := func(b *bundle, in *Inbox) { b.receive(in, numbered, Retrying) }
	for name, c := range map[string]struct {
		register func(in *Inbox, h Handler)
		receive  func(b *bundle, in *Inbox)
	}{
		"plain": {func(in *Inbox, h Handler) { in.Handle("order.placed", h) }, receive},
		"typed": {func(in *Inbox, h Handler) {
			On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, _ *int, e holdfast.Event) error { return h(ctx, tx, e) })
		}, receive},
		"HoldKey": {func(in *Inbox, h Handler) { in.Handle("order.placed", h, WithHoldKey(true)) }, receive},
		"under a middleware": {func(in *Inbox, h Handler) {
			in.Use(func(next Handler) Handler {
				return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return next(ctx, tx, e) }
			})
			in.Handle("order.placed", h)
		}, receive},
		"in the caller's transaction": {func(in *Inbox, h Handler) { in.Handle("order.placed", h) }, func(b *bundle, in *Inbox) {
			err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) error {
				out, err := in.ReceiveTx(b.Context(), tx, numbered)
				if out != Retrying {
					b.Errorf("ReceiveTx = %s", out)
				}
				return err
			})
			if err != nil {
				b.Error(err)
			}
		}},
		"from a topic": {func(in *Inbox, h Handler) { in.Handle("order.placed", h) }, func(b *bundle, in *Inbox) {
			b.consumeFake(in, newFakeGeneration(logOf(numbered)))
			b.awaitOutcome("1", Retrying)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var k bank
			h := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				n, err := Step(ctx, "charge", k.charge)
				if err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, "insert into effect (id, key) values ('charge', $1)", fmt.Sprint(n)); err != nil {
					return err
				}
				if AttemptFrom(ctx) < 3 {
					return errors.New("boom")
				}
				_, err = Step(ctx, "mail", k.charge)
				return err
			}
			first, second := b.inbox(k.watch), b.inbox(k.watch)
			for _, in := range []*Inbox{first, second} {
				in.Handle("other", effectOf)
				c.register(in, h)
			}
			c.receive(b, first)
			b.run(second.Run)
			b.awaitOutcome("1", Handled)
			if got, want := k.ended(), []string{"charge done", "charge known", "charge known", "mail done"}; !slices.Equal(got, want) {
				t.Errorf("its steps: %q, want %q", got, want)
			}
			if keys := k.calls(); len(keys) != 2 || keys[0] == keys[1] {
				t.Errorf("the keys of two calls: %q", keys)
			}
			if n := b.count("select count(*) from effect where id = 'charge' and key = '1'"); n != 1 {
				t.Errorf("%d effects with the first result, want 1", n)
			}
			if n := b.recorded(); n != 2 {
				t.Errorf("%d steps are recorded", n)
			}
		})
	}
}

// The key says for a call which event, step and consumer it is of, and nothing else.
func TestStep_AKeyIsOfConsumerEventAndName(t *testing.T) {
	b := setup(t)
	var k bank
	h := func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		for _, name := range []string{"charge", "mail"} {
			if _, err := Step(ctx, name, k.charge); err != nil {
				return err
			}
		}
		return nil
	}
	in, other := b.inbox(), b.inbox(func(c *Config) { c.Consumer = "shipping" })
	in.Handle("order.placed", h)
	other.Handle("order.placed", h)
	elsewhere := event("1", "k")
	elsewhere.Source = "store"
	for _, e := range []holdfast.Event{event("1", "k"), event("2", "k"), elsewhere} {
		b.receive(in, e, Handled)
		b.receive(other, e, Handled)
	}
	keys := k.calls()
	slices.Sort(keys)
	if n := len(slices.Compact(keys)); n != 12 {
		t.Errorf("%d keys of 12 calls", n)
	}
	hash := (&delivery{e: event("1", "k")}).eventHash()
	if want := steps.Key("billing", "shop", "1", hash, "charge"); !slices.Contains(keys, want) {
		t.Errorf("none is the key of billing's charge")
	}
}

// A replay keeps the steps. After an edit of the payload the event's steps are others.
func TestStep_AReplayKeepsStepsAndAnEditDoesNot(t *testing.T) {
	b := setup(t)
	var k bank
	in := b.inbox(k.watch)
	fails := true
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := Step(ctx, "charge", k.charge); err != nil {
			return err
		}
		if fails {
			return retry.Permanent(errors.New("boom"))
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Dead)
	b.run(in.Run)
	b.replay(dlq.ReplayOptions{})
	wait.Until(t, "it is dead again", func() bool {
		return len(k.ended()) == 2 && b.count("select count(*) from holdfast.letter where state = 'open'") == 1
	})
	if err := b.letters().Edit(t.Context(), 1, []byte("fixed"), "ann", "a typo"); err != nil {
		t.Fatal(err)
	}
	fails = false
	b.replay(dlq.ReplayOptions{})
	b.awaitOutcome("1", Handled)
	if got, want := k.ended(), []string{"charge done", "charge known", "charge done"}; !slices.Equal(got, want) {
		t.Errorf("its steps: %q, want %q", got, want)
	}
	if keys := k.calls(); len(keys) != 2 || keys[0] == keys[1] {
		t.Errorf("the keys of two payloads: %q", keys)
	}
}

// An event that was handled and is made a dead letter by a person keeps its steps, too.
func TestStep_AHandledEventThatIsReopenedKeepsItsSteps(t *testing.T) {
	skip.InShort(t, "another test shows replays")
	b := setup(t)
	var k bank
	in := b.inbox(k.watch)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := Step(ctx, "charge", k.charge)
		return err
	})
	b.receive(in, event("1", "k"), Handled)
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		_, err := b.letters().Reopen(t.Context(), tx, "billing", event("1", "k"), "ann", "a bug")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run(in.Run)
	b.replay(dlq.ReplayOptions{})
	wait.Until(t, "it is handled again", func() bool { return len(k.ended()) == 2 })
	if keys := k.calls(); len(keys) != 1 {
		t.Errorf("%d calls", len(keys))
	}
}

func TestStep_AFunctionThatFailsRecordsNothing(t *testing.T) {
	b := setup(t)
	var k bank
	in := b.inbox(k.watch)
	boom := errors.New("boom")
	var got []error
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := Step(ctx, "charge", func(ctx context.Context, key string) (int, error) {
			switch n, _ := k.charge(ctx, key); n {
			case 1:
				return 0, boom
			case 2:
				panic(boom)
			case 3:
				return 0, Unavailable("stripe", boom)
			default:
				return 0, retry.Permanent(boom)
			}
		})
		got = append(got, err)
		return err
	}, Needs("stripe"))
	b.receive(in, event("1", "k"), Retrying)
	b.run(in.Run)
	b.awaitOutcome("1", Dead)
	if keys := k.calls(); len(keys) != 4 || len(slices.Compact(keys)) != 1 {
		t.Errorf("four calls have the keys %q", keys)
	}
	if n := b.recorded(); n != 0 {
		t.Errorf("%d are recorded", n)
	}
	if got, want := k.ended(), slices.Repeat([]string{"charge failed"}, 4); !slices.Equal(got, want) {
		t.Errorf("its steps: %q, want %q", got, want)
	}
	for _, err := range got {
		if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), `step "charge": `) {
			t.Errorf("the handler got %v", err)
		}
	}
}

// What is wrong with a call of Step is the handler's fault, and says what to do.
func TestStep_AWrongUseIsAnErrorThatSaysWhatIsRight(t *testing.T) {
	b := setup(t)
	var k bank
	if _, err := Step(t.Context(), "charge", k.charge); !errors.Is(err, errNoRun) {
		t.Errorf("outside of a handler: %v", err)
	}
	in := b.inbox()
	var late context.Context
	var observed error
	in.c.Observer.OnHandle = func(ctx context.Context, _ Handling) (context.Context, func(error)) {
		_, observed = Step(ctx, "observed", k.charge)
		return ctx, func(error) {}
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		late = ctx
		if _, err := Step(ctx, "long", func(context.Context, string) (string, error) { return strings.Repeat("x", MaxStepResult-1), nil }); err == nil || !strings.Contains(err.Error(), "65537 bytes long: it must be at most 65536") {
			t.Errorf("a long result: %v", err)
		}
		if v, err := Step(ctx, "long", func(context.Context, string) (string, error) {
			return "\x00é" + strings.Repeat("x", MaxStepResult-10), nil
		}); err != nil || len(v) != MaxStepResult-7 {
			t.Errorf("the longest result, with a NUL: %d bytes, %v", len(v), err)
		}
		if _, err := Step(ctx, "long", k.charge); !errors.Is(err, steps.ErrTwice) {
			t.Errorf("the same name: %v", err)
		}
		_, err := Step(ctx, "outer", func(ctx context.Context, key string) (int, error) { return Step(ctx, "inner", k.charge) })
		if !errors.Is(err, steps.ErrNested) {
			t.Errorf("in another step: %v", err)
		}
		return nil
	})
	in.HandleBatch("order.mailed", func(ctx context.Context, tx pgx.Tx, es []holdfast.Event) error {
		_, err := Step(ctx, "charge", k.charge)
		return err
	})
	b.receive(in, event("1", "k"), Handled)
	if _, err := Step(late, "charge", k.charge); !errors.Is(err, errNoRun) {
		t.Errorf("after the handler has returned: %v", err)
	}
	if !errors.Is(observed, errNoRun) {
		t.Errorf("before the handler runs: %v", observed)
	}
	b.receive(in, mailed("2", "k"), Retrying)
	b.await("the batch's handler is told", func(o *observations) bool {
		return len(o.retries) == 1 && errors.Is(o.retries[0].Err, errBatch)
	})
	if n := b.recorded(); n != 1 {
		t.Errorf("%d are recorded", n)
	}
	if len(k.calls()) > 0 {
		t.Errorf("%d calls were made", len(k.calls()))
	}
}

// A middleware that calls its handler again after a failure gets the recorded results, as the next attempt would.
func TestStep_AMiddlewareMayRunTheHandlerAgain(t *testing.T) {
	b := setup(t)
	var k bank
	in := b.inbox(k.watch)
	in.Use(func(next Handler) Handler {
		return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			if _, err := Step(ctx, "look", k.charge); err != nil {
				return err
			}
			if next(ctx, tx, e) == nil {
				return nil
			}
			return next(ctx, tx, e)
		}
	})
	runs := 0
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := Step(ctx, "look", k.charge); !errors.Is(err, steps.ErrTwice) {
			t.Errorf("a step of the middleware's name: %v", err)
		}
		n, err := Step(ctx, "charge", k.charge)
		if runs++; err == nil && runs == 1 {
			err = errors.New("boom")
		}
		if err == nil && n != 2 {
			err = fmt.Errorf("the result is %d", n)
		}
		return err
	})
	b.receive(in, event("1", "k"), Handled)
	if got, want := k.ended(), []string{"look done", "charge done", "charge known"}; !slices.Equal(got, want) {
		t.Errorf("its steps: %q, want %q", got, want)
	}
}

// Of a webhook that comes in two versions, whichever comes after a crash goes on with the steps of the other.
func TestStep_TwoVersionsOfAWebhookHaveTheSameSteps(t *testing.T) {
	b := setup(t)
	var k bank
	stops := true
	in := b.inbox(k.watch)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		for _, name := range []string{"charge", "mail"} {
			if _, err := Step(ctx, name, k.charge); err != nil {
				return err
			}
			if stops {
				return tx.Conn().Close(ctx) // as if the process had died: nothing of the event is left
			}
		}
		return nil
	})
	version := func(text string) (holdfast.Event, []byte) {
		e := event("1", "k")
		e.Payload = []byte(text)
		return e, append((&delivery{e: e}).eventHash(), text...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in.c.Observer.OnError = func(error) { cancel() }
	e, hash := version("2023")
	if out, err := in.Hooks().TryReceive(ctx, e, hash); err == nil {
		t.Fatalf("the first version is %s", out)
	}
	stops = false
	e, hash = version("2024")
	var out Outcome
	var err error
	wait.Until(t, "Postgres has ended the first one's transaction", func() bool {
		out, err = in.Hooks().TryReceive(t.Context(), e, hash)
		return !errors.Is(err, ErrInFlight)
	})
	if out != Handled || err != nil {
		t.Fatalf("the second version is %s, %v", out, err)
	}
	got := k.ended()
	if want := []string{"charge done", "charge known", "mail done"}; !slices.Equal(got, want) || len(k.calls()) != 2 {
		t.Errorf("its steps: %q, want %q, after %d calls", got, want, len(k.calls()))
	}
}

// A call whose result cannot be recorded is made again. That is the handler's failure, and the log says it.
func TestStep_AResultThatCannotBeRecordedSpendsAttempts(t *testing.T) {
	b := setup(t)
	var k bank
	var log logtest.Log
	in := b.inbox(k.watch, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for eventType, h := range map[string]func(ctx context.Context) error{
		"long": func(ctx context.Context) error {
			_, err := Step(ctx, "long", func(ctx context.Context, key string) (string, error) {
				_, _ = k.charge(ctx, key)
				return strings.Repeat("x", MaxStepResult), nil
			})
			return err
		},
		"refused": func(ctx context.Context) error { // by a constraint of somebody else
			_, err := Step(ctx, "refused", k.charge)
			return err
		},
		"function": func(ctx context.Context) error { // It is refused before the call.
			_, err := Step(ctx, "function", func(ctx context.Context, key string) (func(), error) {
				_, _ = k.charge(ctx, key)
				return func() {}, nil
			})
			return err
		},
	} {
		in.Handle(eventType, func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return h(ctx) })
	}
	pgtest.Exec(t, b.db, "alter table holdfast.inbox_step add check (name <> 'refused')")
	b.run(in.Run)
	for eventType, calls := range map[string]int{"long": 3, "refused": 3, "function": 0} {
		e := event(eventType, eventType)
		e.Type = eventType
		before, said := len(k.calls()), strings.Count(log.String(), "done and not recorded")
		b.receive(in, e, Retrying)
		b.awaitOutcome(eventType, Dead)
		if n := len(k.calls()) - before; n != calls {
			t.Errorf("%s: %d calls, want %d", eventType, n, calls)
		}
		if n := strings.Count(log.String(), "done and not recorded") - said; n != calls {
			t.Errorf("%s: the log says it %d times, want %d", eventType, n, calls)
		}
	}
}

// While a handler calls, nobody waits for its transaction: it has one of its own.
func TestStep_AHandlerWithStepsSharesItsTransactionWithNoOther(t *testing.T) {
	b := setup(t)
	in, consume := b.behind(func(c *Config) { c.Group = 64 })
	var k bank
	k.watch(&in.c)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := effectOf(ctx, tx, e); err != nil {
			return err
		}
		if !strings.HasSuffix(e.ID, "0") { // The first that calls is in the middle of a group.
			return nil
		}
		_, err := Step(ctx, "charge", k.charge)
		return err
	})
	consume(keyed(60, 60))
	b.inOrderAndOnce(60)
	if keys := k.calls(); len(keys) != 6 {
		t.Errorf("%d calls for 6 events", len(keys))
	}
	if n := b.count("select count(*) from effect e where exists (select from effect o where o.id <> e.id and o.xmin = e.xmin) and e.id like '%0'"); n != 0 {
		t.Errorf("%d handlers with a step shared their transaction", n)
	}
}

// The answer to the COMMIT of the record is lost. It was carried out, so that the call is not made again.
func TestStep_ARecordWhoseAnswerIsLostIsLookedUp(t *testing.T) {
	b := setup(t)
	var proxy cutter
	var k bank
	in := b.inboxOn(proxy.pool(b), k.watch)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := Step(ctx, "charge", func(ctx context.Context, key string) (int, error) {
			proxy.armed.Store(true)
			return k.charge(ctx, key)
		})
		if err != nil {
			return err
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Handled)
	if len(k.calls()) != 1 || b.effects("1") != 1 || b.recorded() != 1 || proxy.cuts.Load() != 1 {
		t.Errorf("%d calls, %d effects, %d recorded, %d cuts; want 1 each", len(k.calls()), b.effects("1"), b.recorded(), proxy.cuts.Load())
	}
}

// A database that does not take the record spends no attempt, however often. Each call has the same key, and the log says that there may be one more.
func TestStep_ADatabaseThatDoesNotRecordIsNotTheEventsFault(t *testing.T) {
	b := setup(t)
	var k bank
	var log logtest.Log
	in := b.inbox(k.watch, func(c *Config) {
		c.Grace = 20 * time.Millisecond
		c.Timeout = 300 * time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	pgtest.Exec(t, b.db, `create function refuse() returns trigger language plpgsql as $$ begin raise 'read only' using errcode = '25006'; end $$;
		create trigger refuse before insert on holdfast.inbox_step for each statement execute function refuse()`)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := Step(ctx, "charge", k.charge); err != nil {
			return err
		}
		return effectOf(ctx, tx, e)
	})
	b.store(in, event("1", "k"))
	b.run(in.Run)
	wait.Until(t, "it was called more often than there are attempts", func() bool { return len(k.calls()) > 4 })
	pgtest.Exec(t, b.db, "drop trigger refuse on holdfast.inbox_step")
	b.awaitOutcome("1", Handled)
	if keys := k.calls(); len(slices.Compact(keys)) != 1 {
		t.Errorf("the calls have the keys %q", keys)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters", n)
	}
	for _, part := range []string{"level=WARN", "step was done and not recorded", "step=charge", "step_key=" + k.calls()[0], "event_id=1"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log does not say %q:\n%.1000s", part, log.String())
		}
	}
}

// Handlers that have all connections of the pool do not wait for each other: a step takes one beside it.
func TestStep_APoolThatHandlersUseUpIsEnough(t *testing.T) {
	b := setup(t)
	config := b.db.Config()
	config.MaxConns = 2
	connects := 0
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { // Some pools set what row level security needs.
		connects++
		_, err := conn.Exec(ctx, "set app.tenant = 'one'")
		return err
	}
	small, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(small.Close)
	pgtest.Exec(t, b.db, "alter table holdfast.inbox_step add check (current_setting('app.tenant') = 'one')")
	var k bank
	var log logtest.Log
	in := b.inboxOn(small, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	both := make(chan struct{})
	var running atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if running.Add(1) == 2 {
			close(both)
		}
		<-both
		for _, name := range []string{"a", "b"} {
			if _, err := Step(ctx, name, k.charge); err != nil {
				return err
			}
		}
		return effectOf(ctx, tx, e)
	})
	var wg sync.WaitGroup
	for _, e := range keyed(2, 2) {
		wg.Go(func() { b.receive(in, e, Handled) })
	}
	wg.Wait()
	if len(k.calls()) != 4 || b.recorded() != 4 || running.Load() != 2 {
		t.Errorf("%d calls, %d recorded, in %d runs", len(k.calls()), b.recorded(), running.Load())
	}
	if n := strings.Count(log.String(), "raise pool_max_conns"); n != 1 {
		t.Errorf("the log says %d times what to do:\n%s", n, log.String())
	}
	wait.Until(t, "those beside the pool are closed", func() bool {
		return b.count("select count(*) from pg_stat_activity where datname = current_database() and query like '%app.tenant%' or query like '%inbox_step%' and pid <> pg_backend_pid()") <= 2
	})
}

// Where the pool has room, a step waits for its connection, however slow connecting is.
func TestStep_APoolWithRoomIsWaitedFor(t *testing.T) {
	b := setup(t)
	config := b.db.Config()
	config.MaxConns, config.MinConns = 4, 0
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		// sleep: a server that is slow to connect to.
		time.Sleep(freeSoon * 3 / 2)
		return nil
	}
	slow, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	var k bank
	var log logtest.Log
	in := b.inboxOn(slow, k.watch, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := Step(ctx, "charge", k.charge)
		return err
	})
	b.receive(in, event("1", "k"), Handled)
	if strings.Contains(log.String(), "beside the pool") || len(k.calls()) != 1 {
		t.Errorf("%d calls; the log says\n%s", len(k.calls()), log.String())
	}
}

// A database that does not answer a step is not the event's fault. A handler that comes to its step late, and does not get there in time, is.
func TestStep_ALateStepSpendsAnAttemptAndASlowDatabaseNone(t *testing.T) {
	b := setup(t)
	var k bank
	in := b.inbox(k.watch, func(c *Config) { c.Timeout = 400 * time.Millisecond })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // A context of the handler's own changes nothing.
		defer cancel()
		_, err := Step(short, "charge", k.charge)
		return err
	})
	in.Handle("order.mailed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		end, _ := ctx.Deadline()
		// sleep: what uses up more than half of the handler's time.
		time.Sleep(time.Until(end) * 2 / 3)
		_, err := Step(ctx, "mail", k.charge)
		return err
	})
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table holdfast.inbox_step in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	b.store(in, event("1", "k"))
	b.run(in.Run)
	wait.Until(t, "it was tried more often than there are attempts", func() bool { return len(k.ended()) > 4 })
	b.receive(in, mailed("2", "l"), Retrying)
	b.awaitOutcome("2", Dead)
	if n := b.count("select count(*) from holdfast.letter where event_id = '1'"); n != 0 || len(k.calls()) != 0 {
		t.Errorf("%d letters, %d calls", n, len(k.calls()))
	}
	b.rollback(tx)
	b.awaitOutcome("1", Handled)
}

// The call has taken all of the handler's time, and did succeed: that is recorded all the same.
func TestStep_ACallThatTookTooLongIsRecorded(t *testing.T) {
	b := setup(t)
	var k bank
	in := b.inbox(k.watch, func(c *Config) {
		c.Timeout, c.Grace = 300*time.Millisecond, time.Minute
		c.Retry.Attempts = 1000 // A busy machine may not get to the call in that time.
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := Step(ctx, "charge", func(ctx context.Context, key string) (int, error) {
			<-ctx.Done()
			return k.charge(ctx, key)
		})
		return err
	})
	b.receive(in, event("1", "k"), Retrying)
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
	got := slices.DeleteFunc(k.ended(), func(s string) bool { return s == "charge failed" })
	if want := []string{"charge done", "charge known"}; !slices.Equal(got, want) || len(k.calls()) != 1 {
		t.Errorf("its steps: %q, want %q, after %d calls", got, want, len(k.calls()))
	}
}

// Another run of the same event, which had lost it or has taken it, was first. All take its result.
func TestStep_TheFirstRecordedResultCounts(t *testing.T) {
	b := setup(t)
	var k bank
	in := b.inbox(k.watch)
	var result int
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) (err error) {
		result, err = Step(ctx, "charge", func(ctx context.Context, key string) (int, error) {
			pgtest.Exec(t, b.db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result)
				select 'billing', 'shop', '1', '\x`+fmt.Sprintf("%x", (&delivery{e: e}).eventHash())+`', 'charge', 'k', '42'`)
			return k.charge(ctx, key)
		})
		return err
	})
	b.receive(in, event("1", "k"), Handled)
	if result != 42 || b.recorded() != 1 {
		t.Errorf("the result is %d, %d are recorded", result, b.recorded())
	}
}
