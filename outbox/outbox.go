// Package outbox writes events in the transaction that makes the change.
//
// Write appends events to holdfast's log through the caller's own pgx.Tx. The change and its events commit together, or
// not at all. A relay publishes them afterwards; this package never talks to Kafka. Write accepts only a pgx.Tx, so
// passing a pool does not compile. Queue adds the events to a pgx.Batch together with the change, and costs no round
// trip.
//
// A producer links pgx and a UUID library, nothing else.
package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Config configures an Outbox. The zero Config works.
type Config struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string

	// Source is the Event.Source of events that have none: the name of this service. At most 255 bytes. Defaults to "".
	Source string

	// MaxPayload is the maximum size of a payload in bytes. Keep it below the broker's max.message.bytes less 16 KiB
	// for key, headers and framing. Write would accept a larger event only for the broker to refuse it. To raise it, raise
	// the schema's own limit too (holdfast.SchemaConfig.MaxPayload), which holds for every writer. -1 means no other limit
	// than the schema's. Defaults to 1,032,192 (1 MiB less 16 KiB).
	MaxPayload int

	// Encryptor encrypts every payload before it is written; Event.Headers then say how ("holdfast-encryption"). MaxPayload holds for
	// what is written. Handlers get the payload in the clear if inbox.Config.Decryptor is set. Write hands its context to it,
	// and Queue, which has none, the background context. Defaults to none: payloads are written as they are.
	Encryptor holdfast.Encryptor

	// DedupeRetention is how long the dedupe key of WriteOnce is remembered, at least. Longer than the time in which the same change may be
	// made again. From 1 s to 10 years. Defaults to 7 days.
	DedupeRetention time.Duration

	// Use is middleware around Write and WriteOnce, the first outermost: it may look, add headers, or refuse. Each function is called once, by New. What
	// it gives to next is checked, encrypted and written. It must call next once, with as many events as it got, before it returns nil:
	// Write is an error otherwise, so that no event is lost by mistake. After its error tx is still usable, unless next has written the
	// events: the error says so, and asks for a rollback. Queue, WriteThrough and WriteOnceThrough, which have no pgx.Tx, are errors with it. Defaults to none.
	Use []func(next WriteFunc) WriteFunc

	// Observer sees each Write and WriteOnce, and may give its events headers such as traceparent. Queue does not call it. Defaults to nothing.
	Observer Observer
}

// defaultMaxPayload fits Kafka's default max.message.bytes with the largest key and headers that Write accepts.
const defaultMaxPayload = 1<<20 - 16<<10

// Outbox writes events to one schema. Many goroutines may use it at once. It holds no connection and no state.
type Outbox struct {
	source     string
	maxPayload int
	encryptor  holdfast.Encryptor
	observer   Observer
	outer      WriteFunc // with middleware; nil without
	append     string
	appendOne  string
	appendOnce string
	lock       string

	dedupeRetention time.Duration
}

// New returns an Outbox. The error lists every problem of the configuration.
func New(c Config) (*Outbox, error) {
	var problems []error
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if err := checkText("source", c.Source, 0, maxSource); err != nil {
		problems = append(problems, err)
	}
	if c.MaxPayload < -1 {
		problems = append(problems, fmt.Errorf("max payload is %d: it must be positive, 0 for the default of %d, or -1 for no limit", c.MaxPayload, defaultMaxPayload))
	}
	if c.DedupeRetention != 0 && (c.DedupeRetention < smallestDedupeRetention || c.DedupeRetention > largestDedupeRetention) {
		problems = append(problems, fmt.Errorf("dedupe retention is %v: it must be from %v to %v, or 0 for the default of %v", c.DedupeRetention, smallestDedupeRetention, largestDedupeRetention, defaultDedupeRetention))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("outbox config: %w", err)
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = defaultMaxPayload
	}
	if c.DedupeRetention == 0 {
		c.DedupeRetention = defaultDedupeRetention
	}
	o := &Outbox{
		source:     c.Source,
		maxPayload: c.MaxPayload,
		encryptor:  c.Encryptor,
		observer:   c.Observer,
		append:     sqlschema.In(c.Schema, appendEvents),
		appendOne:  sqlschema.In(c.Schema, appendEvent),
		appendOnce: sqlschema.In(c.Schema, writeEventOnce),
		lock:       sqlschema.In(c.Schema, lockKeys),

		dedupeRetention: c.DedupeRetention,
	}
	o.outer = o.wrapped(c.Use)
	return o, nil
}

// standard is the Outbox of the package functions Write, Queue and Lock: the zero Config.
var standard = func() *Outbox {
	o, err := New(Config{})
	if err != nil {
		panic(err)
	}
	return o
}()

// Write is New(Config{}).Write: the schema "holdfast", no default source.
func Write(ctx context.Context, tx pgx.Tx, events ...holdfast.Event) error {
	return standard.Write(ctx, tx, events...)
}

// WriteToken is New(Config{}).WriteToken.
func WriteToken(ctx context.Context, tx pgx.Tx, event holdfast.Event) (holdfast.Token, error) {
	return standard.WriteToken(ctx, tx, event)
}

// Queue is New(Config{}).Queue.
func Queue(batch *pgx.Batch, events ...holdfast.Event) error {
	return standard.Queue(batch, events...)
}

// Lock is New(Config{}).Lock.
func Lock(ctx context.Context, tx pgx.Tx, keys ...string) error {
	return standard.Lock(ctx, tx, keys...)
}

// Write appends events to the log, in their order, as part of tx. They are published if tx commits, and never if it
// rolls back. Write makes one round trip for up to 10,000 events. Events without an ID get a UUIDv7; set Event.ID
// yourself if you need to know it.
//
// Two transactions that write for one key have an order only if something makes the second wait for the first before it
// writes: the row lock of an UPDATE, or Lock.
//
// An event that exceeds a limit gives a *LimitError; nothing is written, and tx is still usable. So it is after an error of
// Config.Encryptor, and of Config.Use as said there. Any other error comes from Postgres, and tx is aborted, as after any
// failed statement. If the schema is missing, the error wraps holdfast.ErrSchemaMissing.
func (o *Outbox) Write(ctx context.Context, tx pgx.Tx, events ...holdfast.Event) error {
	if len(events) == 0 {
		return nil
	}
	if tx == nil {
		return errors.New("write events: tx is nil: it must be the transaction that makes the change")
	}
	if o.outer != nil {
		return o.around(ctx, tx, events, &writing{given: len(events)})
	}
	return o.write(ctx, through(tx), events)
}

// WriteToken is Write of one event. It returns the token by which holdfast.WaitFor waits, after tx has committed, until a consumer has settled the event.
// Of WriteOnce the token is made of the event's source and Once.ID.
func (o *Outbox) WriteToken(ctx context.Context, tx pgx.Tx, event holdfast.Event) (token holdfast.Token, err error) {
	if tx == nil {
		return token, errors.New("write events: tx is nil: it must be the transaction that makes the change")
	}
	write := func(ctx context.Context, events []holdfast.Event) error {
		id, source, err := o.identity(&events[0])
		if err != nil {
			return fmt.Errorf("write events: %w", err)
		}
		events[0].ID = id // so that it gets no other
		token = holdfast.Token{Source: source, ID: id}
		return o.write(ctx, through(tx), events)
	}
	if o.outer != nil {
		err = o.around(ctx, tx, []holdfast.Event{event}, &writing{given: 1, writeFunc: write})
	} else {
		err = write(ctx, []holdfast.Event{event})
	}
	if err != nil {
		return holdfast.Token{}, err
	}
	return token, nil
}

// Queue is Write as one more statement of batch: the change and its events reach Postgres in one round trip. Send the
// batch with the transaction that makes the change. A batch that a pool or a connection sends outside a transaction is
// a transaction of its own, unless it contains a BEGIN or a COMMIT.
//
// An event that exceeds a limit gives a *LimitError, and nothing is queued. Errors of Postgres are in the results of
// the batch: close them and check the error. For the order between transactions, see Write: queue the events after the
// UPDATE that takes the row lock.
func (o *Outbox) Queue(batch *pgx.Batch, events ...holdfast.Event) error {
	if len(events) == 0 {
		return nil
	}
	if batch == nil {
		return errors.New("queue events: batch is nil: it must be the batch that makes the change")
	}
	if o.outer != nil {
		return errors.New("queue events: this Outbox has middleware (Config.Use), which works in a transaction: use Write, or an Outbox without")
	}
	sql, args, err := o.statement(context.Background(), events, nil)
	if err != nil {
		return fmt.Errorf("queue events: %w", err)
	}
	batch.Queue(sql, args...)
	return nil
}

// statement returns the statement that appends events with more headers, and its arguments, or says what is wrong with the events.
func (o *Outbox) statement(ctx context.Context, events []holdfast.Event, headers map[string]string) (sql string, args []any, err error) {
	if err := o.check(events); err != nil {
		return "", nil, err
	}
	if events, err = o.encrypt(ctx, events); err != nil {
		return "", nil, err
	}
	c, err := o.columns(withHeaders(events, headers))
	if err != nil {
		return "", nil, err
	}
	if len(events) == 1 && c.notBefores == nil {
		var at *time.Time
		var headers *string
		if c.times != nil {
			at = c.times[0]
		}
		if c.headers != nil {
			headers = c.headers[0]
		}
		return o.appendOne, []any{c.ids[0], c.sources[0], c.types[0], c.topics[0], c.keys[0], at, headers, c.payloads[0]}, nil
	}
	return o.append, []any{c.ids, c.sources, c.types, c.topics, c.keys, c.times, c.headers, c.payloads, c.notBefores}, nil
}

// Lock serialises the transactions that write for these keys. It waits until no other transaction holds one of them,
// and holds them until tx ends. Call it once, before the first read or write of tx, with every key that tx writes for.
// It locks the keys in one global order, so callers cannot deadlock with each other. It works through a transaction
// pooler. An empty key is an error: events without a key have no order.
//
// You do not need Lock if the transactions already wait for each other, for example because each begins with an UPDATE
// of the row that the key names.
func (o *Outbox) Lock(ctx context.Context, tx pgx.Tx, keys ...string) error {
	if tx == nil {
		return errors.New("lock keys: tx is nil: it must be the transaction that writes the events")
	}
	return o.LockThrough(ctx, through(tx), keys...)
}

// columns holds the events column by column, as holdfast.append takes them. A column that no event fills stays nil.
type columns struct {
	ids, sources, types, topics, keys []string
	times, notBefores                 []*time.Time
	headers                           []*string
	payloads                          [][]byte
}

// identity is the id and the source of an event, as they are written.
func (o *Outbox) identity(e *holdfast.Event) (id, source string, err error) {
	source = cmp.Or(e.Source, o.source)
	if e.ID != "" {
		return e.ID, source, nil
	}
	made, err := uuid.NewV7()
	if err != nil {
		return "", "", fmt.Errorf("make an id: %w", err)
	}
	return made.String(), source, nil
}

func (o *Outbox) columns(events []holdfast.Event) (columns, error) {
	n := len(events)
	texts := make([]string, 5*n)
	c := columns{
		ids:      texts[:n:n],
		sources:  texts[n : 2*n : 2*n],
		types:    texts[2*n : 3*n : 3*n],
		topics:   texts[3*n : 4*n : 4*n],
		keys:     texts[4*n:],
		payloads: make([][]byte, n),
	}
	for i := range events {
		e := &events[i]
		var err error
		if c.ids[i], c.sources[i], err = o.identity(e); err != nil {
			return columns{}, err
		}
		c.types[i], c.topics[i], c.keys[i] = e.Type, e.Topic, e.Key
		c.payloads[i] = e.Payload
		if !e.Time.IsZero() {
			if c.times == nil {
				c.times = make([]*time.Time, n)
			}
			c.times[i] = &e.Time
		}
		if !e.NotBefore.IsZero() {
			if c.notBefores == nil {
				c.notBefores = make([]*time.Time, n)
			}
			c.notBefores[i] = &e.NotBefore
		}
		if len(e.Headers) > 0 {
			if c.headers == nil {
				c.headers = make([]*string, n)
			}
			text, err := json.Marshal(e.Headers)
			if err != nil {
				return columns{}, fmt.Errorf("encode headers: %w", err)
			}
			s := string(text)
			c.headers[i] = &s
		}
	}
	return c, nil
}

// explain adds a remedy to errors that an operator can fix.
func explain(err error) error {
	var failed interface{ SQLState() string }
	if errors.As(err, &failed) {
		switch failed.SQLState() {
		case "2201B": // invalid_regular_expression: those of the schema's functions have backslashes
			return fmt.Errorf("standard_conforming_strings is off for this role or database: it must be on: %w", err)
		case "22007", "22P02": // A value that cannot be read is a null in an array: all others are ours.
			return fmt.Errorf("array_nulls is off for this role or database: it must be on where arguments are texts, as in pgx's modes exec and simple_protocol: %w", err)
		}
	}
	return sqlschema.Explain(err, "grant usage on the schema, and execute on its functions append, append_one, write_once and lock, to this role (docs/operations.md)")
}
