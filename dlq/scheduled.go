package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// This file works on scheduled events: those that wait for their time (holdfast.Event.NotBefore).

// ErrNotScheduled says that nothing is scheduled that a filter selects. The error of CancelScheduled wraps it.
var ErrNotScheduled = errors.New("nothing like that is scheduled")

// ScheduledEvent is an event that waits for its time.
type ScheduledEvent struct {
	// Event is the event without its payload and its headers. NotBefore is when it is due.
	Event holdfast.Event

	Lane int
	Seq  int64 // the order of events that are due at the same time
}

// ScheduledFilter selects the scheduled events that match all its fields. The zero ScheduledFilter selects all.
type ScheduledFilter struct {
	Topic   string // "" matches any, as in the fields below
	Key     string
	Type    string
	Source  string
	EventID string

	// Limit is the maximum number of events. Defaults to 100 for ListScheduled, which accepts up to 1,000, and to no limit for
	// CancelScheduled.
	Limit int

	// After is the last event of the previous page; later ones follow, in the order in which they are due. Defaults to nil, the
	// start.
	After *ScheduledEvent
}

// ScheduledOptions are the options of CancelScheduled.
type ScheduledOptions struct {
	// DryRun counts the events and changes nothing.
	DryRun bool

	// By is who does it. Required, except for a DryRun.
	By string

	// Reason says why. Defaults to "".
	Reason string

	// ProgressFunc is called inline after each transaction with how many events are cancelled so far. It must be quick. Defaults to
	// none.
	ProgressFunc func(cancelled int)
}

// ListScheduled returns a page of scheduled events, those first that are due first.
func (d *DLQ) ListScheduled(ctx context.Context, f ScheduledFilter) ([]ScheduledEvent, error) {
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("list scheduled events: %w", err)
	}
	if f.Limit > maxLimit {
		return nil, fmt.Errorf("list scheduled events: limit is %d: it must be at most %d; get the next page with After", f.Limit, maxLimit)
	}
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	events, err := d.readScheduled(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("list scheduled events: %w", err)
	}
	return events, nil
}

// CancelScheduled takes scheduled events back, and returns how many. Each becomes a dead letter that is discarded already, so that
// its payload stays until a purge, and who did it and why is among the letter's actions. Each transaction takes at most 100 events,
// so you may cancel it at any time, and it disturbs no relay: an event that a relay moves into the log meanwhile is left to it.
//
// The error wraps ErrNotScheduled if nothing was cancelled. If the filter has an EventID, the error says where that event is: it
// may be published already. To find that out, the log is read.
func (d *DLQ) CancelScheduled(ctx context.Context, f ScheduledFilter, o ScheduledOptions) (n int, err error) {
	err = f.validate()
	if !o.DryRun {
		err = errors.Join(err, signature(o.By, o.Reason))
	}
	if err != nil {
		return 0, fmt.Errorf("cancel scheduled events: %w", err)
	}
	most, id, source := f.Limit, f.EventID, f.Source
	for {
		f.Limit = walkPage
		if most > 0 {
			f.Limit = min(walkPage, most-n)
		}
		if f.Limit == 0 {
			return n, nil
		}
		page, err := d.readScheduled(ctx, f)
		if err != nil {
			return n, fmt.Errorf("cancel scheduled events: %w", err)
		}
		cancelled := len(page)
		if !o.DryRun && len(page) > 0 {
			if cancelled, err = d.cancelPage(ctx, page, o); err != nil {
				return n, fmt.Errorf("cancel scheduled events, after %d: %w", n, explain(err))
			}
		}
		if n += cancelled; o.ProgressFunc != nil && cancelled > 0 && !o.DryRun {
			o.ProgressFunc(n)
		}
		if len(page) < f.Limit {
			break
		}
		f.After = &page[len(page)-1]
	}
	if n == 0 {
		return 0, fmt.Errorf("cancel scheduled events: %w", d.notScheduled(ctx, id, source))
	}
	return n, nil
}

// cancelPage cancels events in one transaction, but for those that relays are moving.
func (d *DLQ) cancelPage(ctx context.Context, page []ScheduledEvent, o ScheduledOptions) (n int, err error) {
	lanes, dues, seqs := make([]int16, len(page)), make([]time.Time, len(page)), make([]int64, len(page))
	for i, s := range page {
		lanes[i], dues[i], seqs[i] = int16(s.Lane), s.Event.NotBefore, s.Seq
	}
	reason := fmt.Sprintf("%s cancelled it before it was due: %s", o.By, o.Reason)
	err = d.transact(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, d.sql.cancelScheduled, lanes, dues, seqs, reason, o.By, o.Reason).Scan(&n)
	})
	return n, err
}

// notScheduled says that nothing was cancelled, and where the event is that was meant.
func (d *DLQ) notScheduled(ctx context.Context, id, source string) error {
	if id == "" {
		return ErrNotScheduled
	}
	var place string
	err := d.transact(ctx, func(tx pgx.Tx) error { return tx.QueryRow(ctx, d.sql.whereIs, id, source).Scan(&place) })
	switch {
	case err != nil:
		return errors.Join(ErrNotScheduled, fmt.Errorf("look where event %s is: %w", id, explain(err)))
	case place == "moving":
		return fmt.Errorf("%w: its time has come, and a relay is moving event %s into the log", ErrNotScheduled, id)
	case place == "log":
		return fmt.Errorf("%w: the time of event %s has come, and it is in the log: it is published, or about to be", ErrNotScheduled, id)
	case place == "parked":
		return fmt.Errorf("%w: the time of event %s has come, and it is parked: DiscardParked, or holdfast parked give-up --discard, gives it up", ErrNotScheduled, id)
	case place == "letter":
		return fmt.Errorf("%w: event %s is a dead letter: List, or holdfast dlq list --event-id %s --state any, shows it", ErrNotScheduled, id, id)
	}
	return fmt.Errorf("%w: event %s is unknown here, or was published so long ago that the log has forgotten it", ErrNotScheduled, id)
}

func (d *DLQ) readScheduled(ctx context.Context, f ScheduledFilter) ([]ScheduledEvent, error) {
	var due *time.Time
	var seq int64
	if f.After != nil {
		due, seq = &f.After.Event.NotBefore, f.After.Seq
	}
	rows, err := d.pool.Query(ctx, d.sql.listScheduled, f.Topic, f.Key, f.Type, f.Source, f.EventID, due, seq, int32(f.Limit))
	if err != nil {
		return nil, explain(err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s ScheduledEvent, err error) {
		var lane int16
		e := &s.Event
		err = row.Scan(&lane, &e.NotBefore, &s.Seq, &e.ID, &e.Source, &e.Type, &e.Topic, &e.Key, &e.Time)
		s.Lane = int(lane)
		return s, err
	})
	if err != nil {
		return nil, explain(err)
	}
	return events, nil
}

func (f ScheduledFilter) validate() error {
	if f.Limit < 0 {
		return fmt.Errorf("limit is %d: it must be 0 or more", f.Limit)
	}
	return nil
}
