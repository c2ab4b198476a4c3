package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Typed is a type of event together with the Go type of its payload. Declare it once, for instance as a variable of the package, and
// write values:
//
//	var placed = outbox.Typed[Order]{Topic: "orders", Type: "order.placed", KeyFunc: func(o Order) string { return o.ID }}
//
//	err := placed.Write(ctx, tx, order)
//
// Many goroutines may use it at once.
type Typed[T any] struct {
	// Topic and Type are those of its events. Required.
	Topic, Type string

	// KeyFunc returns the key of a value's event. Defaults to no key, and so no order.
	KeyFunc func(v T) string

	// Codec makes the payload, and the header "content-type". Defaults to holdfast.JSON.
	Codec holdfast.Codec

	// Outbox writes the events. Defaults to that of the function Write: the schema "holdfast", no default source.
	Outbox *Outbox
}

// Write writes an event for each value as part of tx, in their order and in one round trip: see Outbox.Write. A value that its codec
// refuses is an error; then nothing is written, and tx is still usable.
func (t Typed[T]) Write(ctx context.Context, tx pgx.Tx, values ...T) error {
	events := make([]holdfast.Event, len(values))
	for i, v := range values {
		var err error
		if events[i], err = t.Event(ctx, v); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
	}
	o := t.Outbox
	if o == nil {
		o = standard
	}
	return o.Write(ctx, tx, events...)
}

// Event returns the event of a value, for what Write does not say: an ID, headers, NotBefore, Outbox.Queue. A nil pointer is an error: a
// tombstone is an Event without a payload, whose key nobody could take from a value.
func (t Typed[T]) Event(ctx context.Context, v T) (holdfast.Event, error) {
	codec := t.Codec
	if codec == nil {
		codec = holdfast.JSON{}
	}
	e, err := codec.Encode(ctx, holdfast.Event{Topic: t.Topic, Type: t.Type}, v)
	if err != nil {
		return holdfast.Event{}, fmt.Errorf("event of the type %q: %w", t.Type, foreign.Error(err))
	}
	if t.KeyFunc != nil {
		e.Key = t.KeyFunc(v)
	}
	return e, nil
}
