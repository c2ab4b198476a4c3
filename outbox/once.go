package outbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

const (
	maxDedupeKey            = 255
	defaultDedupeRetention  = 7 * 24 * time.Hour
	largestDedupeRetention  = 10 * 365 * 24 * time.Hour
	smallestDedupeRetention = time.Second
)

// ErrDedupeConflict is wrapped by the error of WriteOnce for a dedupe key under which another event was written: one with another source,
// key or payload. The error says in what they differ.
var ErrDedupeConflict = errors.New("the dedupe key belongs to another event")

// Once says what WriteOnce did.
type Once struct {
	// Written says that the event was written. Otherwise one was written under its dedupe key before.
	Written bool

	// ID is the id of the event that has the key: this one's, or that of the earlier one.
	ID string
}

// WriteOnce is New(Config{}).WriteOnce.
func WriteOnce(ctx context.Context, tx pgx.Tx, dedupeKey string, event holdfast.Event) (Once, error) {
	return standard.WriteOnce(ctx, tx, dedupeKey, event)
}

// WriteOnce writes the event as part of tx, as Write does, unless one of its topic and type was written under the same dedupe key in an
// earlier transaction that committed: then it writes nothing, and says so. Use it where the same change may be made twice, by a job that is
// tried again or by two that overlap. A key is 1 to 255 bytes and names one business event, such as "invoice 17 is due". It is kept as it
// is, for Config.DedupeRetention, so put nothing secret into it.
//
// A key that another transaction has written and not committed makes WriteOnce wait for the end of that one. Transactions with
// several keys should write them in one order; otherwise Postgres may end one of them as a deadlock. Under REPEATABLE READ or higher, a key that
// was written since the snapshot of tx is a serialization failure: try the transaction again.
//
// If the earlier event has another source, key or payload, the error wraps ErrDedupeConflict. Headers and times may differ. With
// Config.Encryptor payloads are not compared, because the same one is encrypted differently each time. An event without an ID gets one that is made
// of its topic, type and dedupe key, so that an inbox recognises a repeat by it even when the key has been forgotten here.
//
// After ErrDedupeConflict, and after any other error of Postgres, tx is aborted. A *LimitError leaves it usable.
func (o *Outbox) WriteOnce(ctx context.Context, tx pgx.Tx, dedupeKey string, event holdfast.Event) (Once, error) {
	if tx == nil {
		return Once{}, errors.New("write event once: tx is nil: it must be the transaction that makes the change")
	}
	query := func(ctx context.Context, sql string, args []any, into ...any) error {
		return tx.QueryRow(ctx, sql, args...).Scan(into...)
	}
	if o.outer == nil {
		return o.writeOnce(ctx, query, dedupeKey, event)
	}
	w := writing{given: 1}
	var once Once
	w.writeFunc = func(ctx context.Context, events []holdfast.Event) (err error) {
		once, err = o.writeOnce(ctx, query, dedupeKey, events[0])
		return err
	}
	if err := o.around(ctx, tx, []holdfast.Event{event}, &w); err != nil {
		return Once{}, err
	}
	return once, nil
}

// Query runs one statement that returns one row, in the transaction that makes the change, and scans the row. Its arguments are those of
// Exec; into are a *bool and a *string.
type Query func(ctx context.Context, sql string, args []any, into ...any) error

// WriteOnceThrough is WriteOnce for code that reaches Postgres without a pgx.Tx: see WriteThrough. For database/sql, use the module
// contrib/sql.
func (o *Outbox) WriteOnceThrough(ctx context.Context, query Query, dedupeKey string, event holdfast.Event) (Once, error) {
	if query == nil {
		return Once{}, errors.New("write event once: query is nil: it must run a statement in the transaction that makes the change")
	}
	if o.outer != nil {
		return Once{}, errors.New("write event once: this Outbox has middleware (Config.Use), which gets a pgx.Tx: use an Outbox without")
	}
	return o.writeOnce(ctx, query, dedupeKey, event)
}

// writeOnce is WriteOnce and WriteOnceThrough without middleware.
func (o *Outbox) writeOnce(ctx context.Context, query Query, dedupeKey string, event holdfast.Event) (once Once, err error) {
	events := []holdfast.Event{event}
	var headers map[string]string
	if o.observer.OnWrite != nil {
		var ended func(error)
		headers, ended = o.observer.OnWrite(ctx, events)
		defer func() { ended(err) }()
	}
	args, err := o.onceArgs(ctx, dedupeKey, events, headers)
	if err != nil {
		return Once{}, fmt.Errorf("write event once: %w", err)
	}
	failpoint.Hit(failpoint.OutboxWriting)
	if err := query(ctx, o.appendOnce, args, &once.Written, &once.ID); err != nil {
		var failed interface{ SQLState() string }
		if errors.As(err, &failed) && failed.SQLState() == uniqueViolation {
			return Once{}, fmt.Errorf("write event once: %w: %w", ErrDedupeConflict, err)
		}
		return Once{}, fmt.Errorf("write event once: %w", explain(err))
	}
	failpoint.Hit(failpoint.OutboxWritten)
	return once, nil
}

// uniqueViolation is the SQLSTATE by which holdfast.write_once refuses an event. Nothing else in it is unique.
const uniqueViolation = "23505"

// onceArgs are the arguments of writeEventOnce, or say what is wrong with the event.
func (o *Outbox) onceArgs(ctx context.Context, dedupeKey string, events []holdfast.Event, headers map[string]string) ([]any, error) {
	if err := errors.Join(checkText("dedupe key", dedupeKey, 1, maxDedupeKey), o.check(events)); err != nil {
		return nil, err
	}
	if events[0].ID == "" {
		events[0].ID = onceID(dedupeKey, events[0].Topic, events[0].Type)
	}
	events, err := o.encrypt(ctx, events)
	if err != nil {
		return nil, err
	}
	c, err := o.columns(withHeaders(events, headers))
	if err != nil {
		return nil, err
	}
	var at, notBefore *time.Time
	var head *string
	if c.times != nil {
		at = c.times[0]
	}
	if c.notBefores != nil {
		notBefore = c.notBefores[0]
	}
	if c.headers != nil {
		head = c.headers[0]
	}
	keep := strconv.FormatInt(int64(o.dedupeRetention/time.Second), 10) + " seconds"
	return []any{dedupeKey, c.topics[0], c.keys[0], c.types[0], c.payloads[0], head, c.sources[0], c.ids[0], at, notBefore, keep, strconv.FormatBool(o.encryptor == nil)}, nil
}

// onceSpace is the name space of the ids of events that are written once.
var onceSpace = uuid.MustParse("b1c0d5f2-7c4e-4b6f-9a3d-2e8f60714253")

// onceID is holdfast.once_id.
func onceID(dedupeKey, topic, eventType string) string {
	return uuid.NewHash(sha256.New(), onceSpace, []byte(topic+"\x00"+eventType+"\x00"+dedupeKey), 8).String()
}
