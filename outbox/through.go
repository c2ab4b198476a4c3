package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// Exec runs one statement, with its arguments $1, $2 and so on, in the transaction that makes the change. An argument is a string,
// []byte, *string or *time.Time, or a slice of one of these. A nil slice and a nil pointer are NULL, also as elements.
type Exec func(ctx context.Context, sql string, args ...any) error

// WriteThrough is Write for code that reaches Postgres without a pgx.Tx. It calls exec once, unless it refuses the events or there
// are none. Nothing checks that exec is in a transaction: outside of one, the events commit by themselves. For database/sql, use the
// module contrib/sql.
func (o *Outbox) WriteThrough(ctx context.Context, exec Exec, events ...holdfast.Event) error {
	if len(events) == 0 {
		return nil
	}
	if exec == nil {
		return errors.New("write events: exec is nil: it must run a statement in the transaction that makes the change")
	}
	if o.outer != nil {
		return errors.New("write events: this Outbox has middleware (Config.Use), which gets a pgx.Tx: use an Outbox without")
	}
	return o.write(ctx, exec, events)
}

// write is Write and WriteThrough without middleware.
func (o *Outbox) write(ctx context.Context, exec Exec, events []holdfast.Event) (err error) {
	var headers map[string]string
	if o.observer.OnWrite != nil {
		var ended func(error)
		headers, ended = o.observer.OnWrite(ctx, events)
		defer func() { ended(err) }()
	}
	sql, args, err := o.statement(ctx, events, headers)
	if err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	failpoint.Hit(failpoint.OutboxWriting)
	if err := exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("write events: %w", explain(err))
	}
	failpoint.Hit(failpoint.OutboxWritten)
	return nil
}

// LockThrough is Lock for code that reaches Postgres without a pgx.Tx. It calls exec once, unless it refuses the keys or there are
// none. Outside of a transaction the keys are free again at once.
func (o *Outbox) LockThrough(ctx context.Context, exec Exec, keys ...string) error {
	if exec == nil {
		return errors.New("lock keys: exec is nil: it must run a statement in the transaction that writes the events")
	}
	for _, key := range keys {
		if key == "" {
			return errors.New("lock keys: key is empty: it must not be, because events without a key have no order")
		}
		if err := checkText("key", key, 1, maxKey); err != nil {
			return fmt.Errorf("lock keys: %w", err)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if err := exec(ctx, o.lock, keys); err != nil {
		return fmt.Errorf("lock keys: %w", explain(err))
	}
	return nil
}

// through runs statements in a transaction of pgx.
func through(tx pgx.Tx) Exec {
	return func(ctx context.Context, sql string, args ...any) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
}
