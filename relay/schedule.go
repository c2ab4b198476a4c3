package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/private"
)

// moveScheduled moves events that fell due into the log, under the lane's fence. If there may be more, they are moved later: for as long
// as this took the lane publishes.
func (l *lane) moveScheduled(ctx context.Context) error {
	var only *int64 // the seq of the event that is to blame, if it cannot be moved now
	began := l.r.env.now()
	for most := l.r.bounds.moves; !l.stopping(); {
		events, bytes, err := l.moveDue(ctx, most, only)
		switch b := blameOf(err); {
		case b == aRow && most > 1: // find it by halves
			most /= 2
			continue
		case b == aRow && only == nil:
			// Until it has a name, an event that is committed meanwhile and was due before it would be taken for it.
			first, e := l.firstScheduled(ctx)
			if e != nil || first == nil {
				return fmt.Errorf("move scheduled events: %w", errors.Join(err, e))
			}
			only = first
			continue
		case b == aRow || b == unclear:
			if b == unclear { // one that is too large takes too long
				only = nil
			}
			found, e := l.giveUpScheduled(ctx, err, only)
			if e != nil {
				return e
			}
			if !found && only == nil {
				return fmt.Errorf("move scheduled events: %w", err)
			}
			only = nil
			continue
		case err != nil:
			return fmt.Errorf("move scheduled events: %w", err)
		}
		if events > 0 {
			failpoint.Hit(failpoint.RelayScheduled)
		}
		if observe := l.r.c.Observer.OnMoved; observe != nil && events > 0 {
			observe(l.number, int(events))
		}
		if only == nil && events < int64(most) && bytes < l.r.bounds.moveBytes {
			break
		}
		if only == nil && most == l.r.bounds.moves {
			now := l.r.env.now()
			l.moving, l.moveAt = true, now.Add(now.Sub(began))
			break
		}
		only, most = nil, min(2*most, l.r.bounds.moves)
	}
	l.r.Wake()
	return nil
}

// moveDue moves events that are due, most at most, and says how many bytes they have; with only, the first one if that is its seq.
func (l *lane) moveDue(ctx context.Context, most int, only *int64) (events, bytes int64, _ error) {
	err := l.inTx(ctx, func(batch *pgx.Batch) {
		batch.Queue(l.r.sql.In(moveScheduled), l.number, most, l.r.bounds.moveBytes, only).QueryRow(func(row pgx.Row) error { return row.Scan(&events, &bytes) })
	}, func(*pgx.Batch) {
		if events > 0 {
			failpoint.Hit(failpoint.RelayScheduling)
		}
	})
	return events, bytes, err
}

// firstScheduled is the seq of the event that is due first, nil where none is.
func (l *lane) firstScheduled(ctx context.Context) (seq *int64, _ error) {
	ctx, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
	defer cancel()
	if err := l.r.pool.QueryRow(ctx, l.r.sql.In(nameScheduled), l.number).Scan(&seq); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	return seq, nil
}

// giveUpScheduled makes an event a dead letter, because it cannot be moved into the log: that of a seq if it is due first still, or
// without one the first that is too large. It says whether there was one.
func (l *lane) giveUpScheduled(ctx context.Context, cause error, only *int64) (found bool, _ error) {
	var letter, seq int64
	p := &pending{event: &logEvent{}}
	if only == nil {
		cause = fmt.Errorf("its payload or its headers are larger than an event's may be: %w", cause)
	}
	err := l.inTx(ctx, func(batch *pgx.Batch) {
		batch.Queue(l.r.sql.In(deadLetterScheduled), l.number, reason(cause), fingerprint("", cause), only).QueryRow(func(row pgx.Row) error {
			if err := row.Scan(&letter, &seq, &p.event.Topic, &p.event.ID, &p.event.Type, &p.event.Key); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return nil
		})
	}, func(batch *pgx.Batch) { l.queueLetter(batch, letter, p) })
	if err != nil {
		return false, fmt.Errorf("give up a scheduled event that is due in lane %d: %w", l.number, errors.Join(cause, err))
	}
	if letter == 0 {
		return false, nil
	}
	if l.r.mayLog("event given up") {
		l.r.c.Logger.Error("event given up", "lane", l.number, "topic", p.event.Topic, "event_id", p.event.ID, "type", p.event.Type, "attempts", 0, "letter", letter, "seq", seq, "error", private.Text(cause))
	}
	if observe := l.r.c.Observer.OnDead; observe != nil {
		observe(DeadLettered{Lane: l.number, Event: p.event.Event, Letter: letter, Err: cause})
	}
	return true, nil
}
