package inbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// try calls TryReceive or TryStore.
func (b *bundle) try(f func(context.Context, holdfast.Event) (Outcome, error), e holdfast.Event, want Outcome, wantErr error) {
	b.Helper()
	out, err := f(b.Context(), e)
	if out != want || !errors.Is(err, wantErr) {
		b.Fatalf("%s: got %q, %v; want %q, %v", e.ID, out, err, want, wantErr)
	}
}

func TestTryReceive_TryReceiveAndTryStoreComeToTheOutcomesOfReceive(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		switch {
		case e.ID == "poison":
			return retry.Permanent(errors.New("no"))
		case slices.Contains([]string{"failing", "stored"}, e.ID) && b.effects("fixed") == 0:
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	other := func(id string) holdfast.Event {
		e := event(id, "")
		e.Payload = []byte("something else")
		return e
	}
	unknown := event("unknown", "")
	unknown.Type = "order.eaten"
	for _, c := range []struct {
		try  func(context.Context, holdfast.Event) (Outcome, error)
		e    holdfast.Event
		want Outcome
	}{
		{in.TryReceive, event("1", ""), Handled}, {in.TryReceive, event("1", ""), Duplicate}, {in.TryStore, event("1", ""), Duplicate},
		{in.TryReceive, other("1"), Conflict}, {in.TryStore, other("1"), Conflict},
		{in.TryReceive, event("poison", ""), Dead}, {in.TryStore, event("poison", ""), Duplicate},
		{in.TryReceive, event("failing", "k"), Retrying}, {in.TryReceive, event("failing", "k"), Duplicate},
		{in.TryReceive, event("behind it", "k"), Stored}, {in.TryStore, event("behind them", "k"), Stored},
		{in.TryStore, event("stored", ""), Stored}, {in.TryReceive, event("stored", ""), Duplicate}, {in.TryStore, other("stored"), Conflict},
		{in.TryReceive, unknown, Skipped}, {in.TryStore, unknown, Skipped},
		{in.TryReceive, event("fixed", ""), Handled},
	} {
		b.try(c.try, c.e, c.want, nil)
	}
	b.run(in.Run)
	for _, id := range []string{"failing", "behind it", "behind them", "stored"} {
		b.awaitOutcome(id, Handled)
	}
	if n := b.count("select count(*) from effect"); n != 6 {
		t.Errorf("%d effects, want one of each but the poisoned", n)
	}
	for id, outcomes := range b.observed.outcomes {
		if slices.Contains(outcomes, Handled) && slices.Contains(outcomes, Dead) {
			t.Errorf("%s: %v", id, outcomes)
		}
	}
	for _, try := range []func(context.Context, holdfast.Event) (Outcome, error){in.TryReceive, in.TryStore} {
		if out, err := try(t.Context(), holdfast.Event{ID: "x"}); out != "" || err == nil {
			t.Errorf("an event without a type: %q, %v", out, err)
		}
	}
}

func TestTryReceive_AnInboxWithoutHandlersStoresEveryTypeThatItTries(t *testing.T) {
	b := setup(t)
	b.try(b.inbox().TryStore, event("1", ""), Stored, nil)
	worker := b.inbox()
	worker.Handle("order.placed", effectOf)
	b.run(worker.Run)
	b.awaitOutcome("1", Handled)
}

func TestTryReceive_StoreLeavesTheHandlerToRun(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	unknown := event("unknown", "")
	unknown.Type = "order.lost"
	for _, c := range []struct {
		e    holdfast.Event
		want Outcome
	}{{event("1", ""), Stored}, {event("1", ""), Duplicate}, {unknown, Skipped}} {
		if out, err := in.Store(t.Context(), c.e); out != c.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", c.e.ID, out, err, c.want)
		}
	}
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
}

func TestTryReceive_ACopyOfARunningEventIsInFlightAndHoldsNoConnection(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	begun, end := make(chan struct{}, 1), make(chan error)
	in := b.inboxOn(b.db.PoolOf(t, 2), func(c *Config) { c.Timeout = time.Minute })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID != "slow" {
			return effectOf(ctx, tx, e)
		}
		begun <- struct{}{}
		if err := <-end; err != nil {
			return err
		}
		return effectOf(ctx, tx, e)
	})
	// The first copy is rolled back, and leaves nothing that the next could be a duplicate of.
	stopped, stop := context.WithCancel(t.Context())
	answers := make(chan error, 1)
	go func() {
		_, err := in.TryReceive(stopped, event("slow", "k"))
		answers <- err
	}()
	<-begun
	var wg sync.WaitGroup
	for range 20 { // with one connection left
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(b.Context(), wait.Limit())
			defer cancel()
			for _, try := range []func(context.Context, holdfast.Event) (Outcome, error){in.TryReceive, in.TryStore} {
				if out, err := try(ctx, event("slow", "k")); !errors.Is(err, ErrInFlight) {
					t.Errorf("a copy is %q, %v; want ErrInFlight", out, err)
				}
			}
		})
	}
	wg.Wait()
	b.try(in.TryReceive, event("another", "k"), Handled, nil)
	stop()
	end <- context.Canceled
	if err := <-answers; err == nil || b.effects("slow") != 0 {
		t.Fatalf("the first copy was to be rolled back: %v", err)
	}
	go func() { <-begun; end <- nil }()
	b.try(in.TryReceive, event("slow", "k"), Handled, nil)
	b.try(in.TryReceive, event("slow", "k"), Duplicate, nil)
	if b.effects("slow") != 1 {
		t.Error("want one effect")
	}
}

func TestTryReceive_ACopyOfAnEventOfATypeWithoutAHandlerIsInFlightToo(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.UnknownType = UnknownStore })
	in.Handle("order.placed", effectOf)
	e := event("1", "")
	e.Type = "order.eaten"
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var mine bool
	if err := tx.QueryRow(t.Context(), in.sql.tryLock, int32(tryClass), lane.Number(in.c.Schema, in.c.Consumer, e.Source, e.ID)).Scan(&mine); err != nil || !mine {
		t.Fatalf("the first copy has its lock: %v, %v", mine, err)
	}
	b.try(in.TryReceive, e, "", ErrInFlight)
	b.try(in.TryStore, e, "", ErrInFlight)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.try(in.TryReceive, e, Stored, nil)
	b.try(in.TryStore, e, Duplicate, nil)
}

func TestTryReceive_FiftyTriesOfAnEventAtOnceHandleItOnce(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			try := in.TryReceive
			if n%5 == 0 {
				try = in.TryStore
			}
			for {
				out, err := try(b.Context(), event("1", "k"))
				switch {
				case errors.Is(err, ErrInFlight):
					continue
				case err != nil || out != Handled && out != Duplicate && out != Stored:
					t.Errorf("got %q, %v", out, err)
				}
				return
			}
		})
	}
	wg.Wait()
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
	if b.effects("1") != 1 {
		t.Errorf("%d effects, want 1", b.effects("1"))
	}
}
