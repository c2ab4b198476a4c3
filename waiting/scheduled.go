package waiting

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/manual"
)

// This file changes what waits for its time (holdfast.Event.NotBefore).

// Cancel takes scheduled events back, and returns how many. Each becomes a dead letter that is discarded already, so that
// its payload stays until a purge, and who did it and why is among the letter's actions. Each transaction takes at most 100 events,
// so you may cancel it at any time, and it disturbs no relay: an event that a relay moves into the log meanwhile is left to it.
//
// The error wraps ErrNotFound if nothing was cancelled. If the filter has an EventID, the error says where that event is: it
// may be published already. To find that out, the log is read.
func (r *Room) Cancel(ctx context.Context, f Filter, o Options) (int, error) {
	f.Why = Why(cmp.Or(string(f.Why), string(Scheduled)))
	err := errors.Join(f.validate(), o.check())
	switch {
	case err != nil:
	case f.After != nil:
		err = errors.New("after is set: only List goes by it")
	case len(f.places()) != 1 || f.places()[0] != inSchedule:
		err = errors.New("the filter selects nothing that is scheduled: origin must be relay or empty, why scheduled or empty, and consumer and partition are not for what waits for its time")
	}
	if err != nil {
		return 0, fmt.Errorf("cancel scheduled events: %w: %w", ErrInvalid, err)
	}
	n, err := r.cancel(ctx, f, o)
	if err != nil {
		return n, fmt.Errorf("cancel scheduled events: %w", err)
	}
	return n, nil
}

func (r *Room) cancel(ctx context.Context, f Filter, o Options) (n int, err error) {
	for {
		limit := walkPage
		if f.Limit > 0 {
			limit = min(walkPage, f.Limit-n)
		}
		if limit == 0 {
			return n, nil
		}
		page, err := r.read(ctx, inSchedule, f, limit)
		if err != nil {
			return n, err
		}
		cancelled := len(page)
		if !o.DryRun && len(page) > 0 {
			if cancelled, err = r.cancelPage(ctx, page, o); err != nil {
				return n, fmt.Errorf("after %d: %w", n, manual.Explain(err))
			}
		}
		if n += cancelled; cancelled > 0 {
			o.report(Progress{Changed: n})
		}
		if len(page) < limit {
			break
		}
		f.After = &page[len(page)-1]
	}
	if n == 0 {
		return 0, r.notScheduled(ctx, f.EventID, f.Source)
	}
	return n, nil
}

// cancelPage cancels events in one transaction, but for those that relays are moving.
func (r *Room) cancelPage(ctx context.Context, page []Event, o Options) (n int, err error) {
	lanes, dues, seqs := make([]int16, len(page)), make([]time.Time, len(page)), make([]int64, len(page))
	for i, e := range page {
		lanes[i], dues[i], seqs[i] = int16(e.Lane), e.NextAt, e.Place
	}
	reason := fmt.Sprintf("%s cancelled it before it was due: %s", o.By, o.Reason)
	err = manual.Transact(ctx, r.pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, r.sql.In(cancelScheduled), lanes, dues, seqs, reason, o.By, o.Reason).Scan(&n)
	})
	return n, err
}

// notScheduled says that nothing was cancelled, and where the event is that was meant.
func (r *Room) notScheduled(ctx context.Context, id, source string) error {
	if id == "" {
		return ErrNotFound
	}
	var place string
	err := manual.Transact(ctx, r.pool, func(tx pgx.Tx) error { return tx.QueryRow(ctx, r.sql.In(whereIs), id, source).Scan(&place) })
	switch {
	case err != nil:
		return errors.Join(ErrNotFound, fmt.Errorf("look where event %s is: %w", id, manual.Explain(err)))
	case place == "moving":
		return fmt.Errorf("%w: its time has come, and a relay is moving event %s into the log", ErrNotFound, id)
	case place == "scheduled":
		return fmt.Errorf("%w: event %s is scheduled, but the filter has another topic, key or type, or another session has locked the event", ErrNotFound, id)
	case place == "log":
		return fmt.Errorf("%w: the time of event %s has come, and it is in the log: it is published, or about to be", ErrNotFound, id)
	case place == "parked":
		return fmt.Errorf("%w: the time of event %s has come, and it waits in a relay: holdfast waiting show %s shows it", ErrNotFound, id, id)
	case place == "letter":
		return fmt.Errorf("%w: event %s is a dead letter: dlq.List, or holdfast dlq list --event-id %s --state any, shows it", ErrNotFound, id, id)
	}
	return fmt.Errorf("%w: event %s is unknown here, or was published so long ago that the log has forgotten it", ErrNotFound, id)
}
