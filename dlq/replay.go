package dlq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// ReplayOptions say how Replay goes about it.
type ReplayOptions struct {
	// DryRun counts the letters that would be replayed, tells ProgressFunc of each, and changes nothing.
	DryRun bool

	// Rate is the most letters that are sent on their way in a second, one by one. Defaults to 0, no limit.
	Rate float64

	// By is who does it. Required, except for a DryRun. It is kept with every letter that is replayed.
	By string

	// Reason is why, and is kept as well. Defaults to "".
	Reason string

	// Name lets a replay that was interrupted go on: the next call with the name takes the bounds of the first one, its
	// Since and Until too, and passes over every letter that was moved under the name, even if that has failed again and is
	// open. When it has met its last letter the name is free for the next replay. At most 255 bytes. Defaults to "": every
	// call begins anew with what is open then.
	Name string

	// Anew ends an interrupted replay of the Name and begins another. Defaults to false.
	Anew bool

	// ProgressFunc is called in line, before the first letter (Letter 0) and after each. It must be quick, and not call
	// Replay. Defaults to nothing.
	ProgressFunc func(Progress)
}

// maxProblems is how many letters that cannot be replayed are named in an error.
const maxProblems = 10

// Replay sends open letters on their way again and returns how many it moved.
//
// A letter of the inbox is put into its key's queue where its event was, before everything of its key that came after it:
// the Run or Consume of its consumer hands it to its handler. A letter of the relay goes back into the log with its old id,
// and comes before everything of its key that is parked. When that succeeds the letter is replayed, and when it fails again
// the letter is open again. Letters of one key keep their order among themselves, also when they are replayed one by one:
// a consumer's that of their events, a relay's that of their ids.
//
// Each letter is one short transaction, so Replay may be cancelled or break off at any letter: the count says how many
// were moved, those are on their way, and the same call goes on with the rest; with a Name, with exactly the rest. Of two
// callers that replay a letter at once one moves it, and the other passes over it. Letters that are written while Replay
// runs are left for the next call. A letter whose event waits under the same id already stays open; when the rest is done
// the error names it, and wraps ErrWaiting.
func (d *DLQ) Replay(ctx context.Context, f Filter, o ReplayOptions) (int, error) {
	if err := d.checkReplay(f, o); err != nil {
		return 0, fmt.Errorf("replay letters: %w", err)
	}
	r, err := d.begin(ctx, f, o)
	if err != nil {
		return 0, fmt.Errorf("replay letters: %w", err)
	}
	if f = r.filter; f.Limit > 0 {
		if f.Limit -= r.moved; f.Limit <= 0 {
			return 0, d.end(ctx, r)
		}
	}
	s := scope{r.upTo, r.id}
	p, err := d.progress(ctx, f, s, func(p Progress) {
		if p.Before = r.moved; o.ProgressFunc != nil {
			o.ProgressFunc(p)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("replay letters: %w", err)
	}
	p.Before = r.moved
	if o.DryRun {
		return p.Total, d.preview(ctx, f, s, p, o.ProgressFunc)
	}
	var problems []error
	pace := pace{d: d, rate: o.Rate, start: d.now()}
	err = d.walk(ctx, f, s, func(v visited) error {
		if err := pace.wait(ctx, p.Moved); err != nil {
			return fmt.Errorf("stopped before letter %d: %w", v.id, err)
		}
		switch ok, err := d.replay(ctx, v, r.id, o); {
		case errors.Is(err, ErrWaiting):
			if problems = append(problems, err); len(problems) > maxProblems {
				return errTooMany
			}
		case err != nil:
			return err
		case ok:
			p.Moved++
		}
		p.report(v.id, o.ProgressFunc)
		return nil
	})
	switch {
	case errors.Is(err, errTooMany):
	case err != nil:
		return p.Moved, fmt.Errorf("replay letters: %w", err)
	default:
		err = d.end(ctx, r)
	}
	if len(problems) > 0 {
		return p.Moved, fmt.Errorf("replay letters: %w", errors.Join(problems...))
	}
	return p.Moved, err
}

// errTooMany ends a replay of letters that cannot be moved; they are named instead of it.
var errTooMany = errors.New("too many letters cannot be replayed")

func (d *DLQ) checkReplay(f Filter, o ReplayOptions) error {
	problems := []error{checkBulk(f, o.DryRun, o.By, o.Reason, "replayed")}
	if o.Rate < 0 || math.IsNaN(o.Rate) || math.IsInf(o.Rate, 0) {
		problems = append(problems, fmt.Errorf("rate is %v: it must be positive, or 0 for no limit", o.Rate))
	}
	if len(o.Name) > 255 || !utf8.ValidString(o.Name) || strings.IndexByte(o.Name, 0) >= 0 {
		problems = append(problems, fmt.Errorf("name is %.60q: it must be at most 255 bytes of UTF-8 without NUL", o.Name))
	}
	if o.Anew && o.Name == "" {
		problems = append(problems, errors.New("anew is set without a name: a replay without a name always begins anew"))
	}
	return errors.Join(problems...)
}

// replay moves one letter. False: it is not open any more, or gone, or this named replay has moved it before.
func (d *DLQ) replay(ctx context.Context, v visited, named int64, o ReplayOptions) (moved bool, err error) {
	id := v.id
	err = d.change(ctx, id, v.address, func(tx pgx.Tx, state string) error {
		moved = state == StateOpen
		if !moved {
			return nil
		}
		steps := []step{
			{"record the action", d.sql.record, []any{id, "replay", o.By, o.Reason, named}, errMovedBefore},
			{"mark it", d.sql.mark, []any{id, StateReplaying}, errGone},
		}
		if v.origin == OriginInbox {
			steps = append(steps,
				step{"store its event", d.sql.store, []any{id}, ErrWaiting},
				step{what: "change the inbox row", sql: d.sql.storeResult, args: []any{id}})
		} else {
			steps = append(steps, step{"append its event to the log", d.sql.append, []any{id}, errGone})
		}
		return run(ctx, tx, steps...)
	})
	if errors.Is(err, ErrNotFound) || errors.Is(err, errMovedBefore) {
		return false, nil
	}
	return moved && err == nil, err
}

var errMovedBefore = errors.New("this replay has moved it before")

// pace spreads letters evenly, from the moment of the first. It does not catch up by a burst: what was lost is lost.
type pace struct {
	d     *DLQ
	rate  float64
	start time.Time
	moved int // at the last wait: letters that are passed over cost no time
}

// wait waits until one more letter may go after so many.
func (p *pace) wait(ctx context.Context, moved int) error {
	if p.rate == 0 || moved == p.moved {
		return nil
	}
	p.moved = moved
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
