package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

// Tx is a transaction of database/sql: a *sql.Tx, and what passes statements and arguments on to one, as *sqlx.Tx and ent's *Tx do (with
// its feature sql/execquery). A *sql.DB and a *sql.Conn have no Commit, so that passing one does not compile. Write and Lock never
// call Commit or Rollback.
type Tx interface {
	Execer
	Commit() error
	Rollback() error
}

// Execer runs statements: what sqlc calls DBTX and GORM ConnPool. It may be a transaction or not.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

var _ Tx = (*sql.Tx)(nil)

// From returns the transaction that db is, for code that is handed an interface, such as the ConnPool of GORM or the DBTX of sqlc. It
// is an error if db is no transaction, because an event would commit without its change.
func From(db Execer) (Tx, error) {
	tx, is := db.(Tx)
	if !is || none(tx) {
		return nil, fmt.Errorf("find the transaction: %T is none: begin one, and pass what you got", db)
	}
	return tx, nil
}

// none reports that a Tx is nil, or a pointer that is.
func none(tx Tx) bool {
	if tx == nil {
		return true
	}
	v := reflect.ValueOf(tx)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Outbox writes events to one schema. Many goroutines may use it at once. It holds no connection and no state.
type Outbox struct{ outbox *outbox.Outbox }

// New returns an Outbox. The error lists every problem of the configuration.
func New(c outbox.Config) (*Outbox, error) {
	if len(c.Use) > 0 {
		return nil, errors.New("outbox config: use has middleware: it gets a pgx.Tx, and must be empty here")
	}
	o, err := outbox.New(c)
	if err != nil {
		return nil, err
	}
	return &Outbox{o}, nil
}

// standard is the Outbox of the package functions Write and Lock: the zero Config.
var standard = func() *Outbox {
	o, err := New(outbox.Config{})
	if err != nil {
		panic(err)
	}
	return o
}()

// Write is New(outbox.Config{}).Write: the schema "holdfast", no default source.
func Write(ctx context.Context, tx Tx, events ...holdfast.Event) error {
	return standard.Write(ctx, tx, events...)
}

// WriteOnce is New(outbox.Config{}).WriteOnce.
func WriteOnce(ctx context.Context, tx Tx, dedupeKey string, event holdfast.Event) (outbox.Once, error) {
	return standard.WriteOnce(ctx, tx, dedupeKey, event)
}

// Lock is New(outbox.Config{}).Lock.
func Lock(ctx context.Context, tx Tx, keys ...string) error {
	return standard.Lock(ctx, tx, keys...)
}

// Write appends events to the log, in their order, as part of tx: see outbox.Outbox.Write, whose promises and errors it has. If tx has
// ended, the error wraps sql.ErrTxDone.
func (o *Outbox) Write(ctx context.Context, tx Tx, events ...holdfast.Event) error {
	if len(events) == 0 {
		return nil
	}
	if none(tx) {
		return errors.New("write events: tx is nil: it must be the transaction that makes the change")
	}
	return o.outbox.WriteThrough(ctx, through(tx), events...)
}

// WriteOnce writes the event as part of tx unless one was written under its dedupe key: see outbox.Outbox.WriteOnce. tx must have
// QueryContext, as a *sql.Tx and what wraps one have.
func (o *Outbox) WriteOnce(ctx context.Context, tx Tx, dedupeKey string, event holdfast.Event) (outbox.Once, error) {
	if none(tx) {
		return outbox.Once{}, errors.New("write event once: tx is nil: it must be the transaction that makes the change")
	}
	asks, can := tx.(queryer)
	if !can {
		return outbox.Once{}, fmt.Errorf("write event once: %T has no QueryContext: pass the *sql.Tx inside it", tx)
	}
	return o.outbox.WriteOnceThrough(ctx, func(ctx context.Context, statement string, args []any, into ...any) error {
		rows, err := asks.QueryContext(ctx, statement, asText(args)...)
		if err != nil {
			return withoutArguments(tx, err)
		}
		defer rows.Close()
		if !rows.Next() {
			return cmp.Or(rows.Err(), sql.ErrNoRows)
		}
		return errors.Join(rows.Scan(into...), rows.Close())
	}, dedupeKey, event)
}

// queryer runs statements that return rows.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Lock serialises the transactions that write for these keys, until tx ends: see outbox.Outbox.Lock.
func (o *Outbox) Lock(ctx context.Context, tx Tx, keys ...string) error {
	if none(tx) {
		return errors.New("lock keys: tx is nil: it must be the transaction that writes the events")
	}
	return o.outbox.LockThrough(ctx, through(tx), keys...)
}

// undefinedParameter is the SQLSTATE of a statement that came without its arguments.
const undefinedParameter = "42P02"

// through runs statements in tx.
func through(tx Tx) outbox.Exec {
	return func(ctx context.Context, statement string, args ...any) error {
		_, err := tx.ExecContext(ctx, statement, asText(args)...)
		return withoutArguments(tx, err)
	}
}

// withoutArguments explains the error of a statement that came without its arguments, and returns any other one as it is.
func withoutArguments(tx Tx, err error) error {
	var failed interface{ SQLState() string }
	if errors.As(err, &failed) && failed.SQLState() == undefinedParameter {
		return fmt.Errorf("%T does not pass arguments on to the driver: pass the *sql.Tx inside it (of a bun.Tx: tx.Tx): %w", tx, err)
	}
	return err
}
