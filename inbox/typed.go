package inbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
)

// This file registers handlers that get values in place of payloads.

// On registers a handler that gets the payload of each event as a T. WithCodec says how it is read; by default it is JSON, whose
// unknown fields are accepted. A payload that does not decode makes the event a dead letter at once, whose reason names the field and
// what is wrong there: `payload: field "lines[2].qty": a string where an int is wanted`.
//
// An event without a payload (a tombstone) is nil if T is a pointer. For any other T it becomes a dead letter.
//
// WithUpcast takes older versions of the type, too. The event comes as it was sent: e.Type says which version that was.
//
// On panics as Handle does. A wrong option is an error of the first Receive, Store, Run or Consume: see Option.
func On[T any](in *Inbox, eventType string, h func(ctx context.Context, tx pgx.Tx, v T, e holdfast.Event) error, o ...Option) {
	if h == nil {
		panic(fmt.Sprintf("inbox: on %q: the handler is nil", eventType))
	}
	r, read := valued(reflect.TypeFor[T](), eventType, o)
	in.registry.register(r.types, r, handler{read: read, one: func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		v, err := read(ctx, e)
		if err != nil {
			return err
		}
		value, _ := v.(T) // A tombstone is nil.
		return h(ctx, tx, value, e)
	}})
}

// Value is an event with its payload.
type Value[T any] struct {
	Value T // nil for a tombstone
	Event holdfast.Event
}

// OnBatch is On for a handler that takes several events of the type in one transaction, as HandleBatch does. If one of them does not
// decode, the events come one by one, so that only that one becomes a dead letter. With WithUpcast each version has batches of its own.
func OnBatch[T any](in *Inbox, eventType string, h func(ctx context.Context, tx pgx.Tx, values []Value[T]) error, o ...Option) {
	if h == nil {
		panic(fmt.Sprintf("inbox: on %q: the handler is nil", eventType))
	}
	r, read := valued(reflect.TypeFor[T](), eventType, o)
	in.registry.register(r.types, r, handler{read: read, batch: func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		values := make([]Value[T], len(events))
		for i, e := range events {
			v, err := read(ctx, e)
			if err != nil {
				return err
			}
			value, _ := v.(T)
			values[i] = Value[T]{Value: value, Event: e}
		}
		return h(ctx, tx, values)
	}})
}

// valued is the registration of a handler of values of t for a type and its older versions, and what reads their payloads.
func valued(t reflect.Type, eventType string, o []Option) (r registration, read func(ctx context.Context, e holdfast.Event) (any, error)) {
	r = registrationOf(o)
	r.typed, r.types = t, []string{eventType}
	versions := map[string]version{eventType: {of: t}}
	for i, u := range r.upcasts {
		r.types = append(r.types, u.from)
		versions[u.from] = version{of: u.in, steps: r.upcasts[i:]}
	}
	codec := r.codec
	if codec == nil {
		codec = holdfast.JSON{}
	}
	return r, func(ctx context.Context, e holdfast.Event) (any, error) {
		return decoded(ctx, codec, t, versions[e.Type], e)
	}
}

// CheckPayload says what keeps the handler of the event's type from reading its payload: the reason of a dead letter that a person has
// edited, before it is replayed. It decrypts and decodes as On and OnBatch do. Nil means that the payload can be read, or that
// nobody knows: Handle and HandleBatch take payloads as they come, and a type may have no handler here. It runs no handler and uses no
// database. A panic of a codec, an upcast or a Decryptor is an error that says so, without what it panicked with. Many goroutines may
// call it at once, also before the inbox runs.
func (in *Inbox) CheckPayload(ctx context.Context, e holdfast.Event) (err error) {
	read := in.registry.readerOf(e.Type)
	if read == nil {
		return nil
	}
	by := "codec" // or an upcast behind it
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the %s panicked: a value of type %T", by, p) // The value may quote the payload.
		}
	}()
	if s, sealed := wire.Sealed(e); sealed {
		by = "decryptor"
		payload, err := in.decrypt(ctx, e, s)
		if err != nil {
			return err
		}
		by, e.Payload = "codec", payload
	}
	_, err = read(ctx, e)
	return err
}

// version is how the payload of one type of event becomes what the handler takes.
type version struct {
	of    reflect.Type // what it is decoded into
	steps []upcast
}

// decoded is the payload of an event as a t; nil for a tombstone.
func decoded(ctx context.Context, codec holdfast.Codec, t reflect.Type, from version, e holdfast.Event) (any, error) {
	if e.Payload == nil {
		if t.Kind() == reflect.Pointer {
			return nil, nil
		}
		return nil, undecodable(&holdfast.PayloadError{Problem: "a tombstone where " + t.String() + " is wanted: a handler of *" + t.String() + " takes both"})
	}
	of := from.of
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	target := reflect.New(of)
	if err := foreign.Error(codec.Decode(ctx, e, target.Interface())); err != nil {
		if ctx.Err() != nil || mayPass(err) {
			return nil, fmt.Errorf("decode payload: %w", err)
		}
		return nil, undecodable(err)
	}
	if from.of.Kind() != reflect.Pointer {
		target = target.Elem()
	}
	v := target.Interface()
	for _, u := range from.steps {
		var err error
		if v, err = u.to(v); err != nil {
			err = foreign.Error(err)
			return nil, undecodable(&holdfast.PayloadError{Problem: fmt.Sprintf("it is a %s, of the type %q, and cannot become a %s", u.in, u.from, u.out), Err: err})
		}
	}
	return v, nil
}

// mayPass reports that a codec says of its error that another attempt may succeed. Nothing is guessed: a payload that ends too soon
// gives the same error as a connection that does.
func mayPass(err error) bool {
	if retry.IsPermanent(err) {
		return false
	}
	if _, asked := retry.AfterOf(err); asked {
		return true
	}
	var own interface{ RetryClass() retry.Class }
	if !errors.As(err, &own) {
		return false
	}
	class, _ := foreign.Try(own.RetryClass)
	return class.Retryable()
}

// undecodable is the failure of a payload that no other attempt can read.
func undecodable(err error) error { return retry.Permanent(&failure.PayloadError{Err: err}) }
