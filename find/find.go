package find

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Query says which event.
type Query struct {
	// ID is the event's id, Event.ID. Required. Several events may have one id, of different sources.
	ID string

	// Source, Topic and Key leave out events of others. "" matches any. With a key the log is searched in one lane in place of all.
	Source, Topic, Key string

	// Schema is the Postgres schema. Defaults to "holdfast".
	Schema string

	// Within is how long the search of one place may take. The log, and the tables scheduled, parked and letter, have no index by id,
	// because every event would pay for it. At least a millisecond. Defaults to 2 s.
	Within time.Duration
}

// places are all of Sighting.Place, in the order of an event's way, with their statements: for any key, and for one.
var places = []struct {
	place      string
	any, keyed string
}{
	{"scheduled", findScheduled, findScheduledOfKey}, {"log", findLog, findLogOfKey}, {"parked", findParked, findParked}, {"stored", findStored, findStored},
	{"inbox", findInbox, findInbox}, {"start", findStarts, findStarts}, {"letter", findLetters, findLetters}, {"action", findActions, findActions},
}

// Sighting is an event in one place.
type Sighting struct {
	// Place is where the event is, or was, in the order of an event's way. "scheduled": it waits for Event.NotBefore. "log": it is
	// committed; State says whether its relay has read it. "parked": it waits in a relay. "stored": it waits in a consumer. "inbox": what
	// a consumer knows of it. "start": its handler was started and did not end. "letter": it is, or was, a dead letter. "action": what a
	// person did to it.
	Place string

	// Event is the event without its payload and its headers. The inbox knows neither type, key nor time.
	Event holdfast.Event

	Consumer  string // on a consumer's side; "" on a producer's
	Lane      int    // on a producer's side; -1 on a consumer's
	Partition int    // of Kafka, on a consumer's side; -1 if it is unknown, or the event did not come from Kafka
	Offset    int64  // likewise

	// State is what the place says of it. scheduled: "waits" or "due". log: "unread", "unowned" (unread, and no relay has its lane) or
	// "read". parked: why it waits, in the words of package waiting; "" when its turn has come. stored: the same, or "runs". inbox: "handled", "stored", "dead", "skipped" or "discarded". start: "started". letter: "open", "replaying",
	// "replayed" or "discarded". action: "replay", "discard", "edit", "retry" or "give-up".
	State string

	Attempts int       // inbox: since it was received or replayed last; the letter has those before
	Error    string    // the first line of the last error
	Letter   int64     // the dead letter that it is, that it is a replay of, or that an action was about; 0 for none
	By       string    // of an action: who did it; of an unread event: the relay that has its lane
	Reason   string    // of an action or a letter; of an event that waits for dependencies: which are away, since when, and their last errors
	At       time.Time // since when it is there, or when that was done; zero if the row says no time that Go can hold
	NextAt   time.Time // of its next attempt, or when it is due; zero for none

	Says string // all of this in one sentence
}

// Unsearched is a place that could not be searched to its end.
type Unsearched struct {
	Place string // as Sighting.Place
	Why   string
}

// Found is what Event found.
type Found struct {
	Sightings  []Sighting   // by place, in the order of an event's way
	Unsearched []Unsearched // what the sightings may lack
}

// Nowhere says what may have become of an event that is in no place that was searched, for programs that show it to a person.
const Nowhere = "its transaction was not committed here, or it is published and its part of the log is emptied, or its inbox row is past its retention, " +
	"or no node handled its type and it was skipped (holdfast status lists skipped types)"

// most is how many sightings a place has at most.
const most = 100

// Event looks for an event in one database. What it found is right for each place by itself: an event that moves meanwhile may be
// seen in two places, or in none; then ask again. A place that takes longer than Query.Within, or that the role may not read, is
// named in Found.Unsearched. It fails if the query is wrong, the database cannot be asked or the schema is missing.
//
// It may be called from many goroutines.
func Event(ctx context.Context, pool *pgxpool.Pool, q Query) (Found, error) {
	if q.Schema == "" {
		q.Schema = "holdfast"
	}
	if q.Within == 0 {
		q.Within = 2 * time.Second
	}
	if err := q.validate(pool); err != nil {
		return Found{}, fmt.Errorf("find event: %w", err)
	}
	var found Found
	for _, p := range places {
		statement := p.any
		if q.Key != "" {
			statement = p.keyed
		}
		sightings, err := search(ctx, pool, q, p.place, sqlschema.In(q.Schema, statement))
		if why := unsearched(err, q); why != "" {
			found.Unsearched = append(found.Unsearched, Unsearched{p.place, why})
			continue
		}
		if err != nil {
			return Found{}, fmt.Errorf("find event: search %s: %w", p.place, sqlschema.Explain(err, "docs/operations.md lists what to grant to an operator"))
		}
		if len(sightings) > most {
			sightings = sightings[:most]
			found.Unsearched = append(found.Unsearched, Unsearched{p.place, fmt.Sprintf("it has more than %d events of this id: name source, topic or key", most)})
		}
		found.Sightings = append(found.Sightings, sightings...)
	}
	sayReplays(found.Sightings)
	return found, nil
}

func (q Query) validate(pool *pgxpool.Pool) error {
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: it must be connected to the database to search"))
	}
	if q.ID == "" || len(q.ID) > 255 {
		problems = append(problems, fmt.Errorf("id has %d bytes: it must have 1 to 255", len(q.ID)))
	}
	if strings.ContainsRune(q.ID+q.Source+q.Topic+q.Key, 0) {
		problems = append(problems, errors.New("id, source, topic or key has a NUL: no event has one"))
	}
	if q.Within < time.Millisecond {
		problems = append(problems, fmt.Errorf("within is %v: it must be at least 1ms", q.Within))
	}
	if err := sqlschema.Validate(q.Schema); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// search searches one place, in a transaction of its own: one that fails must not end the others.
func search(ctx context.Context, pool *pgxpool.Pool, q Query, place string, statement string) ([]Sighting, error) {
	var sightings []Sighting
	begin := pgx.TxOptions{AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, plain.Of(pool), begin, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, limitSearch, fmt.Sprint(q.Within.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, statement, q.ID, q.Source, q.Topic, q.Key, most+1)
		if err != nil {
			return err
		}
		sightings, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Sighting, error) { return sighting(row, place, q.ID) })
		return err
	})
	return sightings, err
}

func sighting(row pgx.CollectableRow, place string, asked string) (Sighting, error) {
	s := Sighting{Place: place}
	var of, at, next pgtype.Timestamptz
	err := row.Scan(&s.Event.ID, &s.Event.Source, &s.Event.Type, &s.Event.Topic, &s.Event.Key, &of, &s.Consumer, &s.Lane, &s.Partition, &s.Offset,
		&s.State, &s.Attempts, &s.Error, &s.Letter, &s.By, &s.Reason, &at, &next)
	s.Event.Time, s.At, s.NextAt = moment(of), moment(at), moment(next)
	s.Error, _, _ = strings.Cut(s.Error, "\n")
	if s.Says = says(s); place == "letter" && s.Event.ID != asked {
		s.Says += fmt.Sprintf("; an edit has given the event the id %s: what is in the log or was published since has that one", s.Event.ID)
	}
	return s, err
}

// moment is a time of the database that JSON can hold too; zero for others.
func moment(t pgtype.Timestamptz) time.Time {
	if !t.Valid || t.InfinityModifier != pgtype.Finite || t.Time.Year() < 1 || t.Time.Year() > 9999 {
		return time.Time{}
	}
	return t.Time.UTC()
}

// unsearched says why a place could not be searched, if the others can; "" if they cannot, or for no error.
func unsearched(err error, q Query) string {
	return unanswered(err, q.Within, "give it more time, or the event's key")
}

// unanswered says why a search did not end, and what helps; "" for no error, or one of another kind.
func unanswered(err error, within time.Duration, helps string) string {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return ""
	}
	switch pgErr.Code {
	case "57014": // query_canceled
		return fmt.Sprintf("%v were not enough: %s", within, helps)
	case "42501": // insufficient_privilege
		return pgErr.Message + ": connect as an operator"
	}
	return ""
}
