package dlq_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

const bug42 = "bug 42:\nwrong rate"

// repair is the consumer "billing", of which a test repairs the handler.
type repair struct {
	bundle
	in *inbox.Inbox

	mu     sync.Mutex
	runs   []string // ids, in the order of the runs
	broken bool     // the handler fails
}

func repaired(t *testing.T) *repair {
	t.Helper()
	r := &repair{bundle: setup(t)}
	in, err := inbox.New(r.Pool, inbox.Config{Consumer: "billing", Retry: retry.Policy{Base: time.Millisecond, Attempts: 2}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.broken {
			return errors.New("it fails still")
		}
		r.runs = append(r.runs, e.ID)
		return nil
	})
	r.in = in
	return r
}

func (r *repair) receive(t *testing.T, events ...holdfast.Event) {
	t.Helper()
	for _, e := range events {
		if _, err := r.in.Receive(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *repair) reopen(t *testing.T, consumer string, events ...holdfast.Event) (failed []error) {
	t.Helper()
	for _, e := range events {
		failed = append(failed, pgx.BeginFunc(t.Context(), r.Pool, func(tx pgx.Tx) error {
			_, err := r.d.Reopen(t.Context(), tx, consumer, e, "ann", bug42)
			return err
		}))
	}
	return failed
}

// runs the consumer until so many letters are in a state.
func (r *repair) until(t *testing.T, state string, letters int64) {
	t.Helper()
	stop := running(t, r.in.Run)
	wait.Until(t, "letters are "+state, func() bool {
		return pgtest.Count(t, r.Pool, "select count(*) from holdfast.letter where state = $1", state) == letters
	})
	stop()
}

func TestReopen_AReopenedEventIsHandledOnceMoreForEachOrder(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	r := repaired(t)
	events := []holdfast.Event{order("1", "k"), order("2", "k"), order("3", "k"), order("4", "")}
	r.receive(t, events...)
	for round := range 2 {
		if err := errors.Join(r.reopen(t, "billing", events...)...); err != nil {
			t.Fatal(err)
		}
		for _, err := range r.reopen(t, "billing", events...) { // They are open.
			if !errors.Is(err, dlq.ErrNotHandled) || !strings.Contains(err.Error(), "its inbox says dead") {
				t.Errorf("reopened twice: %v", err)
			}
		}
		r.receive(t, events...) // A redelivery is recognised meanwhile.
		if n, err := r.d.Replay(t.Context(), dlq.Filter{Consumer: "billing"}, dlq.ReplayOptions{By: "ann"}); err != nil || n != 4 {
			t.Fatalf("%d were replayed: %v", n, err)
		}
		r.until(t, dlq.StateReplayed, 4)
		var ofKey []string
		for _, id := range r.runs[4*(round+1):] {
			if id != "4" {
				ofKey = append(ofKey, id)
			}
		}
		if len(r.runs) != 4*(round+2) || !slices.Equal(ofKey, []string{"1", "2", "3"}) {
			t.Fatalf("after %d orders the handler ran for %v", round+1, r.runs)
		}
	}
	l, err := r.d.List(t.Context(), dlq.Filter{State: dlq.StateAny})
	if err != nil || len(l) != 4 || l[0].Reason != "reopened: bug 42: wrong rate" || l[0].Event.Headers["a"] != "b" || string(l[0].Event.Payload) != `{"id":"1"}` {
		t.Errorf("%+v, %v", l, err)
	}
	actions, err := r.d.Actions(t.Context(), l[0].ID)
	if err != nil || len(actions) != 4 || actions[2].Action != "reopen" || actions[2].By != "ann" || actions[2].Reason != bug42 {
		t.Errorf("%+v, %v", actions, err)
	}
	if n := pgtest.Count(t, r.Pool, "select count(*) from holdfast.inbox where result = 'handled'"); n != 4 {
		t.Errorf("%d rows of the inbox say handled, want 4", n)
	}
}

func TestReopen_AHandlerThatFailsAgainLeavesTheLetterOpen(t *testing.T) {
	t.Parallel()
	r := repaired(t)
	r.receive(t, order("1", "k"))
	if err := errors.Join(r.reopen(t, "billing", order("1", "k"))...); err != nil {
		t.Fatal(err)
	}
	r.broken = true
	if _, err := r.d.Replay(t.Context(), dlq.Filter{Consumer: "billing"}, dlq.ReplayOptions{By: "ann"}); err != nil {
		t.Fatal(err)
	}
	running(t, r.in.Run)
	wait.Until(t, "the letter is open again, with its errors", func() bool {
		return pgtest.Count(t, r.Pool, "select count(*) from holdfast.letter where state = 'open' and cardinality(errors) > 0") == 1
	})
}

func TestReopen_OnlyWhatWasHandledIsReopened(t *testing.T) {
	t.Parallel()
	r := repaired(t)
	if _, err := r.d.Reopen(t.Context(), nil, "billing", order("1", "k"), "ann", bug42); err == nil || !strings.Contains(err.Error(), "tx is nil") {
		t.Errorf("without a transaction: %v", err)
	}
	r.receive(t, order("1", "k"))
	other := order("1", "k")
	other.Payload = []byte("another")
	renamed := order("1", "k")
	renamed.Type = "order.paid"
	for _, c := range []struct {
		what     string
		consumer string
		event    holdfast.Event
		want     error
	}{
		{"one that never came", "billing", order("2", "k"), dlq.ErrNotHandled},
		{"that of another consumer", "mail", order("1", "k"), dlq.ErrNotHandled},
		{"another payload", "billing", other, dlq.ErrDiffers},
		{"another type", "billing", renamed, dlq.ErrDiffers},
	} {
		if err := r.reopen(t, c.consumer, c.event)[0]; !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	err := pgx.BeginFunc(t.Context(), r.Pool, func(tx pgx.Tx) error {
		_, err := r.d.Reopen(t.Context(), tx, "", order("1", "k"), "", "")
		return err
	})
	for _, want := range []string{"by is empty", "reason is empty", "consumer is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	failed := errors.New("rolled back")
	if err := pgx.BeginFunc(t.Context(), r.Pool, func(tx pgx.Tx) error {
		if letter, err := r.d.Reopen(t.Context(), tx, "billing", order("1", "k"), "ann", bug42); err != nil || letter == 0 {
			t.Errorf("letter %d, %v", letter, err)
		}
		return failed
	}); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, r.Pool, "select (select count(*) from holdfast.letter) + (select count(*) from holdfast.letter_action) + (select count(*) from holdfast.inbox where result <> 'handled')"); n != 0 {
		t.Errorf("%d rows were left", n)
	}
}

func TestReopen_OneOfTwoTransactionsReopensAnEvent(t *testing.T) {
	t.Parallel()
	r := repaired(t)
	r.receive(t, order("1", "k"))
	first, err := r.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := r.d.Reopen(t.Context(), first, "billing", order("1", "k"), "ann", bug42); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() { second <- r.reopen(t, "billing", order("1", "k"))[0] }()
	wait.Until(t, "the second waits for the first", func() bool {
		return pgtest.Count(t, r.Pool, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%dlq.reopen%'") > 0
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; !errors.Is(err, dlq.ErrNotHandled) || !strings.Contains(err.Error(), "another transaction has just reopened it") {
		t.Errorf("the second: %v", err)
	}
	if n := pgtest.Count(t, r.Pool, "select count(*) from holdfast.letter_action"); n != 1 {
		t.Errorf("%d actions", n)
	}
}
