package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// This file works on stored events: those that wait in a consumer for their next attempt, for earlier events of their key, or for
// a node that handles their type.

// StoredEvent is an event that waits in a consumer.
type StoredEvent struct {
	Consumer string

	// Event is the event without its payload and its headers.
	Event holdfast.Event

	Place    int64 // its place in the queue of its topic and key
	Head     bool  // nothing of its key is before it
	Running  bool  // a worker has it
	Handled  bool  // a node that runs, or ran within the last two minutes, handles its type
	Paused   bool  // its consumer or its key is paused (Pause)
	Attempts int   // attempts of its handler, with a running one
	Error    string
	StoredAt time.Time
	NextAt   time.Time // of its next attempt; zero if something else has to happen first
	Letter   int64     // the letter that it is a replay of; 0 if none
}

// StoredFilter selects stored events that match all its fields.
type StoredFilter struct {
	Consumer  string // Required.
	Topic     string // "" matches any, as in the fields below
	Key       string
	Type      string
	Source    string
	EventID   string
	Unhandled bool // only events of types that no node handles (StoredEvent.Handled)
	Heads     bool // only those that nothing of their key is before

	// Limit is the maximum number of events. Defaults to 100 for ListStored, which accepts up to 1,000, and to no limit for the
	// others.
	Limit int

	// After is the last event of the previous page; later ones follow, in the order of topic, key and place. Defaults to nil, the
	// start.
	After *StoredEvent
}

// StoredOptions are the options of ReleaseStored, SkipStored and DeadLetterStored.
type StoredOptions struct {
	// DryRun counts the events and changes nothing.
	DryRun bool

	// By is who does it. Required, except for a DryRun.
	By string

	// Reason says why. Defaults to "".
	Reason string
}

// The actions on stored events.
const (
	actRelease    = "release"
	actSkip       = "skip"
	actDeadLetter = "dead-letter"
)

// ListStored returns a page of stored events, in the order of topic, key and place.
func (d *DLQ) ListStored(ctx context.Context, f StoredFilter) ([]StoredEvent, error) {
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("list stored events: %w", err)
	}
	if f.Limit > maxLimit {
		return nil, fmt.Errorf("list stored events: limit is %d: it must be at most %d; get the next page with After", f.Limit, maxLimit)
	}
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	events, err := d.readStored(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("list stored events: %w", err)
	}
	return events, nil
}

// ReleaseStored makes heads due at once that wait for their next attempt, and returns how many. It leaves out events that wait for
// an earlier one of their key or for a letter, and those that a worker has. Each event is one short transaction, so you may cancel
// it at any event; the table stored_action keeps who did it and why.
func (d *DLQ) ReleaseStored(ctx context.Context, f StoredFilter, o StoredOptions) (int, error) {
	return d.changeStored(ctx, f, o, actRelease)
}

// SkipStored gives events up for good, and returns how many: each becomes a letter that is discarded already, so that its payload
// stays until a purge. The next event of its key goes on. It leaves out events that a worker has. Otherwise it is as ReleaseStored.
func (d *DLQ) SkipStored(ctx context.Context, f StoredFilter, o StoredOptions) (int, error) {
	return d.changeStored(ctx, f, o, actSkip)
}

// DeadLetterStored makes events dead letters, and returns how many. A letter does not hold its key: the next event goes on.
// Otherwise it is as SkipStored.
func (d *DLQ) DeadLetterStored(ctx context.Context, f StoredFilter, o StoredOptions) (int, error) {
	return d.changeStored(ctx, f, o, actDeadLetter)
}

func (d *DLQ) changeStored(ctx context.Context, f StoredFilter, o StoredOptions, action string) (n int, err error) {
	err = f.validate()
	if !o.DryRun {
		err = errors.Join(err, signature(o.By, o.Reason))
	}
	if err != nil {
		return 0, fmt.Errorf("%s stored events: %w", action, err)
	}
	most := f.Limit
	f.Heads = f.Heads || action == actRelease
	for {
		f.Limit = walkPage
		page, err := d.readStored(ctx, f)
		if err != nil {
			return n, fmt.Errorf("%s stored events: %w", action, err)
		}
		for i := range page {
			if most > 0 && n >= most {
				return n, nil
			}
			changed := !page[i].Running
			if changed && !o.DryRun {
				if changed, err = d.changeOne(ctx, page[i], action, o); err != nil {
					return n, fmt.Errorf("%s stored event %s of %s: %w", action, page[i].Event.ID, page[i].Consumer, explain(err))
				}
			}
			if changed {
				n++
			}
		}
		if len(page) < walkPage {
			return n, nil
		}
		f.After = &page[len(page)-1]
	}
}

// changeOne does an action on one event. It returns false if the event has changed meanwhile, or does not allow the action.
func (d *DLQ) changeOne(ctx context.Context, s StoredEvent, action string, o StoredOptions) (changed bool, err error) {
	e := s.Event
	err = d.transact(ctx, func(tx pgx.Tx) error {
		changed = false
		if err := d.lockQueue(ctx, tx, s.Consumer, e.Topic, e.Key); err != nil {
			return err
		}
		row := []any{s.Consumer, e.Topic, e.Key, s.Place, e.Source, e.ID}
		var letter *int64
		if action == actRelease {
			tag, err := tx.Exec(ctx, d.sql.releaseStored, row...)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
		} else {
			reason := fmt.Sprintf("a person gave it up: %s", o.Reason)
			state, result := StateOpen, "dead"
			if action == actSkip {
				state, result = StateDiscarded, StateDiscarded
			}
			var id int64
			switch err := tx.QueryRow(ctx, d.sql.giveUpStored, append(row, reason, state, result)...).Scan(&id); {
			case errors.Is(err, pgx.ErrNoRows):
				return nil
			case err != nil:
				return fmt.Errorf("write its letter: %w", err)
			}
			letter = &id
			if _, err := tx.Exec(ctx, d.sql.wake, id); err != nil {
				return fmt.Errorf("wake the key's queue: %w", err)
			}
		}
		if _, err := tx.Exec(ctx, d.sql.recordStored, action, s.Consumer, e.Source, e.ID, e.Type, e.Topic, e.Key, letter, o.By, o.Reason); err != nil {
			return fmt.Errorf("record the action: %w", err)
		}
		changed = true
		return nil
	})
	return changed, err
}

func (d *DLQ) readStored(ctx context.Context, f StoredFilter) ([]StoredEvent, error) {
	var topic, key string
	place := int64(-1 << 63)
	if f.After != nil {
		topic, key, place = f.After.Event.Topic, f.After.Event.Key, f.After.Place
	}
	rows, err := d.pool.Query(ctx, d.sql.listStored, f.Consumer, f.Topic, f.Key, f.Type, f.Source, f.EventID, f.Unhandled, f.Heads, topic, key, place, int32(f.Limit))
	if err != nil {
		return nil, explain(err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s StoredEvent, err error) {
		var next *time.Time
		err = row.Scan(&s.Consumer, &s.Event.Topic, &s.Event.Key, &s.Place, &s.Event.Source, &s.Event.ID, &s.Event.Type, &s.Event.Time,
			&s.Head, &s.Running, &s.Handled, &s.Paused, &s.Attempts, &s.Error, &s.StoredAt, &next, &s.Letter)
		if next != nil {
			s.NextAt = *next
		}
		return s, err
	})
	if err != nil {
		return nil, explain(err)
	}
	return events, nil
}

func (f StoredFilter) validate() error {
	switch {
	case f.Consumer == "":
		return errors.New("consumer is empty: it must name whose stored events are meant")
	case f.Limit < 0:
		return fmt.Errorf("limit is %d: it must be 0 or more", f.Limit)
	}
	return nil
}
