package waiting

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/manual"
	"github.com/holdfast-go/holdfast/internal/steps"
)

// This file reads what waits, and changes nothing.

// Group sums up what waits in one place, of one topic, for one reason. What waits because no node handles its type is grouped by that too.
type Group struct {
	Origin   string
	Consumer string
	Topic    string
	Why      Why
	Type     string    // if Why is NoHandler, else ""
	Events   int       // how many
	Keys     int       // of how many keys; events without a key do not count
	Bytes    int64     // their payloads and headers
	OldestAt time.Time // when the first of them began to wait; of scheduled events the earliest Time
	NextAt   time.Time // the earliest of their Event.NextAt
	Error    string    // the last one, of the event with an error that began to wait last
}

// Groups counts what a filter selects, by place, topic and reason, and by type where no node handles that. It reads all of that. Limit and After must not be set.
func (r *Room) Groups(ctx context.Context, f Filter) ([]Group, error) {
	err := f.somewhere()
	if f.Limit != 0 || f.After != nil {
		err = errors.Join(err, errors.New("limit or after is set: groups have no pages"))
	}
	if err != nil {
		return nil, fmt.Errorf("group waiting events: %w: %w", ErrInvalid, err)
	}
	var all []Group
	for _, in := range f.places() {
		sql := map[place]string{inRelay: groupRelay, inConsumer: groupConsumer, inSchedule: groupSchedule}[in]
		some, err := look(ctx, r, sql, f.args(), func(row pgx.CollectableRow) (g Group, err error) {
			var next *time.Time
			err = row.Scan(&g.Consumer, &g.Topic, &g.Why, &g.Type, &g.Events, &g.Keys, &g.Bytes, &g.OldestAt, &next, &g.Error)
			g.Origin, g.NextAt = originOf(in), orZero(next)
			return g, err
		})
		if err != nil {
			return nil, fmt.Errorf("group waiting events: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// look reads rows in a transaction whose statements end after 30 seconds. scan may be called more than once for a row.
func look[T any](ctx context.Context, r *Room, sql string, args []any, scan pgx.RowToFunc[T]) (all []T, err error) {
	err = manual.Look(ctx, r.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, r.sql.In(sql), args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, scan)
		return err
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "57014" && ctx.Err() == nil { // query_canceled
		return nil, fmt.Errorf("more waits than can be read in 30 s: narrow the filter by consumer, topic or origin: %w", err)
	}
	return all, manual.Explain(err)
}

func originOf(in place) string {
	if in == inConsumer {
		return dlq.OriginInbox
	}
	return dlq.OriginRelay
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// List returns a page of waiting events: first those of relays, by lane, topic, key and place; then those of consumers, by consumer, topic,
// key and place; then scheduled ones, those first that are due first.
func (r *Room) List(ctx context.Context, f Filter) ([]Event, error) {
	err := f.somewhere()
	if f.Limit > maxLimit {
		err = errors.Join(err, fmt.Errorf("limit is %d: it must be at most %d; get the next page with After", f.Limit, maxLimit))
	}
	if err != nil {
		return nil, fmt.Errorf("list waiting events: %w: %w", ErrInvalid, err)
	}
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	var all []Event
	for _, in := range f.places() {
		if f.After != nil && f.After.place() > in {
			continue
		}
		page, err := r.read(ctx, in, f, f.Limit-len(all))
		if err != nil {
			return nil, fmt.Errorf("list waiting events: %w", err)
		}
		if all = append(all, page...); len(all) == f.Limit {
			break
		}
	}
	return all, nil
}

// read reads a page of what waits in one place, after f.After if that waits there too.
func (r *Room) read(ctx context.Context, in place, f Filter, limit int) ([]Event, error) {
	var after Event
	if f.After != nil && f.After.place() == in {
		after = *f.After
	} else {
		after.Lane, after.Place = -1, -1<<63
	}
	args := append(f.args(), int32(limit))
	var sql string
	switch in {
	case inRelay:
		sql, args = listRelay, append(args, int16(after.Lane), after.Event.Topic, after.Event.Key, after.Place)
	case inConsumer:
		sql, args = listConsumer, append(args, after.Consumer, after.Event.Topic, after.Event.Key, after.Place)
	case inSchedule:
		var due *time.Time
		if !after.NextAt.IsZero() {
			due = &after.NextAt
		}
		sql, args = listSchedule, append(args, due, after.Place)
	}
	return look(ctx, r, sql, args, func(row pgx.CollectableRow) (e Event, err error) {
		err = e.scan(row)
		return e, err
	})
}

// scan reads columns, and then more.
func (e *Event) scan(row pgx.CollectableRow, more ...any) error {
	var next *time.Time
	var lane int16
	v := &e.Event
	err := row.Scan(append([]any{&e.Consumer, &lane, &e.Place, &v.Topic, &v.Key, &v.Source, &v.ID, &v.Type, &v.Time, &e.Why, &e.Head, &e.Running,
		&e.Partition, &e.Attempts, &e.Error, &e.Since, &next, &e.Letter}, more...)...)
	in := e.place()
	e.Origin, e.Lane, e.NextAt = originOf(in), int(lane), orZero(next)
	if in == inSchedule {
		v.NotBefore = e.NextAt
	}
	return err
}

// args are the first parameters of the statements that read what a filter selects.
func (f Filter) args() []any {
	return []any{f.Consumer, f.Topic, f.Key, f.Type, f.Source, f.EventID, string(f.Why), f.Heads, f.partition()}
}

// Detail is a waiting event with all that is kept of it. Its Event has its headers, and its payload if that was asked for.
type Detail struct {
	Event
	Errors          []string  // of the last attempts, the oldest first
	FailedAt        time.Time // when its handler failed first; zero if it never did, or waits in a relay
	RecordPartition int       // of the Kafka record of which a consumer has it; -1 if there was none
	RecordOffset    int64     // likewise
	PayloadSize     int       // in bytes, -1 for a tombstone

	// Steps are those of its handler that are done (inbox.Step), in that order, at most 100. They have results if payloads were asked for.
	Steps []dlq.Step

	hash []byte // as in its row; nil unless it waits in a consumer
}

// Show returns all that is kept of the events that wait and that a filter selects. EventID is required: usually there is one, unless
// several sources use the id, or several consumers have the event. At most 100 of each place are returned. What waits in relays and in the
// schedule has no index by id: without a Consumer, all of it is read. payloads says whether to
// read their payloads, and the results of their steps. The error wraps ErrNotFound if there is none: holdfast find says where it is.
func (r *Room) Show(ctx context.Context, f Filter, payloads bool) ([]Detail, error) {
	err := f.somewhere()
	if f.EventID == "" {
		err = errors.Join(err, errors.New("event id is empty: it must name the event"))
	}
	if f.Limit != 0 || f.After != nil {
		err = errors.Join(err, errors.New("limit or after is set: what has one id has no pages"))
	}
	if err != nil {
		return nil, fmt.Errorf("show a waiting event: %w: %w", ErrInvalid, err)
	}
	var all []Detail
	for _, in := range f.places() {
		sql := map[place]string{inRelay: showRelay, inConsumer: showConsumer, inSchedule: showSchedule}[in]
		some, err := look(ctx, r, sql, append(f.args(), payloads), func(row pgx.CollectableRow) (d Detail, err error) {
			err = d.scan(row)
			return d, err
		})
		if err == nil && in == inConsumer {
			err = r.readSteps(ctx, some, payloads)
		}
		if err != nil {
			return nil, fmt.Errorf("show waiting event %s: %w", f.EventID, err)
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("show waiting event %s: %w", f.EventID, ErrNotFound)
	}
	return all, nil
}

// readSteps adds the steps of their handlers to events that wait in consumers.
func (r *Room) readSteps(ctx context.Context, all []Detail, results bool) error {
	err := manual.Look(ctx, r.pool, func(tx pgx.Tx) error {
		for i := range all {
			d := &all[i]
			recorded, err := steps.Read(ctx, tx, r.schema, d.Consumer, d.Event.Event.Source, d.Event.Event.ID, d.hash, results)
			if err != nil {
				return err
			}
			d.Steps = nil // of an earlier try
			for _, s := range recorded {
				d.Steps = append(d.Steps, dlq.Step(s))
			}
		}
		return nil
	})
	return manual.Explain(err)
}

func (d *Detail) scan(row pgx.CollectableRow) error {
	var failed *time.Time
	var headers *string
	if err := d.Event.scan(row, &d.Errors, &failed, &d.RecordPartition, &d.RecordOffset, &headers, &d.Event.Event.Payload, &d.PayloadSize, &d.hash); err != nil {
		return err
	}
	d.FailedAt = orZero(failed)
	if headers != nil {
		if err := json.Unmarshal([]byte(*headers), &d.Event.Event.Headers); err != nil {
			return fmt.Errorf("its headers are no JSON object of strings: %w", err)
		}
	}
	return nil
}
