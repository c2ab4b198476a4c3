package dlq_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// bank is what the handler of billing calls in a step, before it does the rest.
type bank struct {
	bundle
	mu     sync.Mutex
	broken bool     // the rest fails
	keys   []string // of the calls
}

func (b *bank) called() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.keys...)
}

func (b *bank) repair() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = false
}

// charging is a running consumer whose letter of event e1 is open, because the rest fails.
func charging(t *testing.T) *bank {
	t.Helper()
	b := &bank{bundle: setup(t), broken: true}
	in, err := inbox.New(b.Pool, inbox.Config{Consumer: "billing", Retry: retry.Policy{Base: time.Millisecond, Attempts: 2}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		_, err := inbox.Step(ctx, "charge", func(_ context.Context, key string) (string, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.keys = append(b.keys, key)
			return fmt.Sprint("call ", len(b.keys)), nil
		})
		b.mu.Lock()
		defer b.mu.Unlock()
		if err == nil && b.broken {
			err = errors.New("the rest fails")
		}
		return err
	})
	running(t, in.Run)
	if _, err := in.Receive(t.Context(), order("e1", "k")); err != nil {
		t.Fatal(err)
	}
	b.wait(t, dlq.StateOpen)
	return b
}

func (b *bank) wait(t *testing.T, state string) (l dlq.Letter) {
	t.Helper()
	wait.Until(t, "the letter is "+state, func() bool {
		letters, err := b.d.List(t.Context(), dlq.Filter{State: state})
		if err != nil {
			t.Fatal(err)
		}
		if len(letters) == 1 {
			l, err = b.d.Get(t.Context(), letters[0].ID)
		}
		return err == nil && l.State == state
	})
	return l
}

// reasons are those of a letter's replays, as they are recorded.
func (b *bank) reasons(t *testing.T, id int64) (all []string) {
	t.Helper()
	actions, err := b.d.Actions(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range actions {
		if a.Action == "replay" {
			all = append(all, a.Reason)
		}
	}
	return all
}

func (b *bank) again(t *testing.T, o dlq.ReplayOptions) {
	t.Helper()
	o.By, o.Reason = "ann", "try it"
	if n, err := b.d.Replay(t.Context(), dlq.Filter{}, o); n != 1 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
}

func TestSteps_AReplayRunsThemAgainOnlyIfTheyAreForgotten(t *testing.T) {
	t.Parallel()
	b := charging(t)
	l := b.wait(t, dlq.StateOpen)
	keys := b.called()
	if len(keys) != 1 || len(l.Steps) != 1 {
		t.Fatalf("%d calls, steps %v", len(keys), l.Steps)
	}
	if s := l.Steps[0]; s.Name != "charge" || s.Key != keys[0] || s.Result != `"call 1"` || s.OtherPayload || time.Since(s.DoneAt) > time.Hour {
		t.Errorf("the step is %+v", s)
	}
	if listed, err := b.d.List(t.Context(), dlq.Filter{}); err != nil || listed[0].Steps != nil {
		t.Errorf("a list has steps: %v, %v", listed, err)
	}
	b.again(t, dlq.ReplayOptions{})
	wait.Until(t, "it has failed again", func() bool {
		l = b.wait(t, dlq.StateOpen)
		return l.Attempts > 2
	})
	if n := len(b.called()); n != 1 {
		t.Errorf("after a replay the step ran %d times", n)
	}
	if n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{DryRun: true, ForgetSteps: true}); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if l = b.wait(t, dlq.StateOpen); len(l.Steps) != 1 {
		t.Error("a dry run forgets steps")
	}
	b.repair()
	b.again(t, dlq.ReplayOptions{ForgetSteps: true})
	l = b.wait(t, dlq.StateReplayed)
	if again := b.called(); len(again) != 2 || again[1] != keys[0] {
		t.Errorf("forgotten, it ran with the keys %q, want twice the first of them", again)
	}
	if len(l.Steps) != 1 || l.Steps[0].Result != `"call 2"` {
		t.Errorf("its steps are %v", l.Steps)
	}
	if got := fmt.Sprintf("%q", b.reasons(t, l.ID)); got != `["try it" "try it [steps forgotten: 1]"]` {
		t.Errorf("the replays say %s", got)
	}
}

func TestSteps_AnEditHasOthersWhichAloneAreForgotten(t *testing.T) {
	t.Parallel()
	b := charging(t)
	l := b.wait(t, dlq.StateOpen)
	if err := b.d.Edit(t.Context(), l.ID, []byte(`{"id":"e1","cents":5}`), "ann", "the amount"); err != nil {
		t.Fatal(err)
	}
	if l = b.wait(t, dlq.StateOpen); len(l.Steps) != 1 || !l.Steps[0].OtherPayload {
		t.Errorf("after the edit its steps are %v", l.Steps)
	}
	b.again(t, dlq.ReplayOptions{})
	wait.Until(t, "it has failed again", func() bool {
		l = b.wait(t, dlq.StateOpen)
		return len(l.Steps) == 2 && l.Attempts > 2
	})
	if keys := b.called(); len(keys) != 2 || keys[0] == keys[1] || !l.Steps[0].OtherPayload || l.Steps[1].OtherPayload || l.Steps[1].Key != keys[1] {
		t.Errorf("the steps are %v, with the keys %q", l.Steps, keys)
	}
	b.repair()
	b.again(t, dlq.ReplayOptions{ForgetSteps: true})
	l = b.wait(t, dlq.StateReplayed)
	if n := len(b.called()); n != 3 || len(l.Steps) != 2 || !l.Steps[0].OtherPayload || l.Steps[1].Result != `"call 3"` {
		t.Errorf("%d calls, steps %v", n, l.Steps)
	}
	if got := fmt.Sprintf("%q", b.reasons(t, l.ID)); got != `["try it" "try it [steps forgotten: 1]"]` {
		t.Errorf("the replays say %s", got)
	}
}

// An edit that changes nothing, or is undone, leaves the event its steps.
func TestSteps_AnEditThatIsUndoneHasTheStepsOfBefore(t *testing.T) {
	t.Parallel()
	for name, edits := range map[string][]string{"undone": {`{"id":"e1","cents":5}`, ""}, "nothing": {""}} {
		b := charging(t)
		l := b.wait(t, dlq.StateOpen)
		for _, payload := range edits {
			if err := b.d.Edit(t.Context(), l.ID, []byte(cmp.Or(payload, string(l.Event.Payload))), "ann", "the amount"); err != nil {
				t.Fatal(err)
			}
		}
		b.repair()
		b.again(t, dlq.ReplayOptions{})
		l = b.wait(t, dlq.StateReplayed)
		if n := len(b.called()); n != 1 || len(l.Steps) != 1 || l.Steps[0].OtherPayload {
			t.Errorf("%s: %d calls, steps %v", name, n, l.Steps)
		}
	}
}

// step records one step of an event of shop.
func (b bundle) step(t *testing.T, consumer, id string) {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ($1, 'shop', $2, sha256('{}'), 'charge', '', '1')`, consumer, id)
}

const stepsLeft = "select coalesce(string_agg(consumer || ' ' || event_id, ', ' order by consumer, event_id), '') from holdfast.inbox_step"

func TestSteps_ForgettingIsForTheEventsThatAreReplayed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, relay, waits := rows.Dead(t, b.Pool, "billing", "k", "e1"), rows.Dead(t, b.Pool, "", "k", "e2"), rows.Dead(t, b.Pool, "billing", "k", "e3")
	without := rows.Dead(t, b.Pool, "billing", "k", "e4")
	for _, of := range [][2]string{{"billing", "e1"}, {"billing", "e2"}, {"billing", "e3"}, {"mail", "e1"}} {
		b.step(t, of[0], of[1])
	}
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result)
		select 'billing', 'shop', 'of a conflict', h, 'charge', '', '1' from (values (sha256('{}')), (sha256('other'))) v (h)`)
	conflict := rows.Dead(t, b.Pool, "billing", "k", "of a conflict")
	b.follower(t, "e3") // So that its letter cannot be replayed.
	n, err := b.d.Replay(t.Context(), dlq.Filter{Origin: dlq.OriginRelay}, dlq.ReplayOptions{By: "ann", ForgetSteps: true})
	if n != 0 || err == nil || !strings.Contains(err.Error(), "only handlers of consumers have steps") {
		t.Errorf("of the relay's letters: %d, %v", n, err)
	}
	n, err = b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", ForgetSteps: true})
	if n != 4 || whyNot(err) != "waiting" {
		t.Fatalf("replayed %d, %v", n, err)
	}
	if got := pgtest.Text(t, b.Pool, stepsLeft); got != "billing e2, billing e3, billing of a conflict, mail e1" {
		t.Errorf("what is left are the steps of %s", got)
	}
	for id, want := range map[int64]string{first: `["[steps forgotten: 1]"]`, conflict: `["[steps forgotten: 1]"]`, relay: `[""]`, waits: `[]`, without: `[""]`} {
		if got := fmt.Sprintf("%q", (&bank{bundle: b}).reasons(t, id)); got != want {
			t.Errorf("the replays of letter %d say %s, want %s", id, got, want)
		}
	}
}

func TestSteps_ANamedReplayForgetsThoseOfEachLetterOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rows.Dead(t, b.Pool, "billing", "k1", "e1")
	second := rows.Dead(t, b.Pool, "billing", "k2", "e2")
	b.step(t, "billing", "e1")
	stopped, stop := context.WithCancel(t.Context())
	options := dlq.ReplayOptions{
		By: "ann", Name: "again", ForgetSteps: true,
		ProgressFunc: func(p dlq.Progress) {
			if p.Moved == 1 {
				stop()
			}
		},
	}
	if n, err := b.d.Replay(stopped, dlq.Filter{}, options); n != 1 || !errors.Is(err, context.Canceled) {
		t.Fatalf("replayed %d, %v", n, err)
	}
	// The first has run meanwhile, and failed again.
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'open'")
	pgtest.Exec(t, b.Pool, "delete from holdfast.stored")
	b.step(t, "billing", "e1")
	b.step(t, "billing", "e2")
	options.ProgressFunc = nil
	if n, err := b.d.Replay(t.Context(), dlq.Filter{}, options); n != 1 || err != nil {
		t.Fatalf("went on with %d, %v", n, err)
	}
	if got := pgtest.Text(t, b.Pool, stepsLeft); got != "billing e1" {
		t.Errorf("what is left are the steps of %s", got)
	}
	if l, err := b.d.Get(t.Context(), second); err != nil || l.State != dlq.StateReplaying {
		t.Errorf("the second is %s, %v", l.State, err)
	}
}
