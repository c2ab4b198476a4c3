package dlq

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/manual"
)

// Discard gives an open letter up for good and releases the key that it holds. A letter of an inbox that is being
// replayed can also be discarded while it waits for its handler. by is required; both by and reason are kept.
//
// The error wraps ErrNotFound, or ErrNotOpen if the letter is in another state.
func (d *DLQ) Discard(ctx context.Context, id int64, by, reason string) error {
	if err := manual.Signature(by, reason); err != nil {
		return fmt.Errorf("discard letter %d: %w", id, err)
	}
	a, err := d.address(ctx, id)
	if err == nil {
		err = d.discard(ctx, id, a, by, reason)
	}
	if err != nil {
		return fmt.Errorf("discard %w", err)
	}
	return nil
}

func (d *DLQ) discard(ctx context.Context, id int64, a address, by, reason string) error {
	return d.change(ctx, id, a, func(tx pgx.Tx, state string) error {
		var steps []step
		switch {
		case state == StateOpen:
		case state == StateReplaying && a.origin == OriginInbox:
			steps = append(steps, step{"take it out of the queue", d.sql.unstore, []any{id},
				fmt.Errorf("%w: its handler is running: try again when that has ended", ErrNotOpen)})
		case state == StateReplaying:
			return fmt.Errorf("%w: it is being published again: try again when that has ended", ErrNotOpen)
		default:
			return fmt.Errorf("%w: it is %s", ErrNotOpen, state)
		}
		steps = append(steps, step{"mark it", d.sql.close, []any{id}, errGone})
		if a.origin == OriginInbox {
			steps = append(steps, step{
				what: "mark the inbox row",
				sql:  d.sql.discardResult,
				args: []any{id},
			},
				step{what: "wake the key's queue", sql: d.sql.wake, args: []any{id}})
		}
		steps = append(steps, step{"record the action", d.sql.record, []any{id, "discard", by, reason, int64(0)}, errGone})
		return run(ctx, tx, steps...)
	})
}

// DiscardOptions are the options of DiscardAll.
type DiscardOptions struct {
	// DryRun counts the letters that would be discarded, reports each to ProgressFunc, and changes nothing.
	DryRun bool

	// By is who discards. Required, except for a DryRun. It is kept with every letter.
	By string

	// Reason says why; it is kept too. Defaults to "".
	Reason string

	// ProgressFunc is called inline, before the first letter (Letter 0) and after each one. Defaults to none.
	ProgressFunc func(Progress)
}

// DiscardAll discards the open letters that match a filter, and returns how many. Each is one short transaction, as in
// Discard. So you may cancel it at any letter; the same call continues with the rest. It skips letters that are written
// while it runs, and letters that somebody else replays or discards in the meantime.
func (d *DLQ) DiscardAll(ctx context.Context, f Filter, o DiscardOptions) (int, error) {
	if err := checkBulk(f, o.DryRun, o.By, o.Reason, "discarded"); err != nil {
		return 0, fmt.Errorf("discard letters: %w", err)
	}
	var s scope
	if err := d.pool.QueryRow(ctx, d.sql.last).Scan(&s.upTo); err != nil {
		return 0, fmt.Errorf("discard letters: %w", manual.Explain(err))
	}
	p, err := d.progress(ctx, f, s, o.ProgressFunc)
	if err != nil {
		return 0, fmt.Errorf("discard letters: %w", err)
	}
	if o.DryRun {
		return p.Total, d.preview(ctx, f, s, p, o.ProgressFunc)
	}
	err = d.walk(ctx, f, s, func(v visited) error {
		switch err := d.discard(ctx, v.id, v.address, o.By, o.Reason); {
		case errors.Is(err, ErrNotOpen), errors.Is(err, ErrNotFound):
		case err != nil:
			return fmt.Errorf("discard %w", err)
		default:
			p.Moved++
		}
		p.report(v.id, o.ProgressFunc)
		return nil
	})
	return p.Moved, err
}

// Progress is the progress of a call that goes through many letters.
type Progress struct {
	Letter int64 // the letter it has just processed; 0 before the first
	Looked int   // letters processed so far
	Moved  int   // letters replayed or discarded so far; the others were no longer open
	Total  int   // letters to process in all
	Before int   // of a named replay: letters moved before this call
}

func (p *Progress) report(id int64, to func(Progress)) {
	p.Letter = id
	if p.Looked++; to != nil {
		to(*p)
	}
}

// progress counts the letters that a call will process, and reports the start.
func (d *DLQ) progress(ctx context.Context, f Filter, s scope, to func(Progress)) (*Progress, error) {
	p := &Progress{}
	err := d.pool.QueryRow(ctx, d.sql.count, s.args(f, f.Limit)...).Scan(&p.Total)
	if err != nil {
		return p, fmt.Errorf("count letters: %w", manual.Explain(err))
	}
	if to != nil {
		to(*p)
	}
	return p, nil
}

// preview reports which letters a call would process.
func (d *DLQ) preview(ctx context.Context, f Filter, s scope, p *Progress, to func(Progress)) error {
	if to == nil {
		return nil
	}
	return d.walk(ctx, f, s, func(v visited) error {
		p.report(v.id, to)
		return nil
	})
}

// walkPage is how many letters are read at a time.
const walkPage = 100

// visited is a letter that a walk has reached.
type visited struct {
	id int64
	address
}

// walk visits the open letters of a filter in the order of their ids, until visit returns an error.
func (d *DLQ) walk(ctx context.Context, f Filter, s scope, visit func(v visited) error) error {
	for seen := 0; ; {
		limit := walkPage
		if f.Limit > 0 {
			limit = min(walkPage, f.Limit-seen)
		}
		if limit == 0 {
			return nil
		}
		rows, err := d.pool.Query(ctx, d.sql.walk, s.args(f, limit)...)
		if err != nil {
			return fmt.Errorf("read letters: %w", manual.Explain(err))
		}
		page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v visited, err error) {
			return v, row.Scan(&v.id, &v.origin, &v.consumer, &v.topic, &v.key)
		})
		if err != nil {
			return fmt.Errorf("read letters: %w", manual.Explain(err))
		}
		for _, v := range page {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("stopped before letter %d: %w", v.id, err)
			}
			if err := visit(v); err != nil {
				return err
			}
			f.After = v.id
			seen++
		}
		if len(page) < limit {
			return nil
		}
	}
}

// checkBulk checks what Replay and DiscardAll have in common.
func checkBulk(f Filter, dryRun bool, by, reason, done string) error {
	problems := []error{f.validate()}
	if f.State != "" && f.State != StateOpen {
		problems = append(problems, fmt.Errorf("state is %q: it must be empty or open: only open letters can be %s", f.State, done))
	}
	if !dryRun {
		problems = append(problems, manual.Signature(by, reason))
	}
	return errors.Join(problems...)
}
