package waiting

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/manual"
)

// This file changes what waits in consumers, one event in a transaction. Events whose handler runs are left to it.

// The actions, as stored_action and pause_action keep them.
const (
	actRetry   = "retry"
	actDiscard = "discard"
	actGiveUp  = "give-up"
)

func (r *Room) changeConsumer(ctx context.Context, f Filter, o Options, action string) (n int, err error) {
	most, given := f.Limit, f
	f.Heads = f.Heads || action == actRetry
	found := false
	for {
		page, err := r.read(ctx, inConsumer, f, walkPage)
		if err != nil {
			return n, err
		}
		found = found || len(page) > 0
		for i := range page {
			if most > 0 && n >= most {
				return n, nil
			}
			changed, err := r.changeOne(ctx, &page[i], given, action, o)
			if err != nil {
				return n, fmt.Errorf("event %s of %s, after %d: %w", page[i].Event.ID, page[i].Consumer, n, manual.Explain(err))
			}
			if changed {
				n++
				o.report(Progress{Changed: n})
			}
		}
		if len(page) < walkPage {
			break
		}
		last := page[len(page)-1]
		if last.Event.Key != "" && (f.Heads || f.Why == BehindLetter || f.Why == Dependency || f.Why == Failed) {
			last.Place = math.MaxInt64 // the next one of its key is a head by now, and was none
		}
		f.After = &last
	}
	if found {
		return n, nil
	}
	if given.Heads == f.Heads {
		return 0, f.notFound()
	}
	if some, err := r.read(ctx, inConsumer, given, 1); err != nil || len(some) > 0 {
		return 0, err // They wait behind others.
	}
	return 0, f.notFound()
}

// changeOne does an action on one event. It returns false if the event has changed meanwhile, or does not allow the action.
func (r *Room) changeOne(ctx context.Context, w *Event, f Filter, action string, o Options) (changed bool, err error) {
	e := w.Event
	row := []any{w.Consumer, e.Topic, e.Key, w.Place}
	switch {
	case w.Running:
		return false, nil
	case o.DryRun && action == actRetry:
		err := r.pool.QueryRow(ctx, r.sql.In(wouldRetry), row...).Scan(&changed)
		return changed, err
	case o.DryRun:
		return true, nil
	}
	err = manual.Transact(ctx, r.pool, func(tx pgx.Tx) error {
		changed = false
		if err := manual.LockQueue(ctx, tx, r.schema, w.Consumer, e.Topic, e.Key); err != nil {
			return err
		}
		if f.Why != "" || f.Heads {
			var still bool
			if err := tx.QueryRow(ctx, r.sql.In(stillWaits), append(row[:len(row):len(row)], string(f.Why), f.Heads)...).Scan(&still); err != nil || !still {
				return err
			}
		}
		var letter *int64
		if action == actRetry {
			tag, err := tx.Exec(ctx, r.sql.In(retryConsumer), row...)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
		} else {
			reason := fmt.Sprintf("a person gave it up: %s", o.Reason)
			state, result := dlq.StateOpen, "dead"
			if action == actDiscard {
				state, result = dlq.StateDiscarded, dlq.StateDiscarded
			}
			var id int64
			switch err := tx.QueryRow(ctx, r.sql.In(giveUpConsumer), append(row[:len(row):len(row)], reason, state, result)...).Scan(&id); {
			case errors.Is(err, pgx.ErrNoRows):
				return nil
			case err != nil:
				return fmt.Errorf("write its letter: %w", err)
			}
			letter = &id
			if _, err := tx.Exec(ctx, r.sql.In(wakeKey), w.Consumer, e.Topic, e.Key); err != nil {
				return fmt.Errorf("wake the key's queue: %w", err)
			}
		}
		if _, err := tx.Exec(ctx, r.sql.In(recordStored), action, w.Consumer, e.Source, e.ID, e.Type, e.Topic, e.Key, letter, o.By, o.Reason); err != nil {
			return fmt.Errorf("record the action: %w", err)
		}
		changed = true
		return nil
	})
	return changed, err
}
