package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// WriteFunc is Outbox.Write as a function, for Config.Use. events has at least one.
type WriteFunc func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error

type writingKey struct{}

// writing is how the middleware of one Write has called next.
type writing struct {
	given   int   // events of the Write
	written int   // calls that succeeded
	err     error // of the last call

	writeFunc func(ctx context.Context, events []holdfast.Event) error // of WriteOnce and WriteToken; nil: Write
}

// wrapped is write with middleware around it; nil if there is none.
func (o *Outbox) wrapped(use []func(WriteFunc) WriteFunc) WriteFunc {
	if len(use) == 0 {
		return nil
	}
	outer := WriteFunc(func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		w, ok := ctx.Value(writingKey{}).(*writing)
		switch {
		case !ok:
			return errors.New("write events: a middleware passed a context that was not made from its own")
		case w.written > 0:
			return errors.New("write events: a middleware called next again after it had written: the events would be written twice")
		}
		if len(events) != w.given {
			w.err = fmt.Errorf("write events: a middleware gave next %d events, of %d: it must be all of them, in one call", len(events), w.given)
			return w.err
		}
		if w.writeFunc != nil {
			w.err = w.writeFunc(ctx, events)
		} else {
			w.err = o.write(ctx, through(tx), events)
		}
		if w.err == nil {
			w.written++
		}
		return w.err
	})
	for i := len(use) - 1; i >= 0; i-- {
		outer = use[i](outer)
	}
	return outer
}

// around writes through the middleware, and believes it only if the events were written.
func (o *Outbox) around(ctx context.Context, tx pgx.Tx, events []holdfast.Event, w *writing) error {
	err := o.outer(context.WithValue(ctx, writingKey{}, w), tx, events)
	switch {
	case err != nil && w.written > 0:
		return fmt.Errorf("write events: a middleware failed after the events were written, so roll the transaction back: %w", err)
	case err != nil:
		return err
	case w.err != nil:
		return fmt.Errorf("write events: a middleware returned nil, but the events were not written: %w", w.err)
	case w.written == 0:
		return errors.New("write events: a middleware returned nil without calling next: the events were not written")
	}
	return nil
}
