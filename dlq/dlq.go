// Package dlq is for the person who looks at what was given up: it lists dead letters, shows them, mends them, and sends
// them through the same door again.
//
// A letter is written in the transaction that gives its event up, by a relay (Kafka refused the record) or by an inbox
// (the handler kept failing). Nothing here is on the hot path.
package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// ErrNotFound says that there is no letter of that id.
var ErrNotFound = errors.New("no such letter")

// ErrNotOpen says that a letter is not open: somebody replayed or discarded it already.
var ErrNotOpen = errors.New("the letter is not open")

// Config is what a DLQ can be told. The zero Config works.
type Config struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string
}

// DLQ works on the dead letters of one schema. It may be used from many goroutines, and by many people, at once.
type DLQ struct {
	pool   *pgxpool.Pool
	schema string
	sql    statements
}

// New returns a DLQ, or one error that names every problem of the configuration.
func New(pool *pgxpool.Pool, c Config) (*DLQ, error) {
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: pass a pool of connections to the primary"))
	}
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("dlq config: %w", err)
	}
	if c.Schema == "" {
		c.Schema = sqlschema.Default
	}
	return &DLQ{pool: pool, schema: c.Schema, sql: newStatements(c.Schema)}, nil
}

// Origin is the side that gave an event up.
const (
	OriginRelay = "relay"
	OriginInbox = "inbox"
)

// The states of a letter: open until a person decides; replaying from Replay until the event was handled (replayed) or
// given up again (open); discarded for good.
const (
	StateOpen      = "open"
	StateReplaying = "replaying"
	StateReplayed  = "replayed"
	StateDiscarded = "discarded"
)

// Letter is an event that was given up, and why.
type Letter struct {
	ID          int64
	Origin      string // OriginRelay or OriginInbox
	Consumer    string // of the inbox; "" for the relay
	Reason      string // one line
	Fingerprint string // equal for letters of one kind of failure
	State       string
	Holds       bool // later events of its topic and key wait until it is replayed or discarded
	Event       holdfast.Event
	Version     int // 1, and one more with every Edit
	Partition   int // where a Kafka consumer met it; -1 elsewhere
	Offset      int64
	Attempts    int
	Errors      []string // the chain of errors, oldest first, the last 20 of them
	FirstAt     time.Time
	LastAt      time.Time
}

// Filter chooses letters. The zero Filter is every open letter; every field that is set narrows it.
type Filter struct {
	IDs         []int64
	Origin      string
	Consumer    string
	Type        string
	Topic       string
	Key         string
	Source      string
	EventID     string
	Fingerprint string
	State       string    // Defaults to StateOpen; "any" for all
	Since       time.Time // given up at or after
	Until       time.Time // given up before
	After       int64     // letters with a larger id: for the next page
	Limit       int       // of List only. Defaults to 100; at most 10,000
}

// List returns the letters that f chooses, by id, at most f.Limit of them, payloads included.
func (d *DLQ) List(ctx context.Context, f Filter) ([]Letter, error) {
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	if limit < 1 || limit > 10_000 {
		return nil, fmt.Errorf("list letters: limit is %d: between 1 and 10,000, 0 for 100", f.Limit)
	}
	letters, err := d.list(ctx, f, limit)
	if err != nil {
		return nil, fmt.Errorf("list letters: %w", explain(err))
	}
	return letters, nil
}

func (d *DLQ) list(ctx context.Context, f Filter, limit int) ([]Letter, error) {
	rows, err := d.pool.Query(ctx, d.sql.list, f.arguments(limit)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanLetter)
}

// arguments are f as listLetters takes it: null where nothing is asked.
func (f Filter) arguments(limit int) []any {
	text := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	moment := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	state := f.State
	if state == "" {
		state = StateOpen
	}
	if state == "any" {
		state = ""
	}
	return []any{f.IDs, text(f.Origin), text(f.Consumer), text(f.Type), text(f.Topic), text(f.Key), text(f.Source), text(f.EventID),
		text(f.Fingerprint), text(state), moment(f.Since), moment(f.Until), f.After, limit}
}

// Get returns one letter, in whatever state. The error wraps ErrNotFound when there is none of that id.
func (d *DLQ) Get(ctx context.Context, id int64) (Letter, error) {
	letters, err := d.list(ctx, Filter{IDs: []int64{id}, State: "any"}, 1)
	if err != nil {
		return Letter{}, fmt.Errorf("get letter %d: %w", id, explain(err))
	}
	if len(letters) == 0 {
		return Letter{}, fmt.Errorf("get letter %d: %w", id, ErrNotFound)
	}
	return letters[0], nil
}

// Discard gives a letter up for good, and lets the later events of its key go on if it held them. by and reason are
// kept. The error wraps ErrNotFound, or ErrNotOpen when the letter was dealt with already.
func (d *DLQ) Discard(ctx context.Context, id int64, by, reason string) error {
	if by == "" {
		return fmt.Errorf("discard letter %d: by is empty: say who discards it", id)
	}
	err := d.inTx(ctx, func(tx pgx.Tx) error {
		l, err := d.lockOpen(ctx, tx, id)
		if err != nil {
			return err
		}
		return d.exec(ctx, tx, step{d.sql.setState, []any{id, StateDiscarded}}, step{d.sql.discardInbox, []any{l.Consumer, l.Event.Source, l.Event.ID}},
			step{d.sql.act, []any{id, "discard", by, reason, nil, nil}})
	})
	if err != nil {
		return fmt.Errorf("discard letter %d: %w", id, explain(err))
	}
	return nil
}

// Edit gives an open letter a new payload, to be replayed. The old one is kept with by and reason. A nil payload makes
// a tombstone.
//
// A letter of the relay gets a new event id, because consumers may know the old id with the old payload. At the inbox
// the payload's hash is replaced in the same transaction, so the id stays and a redelivery of the old payload is a
// conflict.
func (d *DLQ) Edit(ctx context.Context, id int64, payload []byte, by, reason string) error {
	if by == "" {
		return fmt.Errorf("edit letter %d: by is empty: say who edits it", id)
	}
	err := d.inTx(ctx, func(tx pgx.Tx) error {
		l, err := d.lockOpen(ctx, tx, id)
		if err != nil {
			return err
		}
		return d.exec(ctx, tx, step{d.sql.act, []any{id, "edit", by, reason, l.Event.Payload, l.Version}}, step{d.sql.edit, []any{id, payload}},
			step{d.sql.rehashInbox, []any{l.Consumer, l.Event.Source, l.Event.ID, payload}})
	})
	if err != nil {
		return fmt.Errorf("edit letter %d: %w", id, explain(err))
	}
	return nil
}

// lockOpen reads an open letter and keeps others from it until tx ends.
func (d *DLQ) lockOpen(ctx context.Context, tx pgx.Tx, id int64) (Letter, error) {
	rows, err := tx.Query(ctx, d.sql.lock, id)
	if err != nil {
		return Letter{}, err
	}
	l, err := pgx.CollectExactlyOneRow(rows, scanLetter)
	if errors.Is(err, pgx.ErrNoRows) {
		return Letter{}, ErrNotFound
	}
	if err != nil {
		return Letter{}, err
	}
	if l.State != StateOpen {
		return Letter{}, fmt.Errorf("%w: it is %s", ErrNotOpen, l.State)
	}
	return l, nil
}

// inTx runs fn in a transaction that cannot hold its locks for long, whatever becomes of us.
func (d *DLQ) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	begin := "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; set local lock_timeout = '5s'"
	return pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{BeginQuery: begin}, fn)
}

type step struct {
	sql  string
	args []any
}

func (d *DLQ) exec(ctx context.Context, tx pgx.Tx, steps ...step) error {
	for _, s := range steps {
		if _, err := tx.Exec(ctx, s.sql, s.args...); err != nil {
			return err
		}
	}
	return nil
}

func scanLetter(row pgx.CollectableRow) (Letter, error) {
	var l Letter
	var headers *string
	e := &l.Event
	err := row.Scan(&l.ID, &l.Origin, &l.Consumer, &l.Reason, &l.Fingerprint, &l.State, &l.Holds, &e.ID, &e.Source, &e.Type, &e.Topic, &e.Key,
		&e.Time, &headers, &e.Payload, &l.Version, &l.Partition, &l.Offset, &l.Attempts, &l.Errors, &l.FirstAt, &l.LastAt)
	if err == nil && headers != nil {
		err = json.Unmarshal([]byte(*headers), &e.Headers)
	}
	return l, err
}

// explain adds what to do to the errors that an operator can mend.
func explain(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "3F000", "42P01", "42883": // invalid_schema_name, undefined_table, undefined_function
		return fmt.Errorf("%w: run holdfast migrate, or call holdfast.Migrate: %w", holdfast.ErrSchemaMissing, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("this role lacks rights, docs/operations.md lists what to grant: %w", err)
	}
	return err
}
