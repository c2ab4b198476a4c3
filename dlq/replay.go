package dlq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// ReplayOptions say how Replay goes about it.
type ReplayOptions struct {
	// DryRun counts the letters that would be replayed, and changes nothing.
	DryRun bool

	// Rate is the most letters that are sent on their way in a second, one by one. Defaults to 0, no limit.
	Rate float64

	// By is who does it. Required, except for a DryRun. It is kept with every letter that is replayed.
	By string

	// Reason is why, and is kept as well. Defaults to "".
	Reason string
}

// replayBatch is how many letters' ids are read at a time.
const replayBatch = 100

// maxProblems is how many letters that cannot be replayed are named in an error.
const maxProblems = 10

// Replay sends open letters on their way again and returns how many it moved.
//
// A letter of the inbox is put at the head of its key's queue, before everything of its key that waits: the Run or
// Consume of its consumer hands it to its handler. A letter of the relay goes back into the log with its old id. When
// that succeeds the letter is replayed, and when it fails again the letter is open again. Letters of one consumer,
// topic and key keep the order of their ids, also when they are replayed one by one.
//
// Each letter is one short transaction, so Replay may be cancelled or break off at any letter: the count says how many
// were moved, those are on their way, and the same call goes on with the rest. Of two callers that replay a letter at
// once one moves it, and the other passes over it. Letters that are written while Replay runs are left for the next
// call. A letter whose event waits under the same id already stays open; when the rest is done the error names it, and
// wraps ErrWaiting.
func (d *DLQ) Replay(ctx context.Context, f Filter, o ReplayOptions) (int, error) {
	if err := d.checkReplay(f, o); err != nil {
		return 0, fmt.Errorf("replay letters: %w", err)
	}
	if o.DryRun {
		var n int
		if err := d.pool.QueryRow(ctx, d.sql.count, append(f.args(0), int32(min(f.Limit, math.MaxInt32)))...).Scan(&n); err != nil {
			return 0, fmt.Errorf("count letters to replay: %w", explain(err))
		}
		return n, nil
	}
	var last int64
	if err := d.pool.QueryRow(ctx, d.sql.last).Scan(&last); err != nil {
		return 0, fmt.Errorf("replay letters: %w", explain(err))
	}
	var problems []error
	seen, moved := 0, 0
	pace := pace{d: d, rate: o.Rate, start: d.now()}
	page := f
	page.NoPayloads = true
	for {
		page.Limit = replayBatch
		if f.Limit > 0 {
			page.Limit = min(replayBatch, f.Limit-seen)
		}
		if page.Limit == 0 {
			break
		}
		letters, err := d.read(ctx, page, last)
		if err != nil {
			return moved, fmt.Errorf("replay letters: %w", explain(err))
		}
		for _, l := range letters {
			page.After = l.ID
			seen++
			if err := pace.wait(ctx, moved); err != nil {
				return moved, fmt.Errorf("replay letters: stopped before letter %d: %w", l.ID, err)
			}
			switch ok, err := d.replay(ctx, l.ID, o); {
			case errors.Is(err, ErrWaiting):
				if problems = append(problems, err); len(problems) > maxProblems {
					return moved, fmt.Errorf("replay letters: %w", errors.Join(problems...))
				}
			case err != nil:
				return moved, fmt.Errorf("replay %w", err)
			case ok:
				moved++
			}
		}
		if len(letters) < page.Limit {
			break
		}
	}
	if len(problems) > 0 {
		return moved, fmt.Errorf("replay letters: %w", errors.Join(problems...))
	}
	return moved, nil
}

func (d *DLQ) checkReplay(f Filter, o ReplayOptions) error {
	problems := []error{f.validate()}
	if f.State != "" && f.State != StateOpen {
		problems = append(problems, fmt.Errorf("state is %q: only open letters can be replayed, leave it empty", f.State))
	}
	if o.Rate < 0 || math.IsNaN(o.Rate) || math.IsInf(o.Rate, 0) {
		problems = append(problems, fmt.Errorf("rate is %v: it must be positive, or 0 for no limit", o.Rate))
	}
	if !o.DryRun {
		problems = append(problems, signature(o.By, o.Reason))
	}
	return errors.Join(problems...)
}

// replay moves one letter. False: it is not open any more, or gone.
func (d *DLQ) replay(ctx context.Context, id int64, o ReplayOptions) (moved bool, err error) {
	err = d.change(ctx, id, func(tx pgx.Tx, a address, state string) error {
		moved = state == StateOpen
		if !moved {
			return nil
		}
		steps := []step{
			{"mark it", d.sql.mark, []any{id, StateReplaying}, errGone},
			{"record the action", d.sql.record, []any{id, "replay", o.By, o.Reason}, errGone},
		}
		if a.origin == OriginInbox {
			steps = append(steps,
				step{"store its event", d.sql.store, []any{id}, ErrWaiting},
				step{what: "change the inbox row", sql: d.sql.storeResult, args: []any{id}})
		} else {
			steps = append(steps, step{"append its event to the log", d.sql.append, []any{id}, errGone})
		}
		return run(ctx, tx, steps...)
	})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return moved && err == nil, err
}

// pace spreads letters evenly, from the moment of the first. It does not catch up by a burst: what was lost is lost.
type pace struct {
	d     *DLQ
	rate  float64
	start time.Time
}

// wait waits until one more letter may go after so many.
func (p *pace) wait(ctx context.Context, moved int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.rate == 0 || moved == 0 {
		return nil
	}
	gap := time.Duration(float64(time.Second) / p.rate)
	now := p.d.now()
	due := p.start.Add(gap)
	if !due.After(now) {
		p.start = now
		return nil
	}
	p.start = due
	return p.d.pause(ctx, due.Sub(now))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
