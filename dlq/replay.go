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
	"github.com/jackc/pgx/v5/pgconn"
)

// ReplayOptions are the options of Replay.
type ReplayOptions struct {
	// DryRun counts the letters that would be replayed, reports each to ProgressFunc, and changes nothing.
	DryRun bool

	// Rate is the maximum number of letters to replay in a second, one by one. Defaults to 0, no limit.
	Rate float64

	// By is who replays. Required, except for a DryRun. It is kept with every replayed letter.
	By string

	// Reason says why; it is kept too. Defaults to "".
	Reason string

	// Name lets you continue an interrupted replay. The next call with the same name has the bounds of the first one,
	// including its Since and Until. It skips every letter that was moved under the name, even if that has failed again
	// and is open. After its last letter the name is free for another replay. At most 255 bytes. Defaults to "": every
	// call starts afresh with the letters that are open then.
	Name string

	// Anew ends an interrupted replay of the Name and begins another. Defaults to false.
	Anew bool

	// ForgetSteps forgets the recorded steps of each replayed event's handler (inbox.Step), for the payload that the letter has, so that they run
	// again. The recorded reason ends with how many it forgot. Their keys stay the same: a system that honors such keys answers with its first
	// result, as long as it remembers the key. To make all its calls new ones, edit the payload. Letters of the relay have no steps: it must be false if the
	// filter's Origin is OriginRelay. Defaults to false: steps are kept, and those recorded do not run again.
	ForgetSteps bool

	// ProgressFunc is called inline, before the first letter (Letter 0) and after each one. It must be quick, and must
	// not call Replay. Defaults to none.
	ProgressFunc func(Progress)
}

// maxProblems is how many letters that cannot be replayed an error lists.
const maxProblems = 10

// Replay delivers open letters again and returns how many it moved.
//
// A letter of an inbox goes ahead of the later events of its key that still wait. Without HoldKey, later events may
// have been handled already. The Run or Consume of its consumer passes it to the handler. A letter of the relay goes
// back into the log with its old id, before every parked event of its key. If the delivery succeeds the letter is
// replayed; if it fails again the letter is open again, and holds its key if it did before. Letters of one key keep their order, even
// if you replay them one by one: by their events at a consumer, by their ids at the relay.
//
// Each letter is one short transaction, so you may cancel Replay at any letter. It returns how many it moved; those are
// being delivered. The same call continues with the rest; with a Name, with exactly the rest. If two callers replay a
// letter at once, one moves it and the other skips it. Letters written while Replay runs are left for the next call. A
// letter that cannot be replayed as it is stays open. After the other letters, the error lists those, and wraps a *NotReplayableError for
// each.
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
		case errors.As(err, new(*NotReplayableError)):
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

// errTooMany ends a replay with too many letters that cannot be moved. The error lists those instead.
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
		problems = append(problems, errors.New("anew is true: it must be false without a name: such a replay always starts afresh"))
	}
	if o.ForgetSteps && f.Origin == OriginRelay {
		problems = append(problems, errors.New("forget steps is true: it must be false for letters of the relay: only handlers of consumers have steps"))
	}
	return errors.Join(problems...)
}

// replay moves one letter. It returns false if the letter is no longer open, was removed, or was moved by this named
// replay before.
func (d *DLQ) replay(ctx context.Context, v visited, named int64, o ReplayOptions) (moved bool, err error) {
	id := v.id
	err = d.change(ctx, id, v.address, func(tx pgx.Tx, state string) error {
		moved = state == StateOpen
		if !moved {
			return nil
		}
		reason := o.Reason
		if o.ForgetSteps && v.origin == OriginInbox {
			tag, err := tx.Exec(ctx, d.sql.forget, id)
			if err != nil {
				return fmt.Errorf("forget its steps: %w", err)
			}
			reason = withForgotten(reason, tag.RowsAffected())
		}
		steps := []step{{"record the action", d.sql.record, []any{id, "replay", o.By, reason, named}, errMovedBefore}}
		if v.origin == OriginInbox {
			steps = append(steps,
				step{"look for its payload", d.sql.whole, []any{id}, errLeftOut},
				step{"mark it", d.sql.mark, []any{id, StateReplaying}, errGone},
				step{what: "change the inbox row", sql: d.sql.storeResult, args: []any{id}},
				step{"look whether its event was handled", d.sql.unhandled, []any{id}, errHandled},
				step{"store its event", d.sql.store, []any{id}, errWaiting})
		} else {
			var unfit *string
			if err := tx.QueryRow(ctx, d.sql.unfit, id).Scan(&unfit); err != nil {
				return fmt.Errorf("look whether it can be sent: %w", err)
			}
			if unfit != nil {
				return fmt.Errorf("%w: %s", errMalformed, *unfit)
			}
			steps = append(steps, step{"mark it, and append its event to the log", d.sql.replay, []any{id}, errGone})
		}
		err := run(ctx, tx, steps...)
		var pgErr *pgconn.PgError
		if v.origin == OriginRelay && errors.As(err, &pgErr) && pgErr.Code == "22023" { // replay_letter refuses it
			return fmt.Errorf("%w: %s: set that column of letter by SQL, or discard it", errMalformed, pgErr.Message)
		}
		return err
	})
	if errors.Is(err, ErrNotFound) || errors.Is(err, errMovedBefore) {
		return false, nil
	}
	return moved && err == nil, err
}

// withForgotten is a reason that says how many steps were forgotten, as it is recorded.
func withForgotten(reason string, steps int64) string {
	if steps == 0 {
		return reason
	}
	return strings.TrimSpace(fmt.Sprintf("%s [steps forgotten: %d]", reason, steps))
}

var errMovedBefore = errors.New("this replay has moved the letter before")

// pace spaces letters evenly from the first one on. It does not catch up in a burst.
type pace struct {
	d     *DLQ
	rate  float64
	start time.Time
	moved int // at the last wait: skipped letters cost no time
}

// wait waits until the next letter may go, after moved letters.
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
	return p.d.rest(ctx, due.Sub(now))
}
