package inbox

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/internal/steps"
)

// This file tells code that runs for a handler what it runs for.

// EventFrom returns the event that is being handled, as it came: its payload may be encrypted. Of a batch it is the first. It is false
// outside of a handler and its middleware.
func EventFrom(ctx context.Context) (e holdfast.Event, ok bool) {
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return holdfast.Event{}, false
	}
	return r.events[0], true
}

// AttemptFrom returns the number of this attempt to handle the event, from 1; 0 outside of a handler and its middleware.
func AttemptFrom(ctx context.Context) int {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		return r.attempt
	}
	return 0
}

// LoggerFrom returns Config.Logger with attributes of the event that is being handled: consumer, topic, type, source, event_id,
// correlation_id and attempt, and for a batch events, its size. Outside of a handler and its middleware it is slog.Default().
func LoggerFrom(ctx context.Context) *slog.Logger {
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return slog.Default()
	}
	attrs := append(r.runner.attrs(r.events[0]), "attempt", r.attempt)
	if n := len(r.events); n > 1 {
		attrs = append(attrs, "events", n)
	}
	return r.runner.c.Logger.With(attrs...)
}

type runKey struct{}

// run is what a handler runs for.
type run struct {
	runner  *runner
	events  []holdfast.Event
	attempt int
	hash    []byte          // of the event, as its row has it; nil for a batch
	ctx     context.Context // the handler's
	tx      *handlertx.Tx   // the handler's
	steps   steps.Turns     // step.go
}

// with is a handler's context that knows what it runs for.
func (r *run) with(ctx context.Context) context.Context { return context.WithValue(ctx, runKey{}, r) }
