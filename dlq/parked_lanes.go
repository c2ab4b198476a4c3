package dlq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/lane"
)

const (
	parkedRows  = 5000                   // of one transaction
	parkedBytes = 4 << 20                // of one transaction, unless its only row has more
	parkedTurn  = 100 * time.Millisecond // that a lane should be away from its relay
	pacedRows   = 1000                   // with which to begin where lanes have relays

	laneWait  = time.Minute            // for a relay to hand a lane over
	laneLooks = 20 * time.Millisecond  // between two looks whether it has
	laneRests = 200 * time.Millisecond // in which a relay has the lane again
)

// changeBatch changes a batch of parked events. args are those of parkedBatch.
type changeBatch func(ctx context.Context, tx pgx.Tx, args []any) pgx.Row

// laneWork is what is left to do in one lane.
type laneWork struct {
	lane   int16
	events int // parked when it began
	bound  int64
	key    string // where to go on
	place  int64
	restAt time.Time // a relay has the lane until then
}

// changeParked goes through the lanes in turns, so that none is taken from its relay for long.
func (d *DLQ) changeParked(ctx context.Context, f ParkedFilter, o ParkedOptions, doing string, change changeBatch) (p ParkedProgress, err error) {
	err = errors.Join(f.validate(), f.whole())
	if !o.DryRun {
		err = errors.Join(err, signature(o.By, o.Reason))
	}
	if err != nil {
		return p, fmt.Errorf("%s parked events: %w", doing, err)
	}
	lanes, err := d.parkedLanes(ctx, f)
	if err != nil {
		return p, fmt.Errorf("%s parked events: %w", doing, err)
	}
	for _, w := range lanes {
		p.Total += w.events
	}
	if p.Total == 0 {
		return p, fmt.Errorf("%s parked events: %w", doing, f.notParked())
	}
	if o.DryRun {
		p.Moved = p.Total
		return p, nil
	}
	rows := pacedRows
	for len(lanes) > 0 {
		w := lanes[0]
		more, err := d.turn(ctx, f, &w, &rows, &p, change)
		if err != nil {
			return p, fmt.Errorf("%s parked events of lane %d, after %d of %d: %w", doing, w.lane, p.Moved, p.Total, explain(err))
		}
		if lanes = lanes[1:]; more {
			lanes = append(lanes, w)
		}
		if o.ProgressFunc != nil {
			o.ProgressFunc(p)
		}
	}
	return p, nil
}

// parkedLanes are the lanes in which something of a filter is parked.
func (d *DLQ) parkedLanes(ctx context.Context, f ParkedFilter) ([]laneWork, error) {
	var bound int64
	if err := d.pool.QueryRow(ctx, d.sql.boundParked).Scan(&bound); err != nil {
		return nil, fmt.Errorf("bound the places: %w", explain(err))
	}
	rows, err := d.pool.Query(ctx, d.sql.countParked, f.Topic, f.Key, f.partition())
	if err != nil {
		return nil, fmt.Errorf("count them: %w", explain(err))
	}
	lanes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (laneWork, error) {
		w := laneWork{bound: bound, place: math.MinInt64}
		return w, row.Scan(&w.lane, &w.events)
	})
	if err != nil {
		return nil, fmt.Errorf("count them: %w", explain(err))
	}
	return lanes, nil
}

// paced is how many rows the next transaction changes after one of rows that took so long: events of other topics wait in
// that lane meanwhile.
func paced(rows int, took time.Duration) int {
	switch {
	case took > parkedTurn:
		rows /= 2
	case took < parkedTurn/2:
		rows *= 2
	}
	return min(max(rows, parkedRows/50), parkedRows)
}

// turn changes one batch of a lane in a transaction, and says whether there may be more. If a relay has the lane the batch has so many
// paced rows.
func (d *DLQ) turn(ctx context.Context, f ParkedFilter, w *laneWork, pace *int, p *ParkedProgress, change changeBatch) (more bool, err error) {
	if rest := w.restAt.Sub(d.now()); rest > 0 {
		if err := d.pause(ctx, rest); err != nil {
			return false, err
		}
	}
	var next laneWork
	var rows, changed int
	var handedOver bool
	var took time.Time
	err = d.transact(ctx, func(tx pgx.Tx) (err error) {
		if handedOver, err = d.takeLane(ctx, tx, w.lane); err != nil {
			return err
		}
		took, next = d.now(), *w
		limit := parkedRows
		if handedOver {
			limit = *pace
		}
		var keys []string
		args := []any{w.lane, f.Topic, f.Key, w.key, w.place, w.bound, int32(limit), int64(parkedBytes)}
		if err := change(ctx, tx, args).Scan(&rows, &changed, &more, &keys, &next.key, &next.place); err != nil {
			return fmt.Errorf("change them: %w", err)
		}
		if _, err := tx.Exec(ctx, d.sql.resumeParked, w.lane, f.Topic, keys, next.key, next.place); err != nil {
			return fmt.Errorf("resume what comes after them: %w", err)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if handedOver {
		now := d.now()
		next.restAt = now.Add(max(now.Sub(took), laneRests))
		if rows == *pace || now.Sub(took) > parkedTurn {
			*pace = paced(*pace, now.Sub(took))
		}
	}
	*w = next
	p.Moved += changed
	p.Held += rows - changed
	return more, nil
}

// takeLane takes a lane for the rest of the transaction, and says whether a relay had to hand it over.
func (d *DLQ) takeLane(ctx context.Context, tx pgx.Tx, number int16) (handedOver bool, err error) {
	began, asked := d.now(), false
	for {
		if !asked {
			if err := tx.QueryRow(ctx, d.sql.askForLane, int32(lane.HandOverClass), lane.HandOverNumber(d.schema, int(number))).Scan(&asked); err != nil {
				return false, fmt.Errorf("ask for the lane: %w", err)
			}
		}
		if asked {
			tag, err := tx.Exec(ctx, d.sql.takeLane, number)
			if err != nil {
				return false, fmt.Errorf("take the lane: %w", err)
			}
			if tag.RowsAffected() == 1 {
				return handedOver, nil
			}
		}
		handedOver = true
		if d.now().Sub(began) >= laneWait {
			return false, d.notHandedOver(ctx, tx, number, asked)
		}
		if err := d.pause(ctx, laneLooks); err != nil {
			return false, err
		}
	}
}

// notHandedOver says who keeps a lane.
func (d *DLQ) notHandedOver(ctx context.Context, tx pgx.Tx, number int16, asked bool) error {
	if !asked {
		return fmt.Errorf("another session works on what is parked in the lane: it did not end within %v: try again when it has ended", laneWait)
	}
	var owner string
	if err := tx.QueryRow(ctx, d.sql.laneOwner, number).Scan(&owner); err != nil {
		return fmt.Errorf("read the lane's owner: %w", err)
	}
	return fmt.Errorf("the relay %q did not hand the lane over within %v: it waits for a call of its publisher, or is of an older build: try again, or stop it first", owner, laneWait)
}
