package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
)

// A check is a user's function. Whatever it does, the request is answered, and it changes nothing of what is stored.
func TestLetters_ACheckThatMisbehavesIsAnError(t *testing.T) {
	t.Parallel()
	const unchecked = "the new payload could not be checked: consumer billing did not say within 5s whether it can read it"
	for name, c := range map[string]struct {
		check func(ctx context.Context, hang <-chan struct{}, e holdfast.Event) error
		want  string
		took  time.Duration
	}{
		"it finds nothing": {func(context.Context, <-chan struct{}, holdfast.Event) error { return nil }, "", 0},
		"it changes what it got": {func(_ context.Context, _ <-chan struct{}, e holdfast.Event) error {
			e.Payload[0], e.Headers["a"] = 'x', "x"
			return nil
		}, "", 0},
		"an error": {func(context.Context, <-chan struct{}, holdfast.Event) error { return errors.New("no amount") }, "consumer billing could not read the new payload: no amount", 0},
		"a panic": {func(_ context.Context, _ <-chan struct{}, e holdfast.Event) error { panic(string(e.Payload)) },
			"consumer billing could not read the new payload: its check panicked: a value of type string", 0},
		"a panic with an error": {func(_ context.Context, _ <-chan struct{}, e holdfast.Event) error {
			panic(errors.New(string(e.Payload)))
		},
			"consumer billing could not read the new payload: its check panicked: a value of type *errors.errorString", 0},
		"the end of its goroutine": {func(context.Context, <-chan struct{}, holdfast.Event) error { runtime.Goexit(); return nil },
			"consumer billing could not read the new payload: its check ended without an answer", 0},
		"a wait for something that is away": {func(ctx context.Context, _ <-chan struct{}, _ holdfast.Event) error {
			<-ctx.Done()
			return fmt.Errorf("ask for the key: %w", ctx.Err())
		}, unchecked, checkWithin},
		"a wait without an end": {func(_ context.Context, hang <-chan struct{}, _ holdfast.Event) error { <-hang; return nil }, unchecked, checkWithin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				defer close(hang)
				console := &Console{c: Config{Logger: slog.New(slog.DiscardHandler), CheckFuncs: map[string]func(context.Context, holdfast.Event) error{
					"billing": func(ctx context.Context, e holdfast.Event) error { return c.check(ctx, hang, e) },
				}}}
				l := dlq.Letter{Origin: dlq.OriginInbox, Consumer: "billing", Event: holdfast.Event{Headers: map[string]string{"a": "b"}}}
				payload, began, text := []byte("SECRET"), time.Now(), ""
				if err := console.check(t.Context(), l, payload); err != nil {
					text = err.Error()
				}
				if took := time.Since(began); text != c.want || took != c.took {
					t.Errorf("after %s: %q, want %q after %s", took, text, c.want, c.took)
				}
				if string(payload) != "SECRET" || l.Event.Headers["a"] != "b" {
					t.Errorf("it made %q and %v of what is stored", payload, l.Event.Headers)
				}
			})
		})
	}
}
