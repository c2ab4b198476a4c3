package inbox

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// eventLine is what a line of the log says about an event.
type eventLine struct {
	Level, Msg, Outcome                  string
	EventID                              string `json:"event_id"`
	CorrelationID                        string `json:"correlation_id"`
	From                                 string `json:"from_state"`
	To                                   string `json:"to_state"`
	Attempt                              int
	ErrorCode                            string `json:"error_code"`
	Consumer, Source, Topic, Type, Class string
}

// Document 004 asks for event_id, from_state and to_state, and correlation_id.
func TestVisible_LinesAboutAnEventSayWhatBecameOfIt(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	log := &logtest.Log{}
	in := b.inbox(func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Retry.Attempts, c.ImmediateRetries = 3, 1
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "bad" {
			return context.DeadlineExceeded
		}
		return effectOf(ctx, tx, e)
	})
	about := func(id string) (lines []eventLine) {
		t.Helper()
		for _, l := range logtest.Lines[eventLine](t, log.Take()) {
			if l.EventID != id {
				continue
			}
			if l.CorrelationID != "call-"+id || l.Consumer != "billing" || l.Source != "shop" || l.Topic != "orders" || l.Type != "order.placed" {
				t.Errorf("the line says %+v", l)
			}
			lines = append(lines, eventLine{Level: l.Level, Msg: l.Msg, Outcome: l.Outcome, From: l.From, To: l.To, Attempt: l.Attempt, ErrorCode: l.ErrorCode})
		}
		return lines
	}
	correlated := func(id string) holdfast.Event {
		e := event(id, "k"+id)
		e.Headers = map[string]string{"correlation_id": "call-" + id, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		return e
	}
	is := func(got []eventLine, want ...eventLine) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
	b.receive(in, correlated("good"), Handled)
	is(about("good"), eventLine{Level: "DEBUG", Msg: "event received", Outcome: "handled", From: "none", To: "handled", Attempt: 1})
	b.receive(in, correlated("good"), Duplicate)
	is(about("good"), eventLine{Level: "DEBUG", Msg: "event received", Outcome: "duplicate", From: "known", To: "known"})
	other := correlated("good")
	other.Payload = []byte("another")
	b.receive(in, other, Conflict)
	is(about("good"), eventLine{Level: "WARN", Msg: "event id came again with another payload", From: "known", To: "known", ErrorCode: "CONFLICT"},
		eventLine{Level: "DEBUG", Msg: "event received", Outcome: "conflict", From: "known", To: "known"})

	b.receive(in, correlated("bad"), Retrying)
	is(about("bad"), eventLine{Level: "INFO", Msg: "handler failed, will retry", From: "none", To: "none", Attempt: 1, ErrorCode: "DEPENDENCY.timeout"},
		eventLine{Level: "INFO", Msg: "handler failed, will retry", From: "none", To: "stored", Attempt: 2, ErrorCode: "DEPENDENCY.timeout"},
		eventLine{Level: "DEBUG", Msg: "event received", Outcome: "retrying", From: "none", To: "stored", Attempt: 2})
	stop := b.run(in.Run)
	b.awaitOutcome("bad", Dead)
	stop()
	is(about("bad"), eventLine{Level: "ERROR", Msg: "event given up", From: "stored", To: "dead", Attempt: 3, ErrorCode: "DEPENDENCY.timeout"},
		eventLine{Level: "DEBUG", Msg: "event received", Outcome: "dead", From: "stored", To: "dead", Attempt: 3})
}

func TestVisible_TheHeaderOfTheCorrelationIdCanBeChosen(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.CorrelationHeader = "x-flow" })
	for _, row := range []struct {
		headers map[string]string
		want    string
	}{
		{map[string]string{"x-flow": "f1", "correlation_id": "c1"}, "f1"},
		{map[string]string{"correlation_id": "c1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "0af7651916cd43dd8448eb211c80319c"},
		{map[string]string{"x-flow": "not\nsafe"}, ""}, {nil, ""},
	} {
		if got := in.receiver.correlation(holdfast.Event{Headers: row.headers}); got != row.want {
			t.Errorf("%v: got %q, want %q", row.headers, got, row.want)
		}
	}
	for _, name := range []string{"ce_id", "hf_letter", "a\x00b"} {
		c := b.config()
		c.CorrelationHeader = name
		if _, err := New(b.db.Pool, c); err == nil {
			t.Errorf("the header %q is accepted", name)
		}
	}
}

type observedKey struct{}

// A handler has the context that the Observer returned, and what is reported of its event has it, too.
func TestVisible_AHandlerHasTheContextOfItsObserver(t *testing.T) {
	b := setup(t)
	type run struct {
		h   Handling
		err error
	}
	runs := make(chan *run, 10)
	in := b.inbox(func(c *Config) {
		c.Retry.Attempts, c.ImmediateRetries = 2, -1
		c.Observer.OnHandle = func(ctx context.Context, h Handling) (context.Context, func(error)) {
			r := &run{h: h}
			return context.WithValue(ctx, observedKey{}, r), func(err error) { r.err = err; runs <- r }
		}
		inner := c.Observer
		check := func(ctx context.Context, what string, id string) {
			r, _ := ctx.Value(observedKey{}).(*run)
			if r == nil || r.h.Events[0].ID != id {
				t.Errorf("%s of %s has another context", what, id)
			}
		}
		c.Observer.OnReceive = func(r Received) {
			if r.Outcome == Handled || r.Outcome == Retrying {
				check(r.Context, "OnReceive", r.Event.ID)
			}
			inner.OnReceive(r)
		}
		c.Observer.OnRetry = func(r Retried) { check(r.Context, "OnRetry", r.Event.ID); inner.OnRetry(r) }
	})
	fails := errors.New("planned")
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		r, _ := ctx.Value(observedKey{}).(*run)
		if r == nil || r.h.Events[0].ID != e.ID {
			t.Error("the handler has another context")
		}
		if _, timed := ctx.Deadline(); !timed {
			t.Error("the handler's time has no end")
		}
		if e.ID == "bad" {
			return fails
		}
		return effectOf(ctx, tx, e)
	})
	next := func() *run {
		t.Helper()
		select {
		case r := <-runs:
			return r
		case <-time.After(time.Minute):
			t.Fatal("no run has ended")
			return nil
		}
	}
	b.receive(in, event("good", "g"), Handled)
	if r := next(); r.err != nil || r.h.Attempt != 1 || r.h.FromState != stateNone || r.h.Consumer != "billing" {
		t.Errorf("got %+v", r)
	}
	b.receive(in, event("bad", "b"), Retrying)
	if r := next(); !errors.Is(r.err, fails) || r.h.Attempt != 1 || r.h.FromState != stateNone {
		t.Errorf("got %+v", r)
	}
	stop := b.run(in.Run)
	b.awaitOutcome("bad", Dead)
	stop()
	if r := next(); !errors.Is(r.err, fails) || r.h.Attempt != 2 || r.h.FromState != stateStored {
		t.Errorf("got %+v", r)
	}
}

func TestVisible_TheStatesOfEveryOutcome(t *testing.T) {
	t.Parallel()
	for out, want := range map[Outcome][2]string{
		Handled: {"none", "handled"}, Duplicate: {"known", "known"}, Stored: {"none", "stored"}, Retrying: {"none", "stored"}, Dead: {"none", "dead"},
		Conflict: {"known", "known"}, Stale: {"none", "dead"}, Skipped: {"none", "skipped"}, "": {"unknown", "unknown"}, "green": {"unknown", "unknown"},
	} {
		if from, to := out.States(); [2]string{from, to} != want {
			t.Errorf("%s: from %s to %s", out, from, to)
		}
	}
	if from, to := Handled.leaves(stateStored); from != "stored" || to != "handled" {
		t.Errorf("a stored event goes from %s to %s", from, to)
	}
}
