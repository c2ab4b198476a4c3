package waiting

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/manual"
)

// Whoever changes what waits in a relay owns its lane meanwhile: it may have one of them in a call.

const (
	turnRows  = 5000                   // of one transaction
	turnBytes = 4 << 20                // of one transaction, unless its only row has more
	turnTime  = 100 * time.Millisecond // that a lane should be away from its relay
	pacedRows = 1000                   // with which to begin where lanes have relays

	laneWait  = time.Minute            // for a relay to hand a lane over
	laneLooks = 20 * time.Millisecond  // between two looks whether it has
	laneRests = 200 * time.Millisecond // in which a relay has the lane again
)

// changeBatch changes a batch of events. args are those of relayBatch.
type changeBatch func(ctx context.Context, tx pgx.Tx, args []any) pgx.Row

// signature is what is kept of a change in relays: once, in the first transaction that changes something.
type signature struct {
	action, topic, key, by, reason string
	kept                           bool
}

// sign keeps who does it, unless a transaction before did.
func (r *Room) sign(ctx context.Context, tx pgx.Tx, s *signature) error {
	if s.kept {
		return nil
	}
	return r.recordPause(ctx, tx, s.action, Pausable{Topic: s.topic, Key: s.key}, s.by, s.reason)
}

// laneWork is what is left to do in one lane.
type laneWork struct {
	lane   int16
	events int // that waited when it began
	bound  int64
	key    string // where to go on
	place  int64
	restAt time.Time // a relay has the lane until then
}

// changeLanes goes through the lanes in turns, so that none is taken from its relay for long.
func (r *Room) changeLanes(ctx context.Context, f Filter, o Options, s signature, change changeBatch) (p Progress, err error) {
	lanes, total, err := r.lanesOf(ctx, f)
	if p.Total = total; err != nil {
		return p, err
	}
	if o.DryRun {
		p.Changed = total
		return p, nil
	}
	rows := pacedRows
	for len(lanes) > 0 {
		w := lanes[0]
		more, err := r.turn(ctx, f, &w, &rows, &p, &s, change)
		if err != nil {
			return p, fmt.Errorf("lane %d, after %d of %d: %w", w.lane, p.Changed, p.Total, manual.Explain(err))
		}
		if lanes = lanes[1:]; more {
			lanes = append(lanes, w)
		}
		o.report(p)
	}
	return p, nil
}

// lanesOf are the lanes in which something of a filter waits, and how many events that is together. None is an error.
func (r *Room) lanesOf(ctx context.Context, f Filter) (lanes []laneWork, total int, err error) {
	var bound int64
	if err := r.pool.QueryRow(ctx, r.sql.In(boundRelay)).Scan(&bound); err != nil {
		return nil, 0, fmt.Errorf("bound the places: %w", manual.Explain(err))
	}
	rows, err := r.pool.Query(ctx, r.sql.In(countRelay), f.Topic, f.Key, f.partition())
	if err != nil {
		return nil, 0, fmt.Errorf("count them: %w", manual.Explain(err))
	}
	lanes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (laneWork, error) {
		w := laneWork{bound: bound, place: math.MinInt64}
		err := row.Scan(&w.lane, &w.events)
		total += w.events
		return w, err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("count them: %w", manual.Explain(err))
	}
	if total == 0 {
		return nil, 0, f.notFound()
	}
	return lanes, total, nil
}

// paced is how many rows the next transaction changes after one of rows that took so long: events of other topics wait in
// that lane meanwhile.
func paced(rows int, took time.Duration) int {
	switch {
	case took > turnTime:
		rows /= 2
	case took < turnTime/2:
		rows *= 2
	}
	return min(max(rows, turnRows/50), turnRows)
}

// turn changes one batch of a lane in a transaction, and says whether there may be more. If a relay has the lane the batch has so many
// paced rows.
func (r *Room) turn(ctx context.Context, f Filter, w *laneWork, pace *int, p *Progress, s *signature, change changeBatch) (more bool, err error) {
	if rest := w.restAt.Sub(r.now()); rest > 0 {
		if err := r.rest(ctx, rest); err != nil {
			return false, err
		}
	}
	var next laneWork
	var rows, changed int
	var handedOver bool
	var took time.Time
	err = manual.Transact(ctx, r.pool, func(tx pgx.Tx) (err error) {
		if handedOver, err = r.takeLane(ctx, tx, w.lane); err != nil {
			return err
		}
		took, next = r.now(), *w
		limit := turnRows
		if handedOver {
			limit = *pace
		}
		var keys []string
		args := []any{w.lane, f.Topic, f.Key, w.key, w.place, w.bound, int32(limit), int64(turnBytes)}
		if err := change(ctx, tx, args).Scan(&rows, &changed, &more, &keys, &next.key, &next.place); err != nil {
			return fmt.Errorf("change them: %w", err)
		}
		if _, err := tx.Exec(ctx, r.sql.In(resumeRelay), w.lane, f.Topic, keys, next.key, next.place); err != nil {
			return fmt.Errorf("resume what comes after them: %w", err)
		}
		return r.sign(ctx, tx, s)
	})
	if err != nil {
		return false, err
	}
	s.kept = true
	if handedOver {
		now := r.now()
		next.restAt = now.Add(max(now.Sub(took), laneRests))
		if rows == *pace || now.Sub(took) > turnTime {
			*pace = paced(*pace, now.Sub(took))
		}
	}
	*w = next
	p.Changed += changed
	p.Left += rows - changed
	return more, nil
}

// takeLane takes a lane for the rest of the transaction, and says whether a relay had to hand it over.
func (r *Room) takeLane(ctx context.Context, tx pgx.Tx, number int16) (handedOver bool, err error) {
	began, asked := r.now(), false
	for {
		if !asked {
			if err := tx.QueryRow(ctx, r.sql.In(askForLane), int32(lane.HandOverClass), lane.HandOverNumber(r.schema, int(number))).Scan(&asked); err != nil {
				return false, fmt.Errorf("ask for the lane: %w", err)
			}
		}
		if asked {
			tag, err := tx.Exec(ctx, r.sql.In(takeLane), number)
			if err != nil {
				return false, fmt.Errorf("take the lane: %w", err)
			}
			if tag.RowsAffected() == 1 {
				return handedOver, nil
			}
		}
		handedOver = true
		if r.now().Sub(began) >= laneWait {
			return false, r.notHandedOver(ctx, tx, number, asked)
		}
		if err := r.rest(ctx, laneLooks); err != nil {
			return false, err
		}
	}
}

// notHandedOver says who keeps a lane.
func (r *Room) notHandedOver(ctx context.Context, tx pgx.Tx, number int16, asked bool) error {
	if !asked {
		return fmt.Errorf("another session changes what waits in the lane: it did not end within %v: try again when it has ended", laneWait)
	}
	var owner string
	if err := tx.QueryRow(ctx, r.sql.In(readOwner), number).Scan(&owner); err != nil {
		return fmt.Errorf("read the lane's owner: %w", err)
	}
	return fmt.Errorf("the relay %q did not hand the lane over within %v: it waits for a call of its publisher, or is of an older build: try again, or stop it first", owner, laneWait)
}
