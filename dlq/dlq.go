// Package dlq lets a person work on dead letters: events that the relay or an inbox has given up.
//
// A letter holds the whole event and the errors of its attempts. You can count letters by kind of failure (Groups),
// read them (List, Get) and edit them (Edit). You can deliver them again (Replay), close them without handling (Discard,
// DiscardAll), and remove those closed long ago (Purge). Every change is one short transaction that also records who
// made it and why. Actions returns a letter's history:
//
//	open ──Replay──► replaying ──handled or published──► replayed
//	 │ ▲                 │ └──Discard (of the inbox, while it waits)──► discarded
//	 │ └──failed again───┘
//	 └──Discard──► discarded
//
// Events that wait and are not given up are the matter of package waiting.
package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/manual"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// ErrNotFound says that a letter does not exist. Errors wrap it.
var ErrNotFound = errors.New("no such letter")

// ErrNotOpen says that the letter's state does not allow the change. Errors wrap it.
var ErrNotOpen = errors.New("the letter is not open")

// NotReplayableError says why a letter cannot be replayed as it is. The error of Replay wraps one for each such letter. It is read-only.
type NotReplayableError struct {
	// Why is the reason, in a word for programs:
	//
	//   - "waiting": its event already waits in the consumer's queue under the same id. That one must finish first.
	//   - "handled": its event was handled after all, when it came again, so that its handler must not run once more. Discard the letter.
	//   - "left-out": its record was too large to be taken in (inbox.Config.MemoryBudget). Its value is in Kafka only, and a replay would
	//     give the handler none. Edit gives the letter a payload.
	//   - "malformed": its event cannot be sent, because somebody wrote its row by SQL, past the functions for writers.
	Why string

	problem string // why, and what to do
}

func (e *NotReplayableError) Error() string { return e.problem }

var (
	errWaiting   = &NotReplayableError{"waiting", "an event with the same id is already waiting to be handled: replay the letter when that is done"}
	errHandled   = &NotReplayableError{"handled", "the event was handled when it came again: discard the letter"}
	errLeftOut   = &NotReplayableError{"left-out", "the record was too large to be taken in, and its value is in the topic only: read it there and edit the letter, or discard it"}
	errMalformed = &NotReplayableError{"malformed", "the event cannot be sent as it is"}
)

// Where letters come from: Letter.Origin.
const (
	OriginRelay = "relay" // the event could not be published
	OriginInbox = "inbox" // a consumer could not handle the event
)

// The states of a letter: Letter.State.
const (
	StateOpen      = "open"      // waits for a person
	StateReplaying = "replaying" // is being delivered again
	StateReplayed  = "replayed"  // was handled, or published
	StateDiscarded = "discarded" // was given up for good by a person
	StateAny       = "any"       // in a Filter: any state
)

// Letter is an event that was given up, with its errors.
type Letter struct {
	ID          int64
	Origin      string // OriginRelay or OriginInbox
	Consumer    string // the inbox's consumer; "" for the relay
	Reason      string // why it was given up, in one line
	Fingerprint string // equal for letters of one kind of failure
	State       string
	Holds       bool // whether later events of its topic and key wait until it is replayed or discarded

	// Event is the event as it was given up, or as it was last edited.
	Event holdfast.Event

	// PayloadSize is the payload's length in bytes, -1 for a tombstone. It is set even if the payload itself was left
	// out.
	PayloadSize int

	Version   int      // 1, and one more for every edit
	Attempts  int      // all attempts, including those of replays
	Errors    []string // of the last attempts, the oldest first
	FirstAt   time.Time
	LastAt    time.Time // when it was last given up, replayed successfully, or discarded
	Partition int       // of the Kafka record at the inbox; -1 if there was none
	Offset    int64     // likewise

	// Malformed says, one text each, what of the event is not in Event as it is in the database: the letter's row there has
	// all of it. Only events that were written by SQL, past the functions for writers, have such columns. Header values
	// that are no strings are in Event as JSON. Nil for every other letter.
	Malformed []string

	// Steps are those of the event's handler that are done (inbox.Step), in that order, at most 100: by Get only, nil by List.
	Steps []Step

	hash []byte // of the event, as in its row
}

// LastWas says what happened at LastAt: "given up", "handled", "published" or "discarded". The state of a letter that is being
// delivered again does not change it.
func (l Letter) LastWas() string {
	switch {
	case l.State == StateDiscarded:
		return "discarded"
	case l.State == StateReplayed && l.Origin == OriginRelay:
		return "published"
	case l.State == StateReplayed:
		return "handled"
	}
	return "given up"
}

// Filter selects the letters that match all its fields. The zero Filter selects every open letter.
type Filter struct {
	IDs         []int64 // nil matches any; empty but not nil matches none
	Origin      string  // OriginRelay or OriginInbox
	Consumer    string
	Type        string
	Topic       string
	Key         string
	Source      string
	EventID     string
	Fingerprint string
	Since       time.Time // given up at this time or later: Letter.LastAt
	Until       time.Time // given up before this time

	// State is the state of the letters. Defaults to StateOpen.
	State string

	// Limit is the maximum number of letters to read, replay or discard, or of groups. List accepts up to 1,000.
	// Defaults to 100 for List and Groups, and to no limit for Replay and DiscardAll.
	Limit int

	// After is the id of the last letter of the previous page; letters with larger ids follow. Defaults to 0, the
	// start.
	After int64

	// NoPayloads makes List omit Event.Payload, which keeps an overview of many letters small. Defaults to false.
	NoPayloads bool
}

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// Config configures a DLQ. The zero Config works.
type Config struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string
}

// DLQ reads and changes the letters of one schema. Many goroutines may use it at once.
//
// Its database role needs only the rights that docs/operations.md lists for an operator.
type DLQ struct {
	pool   plain.Pool
	schema string
	sql    statements
	now    func() time.Time
	rest   func(ctx context.Context, d time.Duration) error
}

// New returns a DLQ. The error lists every problem of the configuration. New does not use the database.
func New(pool *pgxpool.Pool, c Config) (*DLQ, error) {
	schema, err := manual.Schema(pool, c.Schema)
	if err != nil {
		return nil, fmt.Errorf("dlq config: %w", err)
	}
	return &DLQ{
		pool:   plain.Of(pool),
		schema: schema,
		sql:    newStatements(schema),
		now:    time.Now,
		rest:   manual.Rest,
	}, nil
}

// List returns a page of letters in the order of their ids, the oldest first. Set After to the last id to get the next
// page. A page ends before Limit when its letters have 32 MiB together, so go on until one is empty. If no letter matches, it
// returns an empty list and no error.
func (d *DLQ) List(ctx context.Context, f Filter) ([]Letter, error) {
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("list letters: %w", err)
	}
	if f.Limit > maxLimit {
		return nil, fmt.Errorf("list letters: limit is %d: it must be at most %d; get the next page with After", f.Limit, maxLimit)
	}
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	letters, err := d.read(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("list letters: %w", manual.Explain(err))
	}
	return letters, nil
}

// Get returns one letter in any state. The error wraps ErrNotFound if it does not exist.
func (d *DLQ) Get(ctx context.Context, id int64) (Letter, error) {
	l, err := d.get(ctx, id)
	if err != nil {
		return Letter{}, err
	}
	if err := d.readSteps(ctx, &l); err != nil {
		return Letter{}, fmt.Errorf("get letter %d: %w", id, manual.Explain(err))
	}
	return l, nil
}

// get is Get without steps.
func (d *DLQ) get(ctx context.Context, id int64) (Letter, error) {
	letters, err := d.read(ctx, Filter{IDs: []int64{id}, State: StateAny, Limit: 1, After: id - 1})
	if err != nil {
		return Letter{}, fmt.Errorf("get letter %d: %w", id, manual.Explain(err))
	}
	if len(letters) == 0 {
		return Letter{}, notFound(id)
	}
	return letters[0], nil
}

// Action is one thing that a person did to a letter.
type Action struct {
	ID      int64
	Letter  int64
	Action  string // "replay", "discard" or "edit"
	By      string // who did it, as that person says
	Login   string // the database user who did it, as the database says; "" before version 2 of the schema
	Reason  string
	At      time.Time // by the database's clock
	Payload []byte    // edit: the payload that was replaced
	Version int       // edit: the version that was replaced
}

// Actions returns what people did to a letter, the oldest first. An edit has the previous payload.
func (d *DLQ) Actions(ctx context.Context, id int64) ([]Action, error) {
	rows, err := d.pool.Query(ctx, d.sql.actions, id)
	if err != nil {
		return nil, fmt.Errorf("list actions of letter %d: %w", id, manual.Explain(err))
	}
	actions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Action])
	if err != nil {
		return nil, fmt.Errorf("list actions of letter %d: %w", id, manual.Explain(err))
	}
	return actions, nil
}

// read reads a page.
func (d *DLQ) read(ctx context.Context, f Filter) ([]Letter, error) {
	rows, err := d.pool.Query(ctx, d.sql.list, append(f.stateArgs(), int32(f.Limit), !f.NoPayloads)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Letter, error) {
		var l Letter
		var headers *string
		var at *time.Time
		var partition *int32
		var offset *int64
		e := &l.Event
		err := row.Scan(&l.ID, &l.Origin, &l.Consumer, &l.Reason, &l.Fingerprint, &l.State, &l.Holds, &e.ID, &e.Source, &e.Type,
			&e.Topic, &e.Key, &at, &headers, &e.Payload, &l.PayloadSize, &l.Version, &partition, &offset, &l.Attempts,
			&l.Errors, &l.FirstAt, &l.LastAt, &l.Malformed, &l.hash)
		if err != nil {
			return Letter{}, err
		}
		l.Partition, l.Offset = -1, -1
		if partition != nil && offset != nil {
			l.Partition, l.Offset = int(*partition), *offset
		}
		if at != nil {
			e.Time = *at
		}
		if len(l.Malformed) == 0 {
			l.Malformed = nil
		}
		if headers != nil {
			l.readHeaders(*headers)
		}
		return l, nil
	})
}

// readHeaders reads what JSON the column headers has: usually an object of strings.
func (l *Letter) readHeaders(text string) {
	if json.Unmarshal([]byte(text), &l.Event.Headers) == nil {
		return
	}
	var values map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &values) != nil {
		l.Event.Headers = nil
		l.Malformed = append(l.Malformed, fmt.Sprintf("headers are %.1000s: they must be a JSON object of strings", text))
		return
	}
	l.Event.Headers = make(map[string]string, len(values))
	for name, value := range values {
		var s string
		if json.Unmarshal(value, &s) != nil {
			s = string(value)
		}
		l.Event.Headers[name] = s
	}
}

// args are the parameters of andFilter.
func (f Filter) args() []any {
	return []any{f.IDs, f.Origin, f.Consumer, f.Type, f.Topic, f.Key, f.Source, f.EventID, f.Fingerprint,
		moment(f.Since), moment(f.Until), f.After}
}

// stateArgs are the first parameters of listLetters and groupLetters.
func (f Filter) stateArgs() []any {
	states := []string{StateOpen}
	switch f.State {
	case "":
	case StateAny:
		states = []string{StateOpen, StateReplaying, StateReplayed, StateDiscarded}
	default:
		states = []string{f.State}
	}
	pending := len(states) == 1 && (states[0] == StateOpen || states[0] == StateReplaying)
	return append(f.args(), pending, states)
}

// scope limits the open letters of a filter further: to ids up to upTo, and to letters that the named replay has not
// moved. Zero means no limit.
type scope struct{ upTo, replay int64 }

// args are the parameters of walkLetters and countLetters.
func (s scope) args(f Filter, limit int) []any {
	return append(f.args(), s.upTo, s.replay, int32(min(limit, math.MaxInt32)))
}

func (f Filter) validate() error {
	var problems []error
	switch f.State {
	case "", StateOpen, StateReplaying, StateReplayed, StateDiscarded, StateAny:
	default:
		problems = append(problems, fmt.Errorf("state is %q: it must be open, replaying, replayed, discarded or any", f.State))
	}
	switch f.Origin {
	case "", OriginRelay, OriginInbox:
	default:
		problems = append(problems, fmt.Errorf("origin is %q: it must be relay or inbox", f.Origin))
	}
	if f.Limit < 0 {
		problems = append(problems, fmt.Errorf("limit is %d: it must be positive, or 0 for the default", f.Limit))
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		problems = append(problems, fmt.Errorf("since is %s: it must be before until, %s", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339)))
	}
	return errors.Join(problems...)
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func notFound(id int64) error { return fmt.Errorf("letter %d: %w", id, ErrNotFound) }
