package waiting

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/manual"
)

// A change of what waits in relays goes through the lanes in short transactions, each of which locks what is parked in one. It leaves out what
// the lane's owner has leased, because it sends it, and looks again whether that has come back.

const (
	turnRows  = 5000                   // of one transaction
	turnBytes = 4 << 20                // of one transaction, unless its only row has more
	turnTime  = 100 * time.Millisecond // that a lane's owner should wait for one
	pacedRows = 1000                   // with which to begin where lanes have owners

	leasedWait  = 10 * time.Second       // for what is leased to come back, after the first look at all lanes
	leasedLooks = 200 * time.Millisecond // between two looks whether it has
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
	bound  int64
	restAt time.Time // not before then

	// Of one pass through the lane.
	key    string // where to go on
	place  int64
	left   int    // that a dead letter holds
	owner  string // that the lane has, or had
	leased int    // that are left for the owner's sake
}

// pass begins a pass.
func (w laneWork) pass() laneWork {
	return laneWork{lane: w.lane, bound: w.bound, restAt: w.restAt, place: math.MinInt64}
}

// changeLanes goes through the lanes in turns, so that none of their owners waits for long.
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
	var until time.Time
	for {
		var done []laneWork
		for len(lanes) > 0 {
			w := lanes[0]
			more, err := r.turn(ctx, f, &w, &rows, &p, &s, change)
			if err != nil {
				return p, fmt.Errorf("lane %d, after %d of %d: %w", w.lane, p.Changed, p.Total, manual.Explain(err))
			}
			if lanes = lanes[1:]; more {
				lanes = append(lanes, w)
			} else {
				done = append(done, w)
			}
			o.report(p)
		}
		again, err := r.leasedOf(ctx, f, done)
		if err != nil || len(again) == 0 {
			return p, err
		}
		switch now := r.now(); {
		case until.IsZero():
			until = now.Add(leasedWait)
		case !now.Before(until):
			return p, beingSent(f, again)
		}
		if err := r.rest(ctx, leasedLooks); err != nil {
			return p, fmt.Errorf("after %d of %d: %w", p.Changed, p.Total, err)
		}
		for _, w := range again {
			p.Left -= w.left
			lanes = append(lanes, w.pass())
		}
	}
}

// leasedOf are those lanes of a pass in which events are left for their owners' sake. An owner may have given back by now what it had leased
// when the pass came by.
func (r *Room) leasedOf(ctx context.Context, f Filter, lanes []laneWork) (some []laneWork, err error) {
	for _, w := range lanes {
		if w.owner == "" {
			continue
		}
		var n int
		if err := r.pool.QueryRow(ctx, r.sql.In(countLeft), w.lane, f.Topic, f.Key, w.bound).Scan(&n); err != nil {
			return nil, fmt.Errorf("count what is left in lane %d: %w", w.lane, manual.Explain(err))
		}
		if w.leased = n - w.left; w.leased > 0 {
			some = append(some, w)
		}
	}
	return some, nil
}

// beingSent says what was left because relays have leased it.
func beingSent(f Filter, lanes []laneWork) error {
	events, owners := 0, []string(nil)
	for _, w := range lanes {
		if events += w.leased; !slices.Contains(owners, w.owner) {
			owners = append(owners, w.owner)
		}
	}
	slices.Sort(owners)
	return fmt.Errorf("%w: %d of the topic %s, by the relays %q: try again, or pause the topic first. "+
		"If nothing is published, such a relay cannot reach the broker, waits for a call of its publisher, or is of an older build: stop it", ErrBeingSent, events, f.Topic, owners)
}

// lanesOf are the lanes in which something of a filter waits, and how many events that is together. None is an error.
func (r *Room) lanesOf(ctx context.Context, f Filter) (lanes []laneWork, total int, err error) {
	var bound int64
	if err := r.pool.QueryRow(ctx, r.sql.In(boundRelay)).Scan(&bound); err != nil {
		return nil, 0, fmt.Errorf("bound the places: %w", manual.Explain(err))
	}
	rows, err := r.pool.Query(ctx, r.sql.In(countRelay), f.Topic, f.Key)
	if err != nil {
		return nil, 0, fmt.Errorf("count them: %w", manual.Explain(err))
	}
	lanes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (laneWork, error) {
		w, n := laneWork{bound: bound}, 0
		err := row.Scan(&w.lane, &n)
		total += n
		return w.pass(), err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("count them: %w", manual.Explain(err))
	}
	if total == 0 {
		return nil, 0, f.notFound()
	}
	return lanes, total, nil
}

// paced is how many rows the next transaction changes after one of rows that took so long: the lane's owner waits meanwhile.
func paced(rows int, took time.Duration) int {
	switch {
	case took > turnTime:
		rows /= 2
	case took < turnTime/2:
		rows *= 2
	}
	return min(max(rows, turnRows/50), turnRows)
}

// turn changes one batch of a lane in a transaction, and says whether there may be more. If the lane has an owner the batch has so many
// paced rows.
func (r *Room) turn(ctx context.Context, f Filter, w *laneWork, pace *int, p *Progress, s *signature, change changeBatch) (more bool, err error) {
	if rest := w.restAt.Sub(r.now()); rest > 0 {
		if err := r.rest(ctx, rest); err != nil {
			return false, err
		}
	}
	var next laneWork
	var rows, changed int
	var owned bool
	var locked time.Time
	err = manual.Transact(ctx, r.pool, func(tx pgx.Tx) error {
		next, rows, changed, more = *w, 0, 0, false
		if err := r.lockLane(ctx, tx, w.lane); err != nil {
			return err
		}
		locked = r.now()
		owner, tells, err := r.ownerOf(ctx, tx, w.lane)
		if err != nil {
			return err
		}
		limit := turnRows
		if owned = owner != ""; owned {
			limit, next.owner = *pace, owner
		}
		if owned && !tells {
			return nil
		}
		var keys []string
		args := []any{w.lane, f.Topic, f.Key, w.key, w.place, w.bound, int32(limit), int64(turnBytes), owned}
		if err := change(ctx, tx, args).Scan(&rows, &changed, &more, &keys, &next.key, &next.place); err != nil {
			return fmt.Errorf("change them: %w", err)
		}
		if changed == 0 {
			return nil
		}
		if _, err := tx.Exec(ctx, r.sql.In(resumeRelay), w.lane, f.Topic, keys, next.key, next.place); err != nil {
			return fmt.Errorf("resume what comes after them: %w", err)
		}
		return r.sign(ctx, tx, s)
	})
	if err != nil {
		return false, err
	}
	s.kept = s.kept || changed > 0
	if owned {
		now := r.now()
		took := now.Sub(locked)
		next.restAt = now.Add(took)
		if rows == *pace || took > turnTime {
			*pace = paced(*pace, took)
		}
	}
	next.left += rows - changed
	*w = next
	p.Changed += changed
	p.Left += rows - changed
	return more, nil
}

// lockLane locks what is parked in a lane for the rest of the transaction. If this process freezes, the lane's owner does not wait for long.
func (r *Room) lockLane(ctx context.Context, tx pgx.Tx, lane int16) error {
	if _, err := tx.Exec(ctx, "set local idle_in_transaction_session_timeout = '2s'"); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, r.sql.In(lockLane), lane); err != nil {
		return fmt.Errorf("lock the lane: %w", err)
	}
	return nil
}

// ownerOf says who owns a lane, "" for nobody, and whether that one tells what it has leased. Whoever has let its lease run out owns it no more: what it
// still has in memory cannot be sent then.
func (r *Room) ownerOf(ctx context.Context, tx pgx.Tx, lane int16) (owner string, tells bool, err error) {
	for {
		var leased bool
		if err := tx.QueryRow(ctx, r.sql.In(readOwner), lane).Scan(&owner, &leased, &tells); err != nil {
			return "", false, fmt.Errorf("read the lane's owner: %w", err)
		}
		if leased || owner == "" {
			return owner, tells, nil
		}
		tag, err := tx.Exec(ctx, r.sql.In(disownLane), lane)
		if err != nil {
			return "", false, fmt.Errorf("take the lane from its owner: %w", err)
		}
		if tag.RowsAffected() == 1 {
			return "", false, nil
		}
	}
}
