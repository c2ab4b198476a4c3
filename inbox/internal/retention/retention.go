// Package retention removes rows of the table inbox that nobody needs any more, with the recorded steps of their events, and counts of starts
// that nobody will ask for.
//
// A row may go when its event was settled longer than the window ago and its offset, if it has one, lies below the partition's
// position. So a record that Kafka delivers again is known by its row, or it lies below the position and is stale. A row stays
// while it says 'stored', and while it says 'dead' and a letter of the event is open.
package retention

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// Config configures a Loop.
type Config struct {
	Pool     *pgxpool.Pool
	Schema   string
	Consumer string
	Window   time.Duration // how long a row stays after its event was settled

	// Own has the windows of the sources that have one of their own.
	Own map[string]time.Duration

	Random func() float64

	Cleaned func(rows int, took time.Duration) // is told of rows that were removed; nil for nobody
	Failed  func(error)                        // is told of an error after which the loop goes on; it must be set
}

const (
	// daily is how often a node returns to the first row. A pass may have missed rows, because their transaction was open
	// for longer than the window or the clock was wrong. It comes no more often, and is not repeated after a failure, because it
	// reads the index entries of everything that has gone since the last vacuum.
	daily = 24 * time.Hour

	// startsKept is how long counted starts are kept at least: a process that dies may take its time to come back.
	startsKept = 24 * time.Hour

	// stepsKept is how long the steps of an event without a row are kept at least. Its process has died after them, and the topic may be read
	// again much later.
	stepsKept = 30 * 24 * time.Hour
)

// ErrNotOurTurn means that another node is removing rows, or that the next turn is not due.
var ErrNotOurTurn = errors.New("it is not our turn")

// Loop removes rows of one consumer.
type Loop struct {
	c   Config
	own []string // the sources of Config.Own, sorted
	sql statements
}

// New returns a Loop. It asks the database nothing.
func New(c Config) *Loop {
	own := slices.AppendSeq([]string{}, maps.Keys(c.Own)) // nil would be null, which equals nothing
	slices.Sort(own)
	return &Loop{c: c, own: own, sql: newStatements(c.Schema)}
}

// Run removes rows, turn by turn, until ctx ends. Any number of nodes may run it. The consumer's row in `retention` is
// the lock, the mark, and the time of the next turn, so that all nodes together do as much as one. A node that finds another
// one removing rows tries again later.
func (l *Loop) Run(ctx context.Context) error {
	every := passEvery(l.c.Window)
	idle := func() time.Duration { return time.Duration((0.75 + 0.5*l.c.Random()) * float64(every)) }
	limit, failures := firstLimit, 0
	wait := time.Duration(l.c.Random() * float64(time.Second)) // spreads nodes that start together
	nextWhole := time.Now().Add(time.Duration(l.c.Random() * float64(daily)))
	for {
		if loop.Sleep(ctx, wait) != nil {
			return nil
		}
		whole := time.Now().After(nextWhole)
		t, err := l.Turn(ctx, limit, whole)
		if whole && !errors.Is(err, ErrNotOurTurn) {
			nextWhole = time.Now().Add(daily)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrNotOurTurn):
			wait, failures = idle(), 0
			continue
		case err != nil:
			l.c.Failed(err)
			failures++
			wait = max(idle(), loop.Spread(loop.DatabaseBase, longestPause, failures, l.c.Random()))
			limit = max(limit/2, leastLimit) // The turn may have been too large.
			continue
		}
		limit, wait, failures = t.NextLimit, t.wait, 0
		if t.Removed > 0 && l.c.Cleaned != nil {
			l.c.Cleaned(t.Removed, t.took)
		}
		if whole {
			if err := l.Forget(ctx); err != nil && ctx.Err() == nil {
				l.c.Failed(err)
			}
		}
	}
}

// Turn is what a turn did, and when the next one should come.
type Turn struct {
	swept
	NextLimit int
	wait      time.Duration
}

// Turn reads up to limit rows from the mark on and removes those that may go, in one transaction. whole starts at the
// first row instead of the mark.
func (l *Loop) Turn(ctx context.Context, limit int, whole bool) (Turn, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	if _, err := l.c.Pool.Exec(ctx, l.sql.row, l.c.Consumer); err != nil {
		return Turn{}, fmt.Errorf("make retention row: %w", err)
	}
	var t Turn
	var begun time.Time
	err := pgx.BeginTxFunc(ctx, l.c.Pool, pgx.TxOptions{BeginQuery: l.sql.begin}, func(tx pgx.Tx) error {
		begun = time.Now() // Do not count the wait for a connection.
		// 1. Take the turn: lock the consumer's row, without waiting for it.
		var m mark
		var saved []byte
		err := tx.QueryRow(ctx, l.sql.take, l.c.Consumer, longestPause.Microseconds()).Scan(&m.from, &m.kept, &saved)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotOurTurn
		}
		if err != nil {
			return fmt.Errorf("take retention's turn: %w", err)
		}
		start, sources := m, map[string]time.Time{}
		if err := json.Unmarshal(saved, &sources); err != nil || sources == nil || whole {
			sources = map[string]time.Time{}
		}
		if whole {
			start = mark{}
		}
		// 2. Remove the rows.
		working := time.Now()
		s, err := l.sweep(ctx, tx, start.from, l.c.Window, limit, l.own, false)
		if err != nil {
			return err
		}
		next := start.after(s, len(l.own) > 0)
		if next.from == nil {
			next = m // There were no rows.
		}
		stuck := s.stuck(start.from)
		// Sources with a window of their own have what is left of the turn's time, each in turn the first.
		first := int(l.c.Random() * float64(len(l.own)))
		for i := range l.own {
			source := l.own[(first+i)%len(l.own)]
			if s.Read == limit || time.Since(working) > target {
				s.More = true
				break
			}
			var from *time.Time
			if at, begun := sources[source]; begun {
				from = &at
			}
			o, err := l.sweep(ctx, tx, from, l.c.Own[source], limit, []string{source}, true)
			if err != nil {
				return err
			}
			if o.last != nil {
				sources[source] = *o.last
			}
			stuck = stuck || o.stuck(from)
			s.Read, s.Removed, s.overdue = max(s.Read, o.Read), s.Removed+o.Removed, max(s.overdue, o.overdue)
		}
		s.took = time.Since(working)
		// 3. Save the mark, and when the next node may begin.
		t.swept = s
		t.NextLimit, t.wait = pace(s, stuck, l.c.Window)
		marks, err := json.Marshal(sources)
		if err != nil {
			return fmt.Errorf("save retention's mark: %w", err)
		}
		tag, err := tx.Exec(ctx, l.sql.save, l.c.Consumer, next.from, next.kept, t.wait.Microseconds(), string(marks))
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("%d rows", tag.RowsAffected())
		}
		if err != nil {
			return fmt.Errorf("save retention's mark: %w", err)
		}
		if s.Removed > 0 {
			failpoint.Hit(failpoint.InboxSweeping)
		}
		return nil
	})
	if err != nil {
		return Turn{}, err
	}
	if t.Removed > 0 {
		failpoint.Hit(failpoint.InboxSwept)
	}
	t.took = time.Since(begun) // With the commit: others may have waited for it.
	_, paced := pace(t.swept, false, l.c.Window)
	t.wait = max(t.wait, paced)
	return t, nil
}

// sweep reads up to limit rows from a mark on, and removes those that are older than window and may go: of the sources, or of all others.
func (l *Loop) sweep(ctx context.Context, tx pgx.Tx, from *time.Time, window time.Duration, limit int, sources []string, these bool) (swept, error) {
	s := swept{limit: limit}
	var overdue int64
	err := tx.QueryRow(ctx, l.sql.sweep, l.c.Consumer, from, window.Microseconds(), int32(limit), sources, these).
		Scan(&s.Read, &s.Removed, &s.last, &s.kept, &overdue)
	if err != nil {
		return s, fmt.Errorf("remove inbox rows: %w", err)
	}
	s.overdue = time.Duration(overdue) * time.Microsecond
	return s, nil
}

// Forget removes what belongs to events without a row in the inbox and was not asked for for long: counts of starts, for example because the
// partition was released before the handler ran, and recorded steps.
func (l *Loop) Forget(ctx context.Context) error {
	if _, err := l.remove(ctx, l.sql.starts, max(l.c.Window, startsKept).Microseconds()); err != nil {
		return fmt.Errorf("forget starts: %w", err)
	}
	for {
		n, err := l.remove(ctx, l.sql.steps, max(l.c.Window, stepsKept).Microseconds(), int32(mostSteps))
		if err != nil {
			return fmt.Errorf("forget steps: %w", err)
		}
		if n < mostSteps {
			return nil
		}
	}
}

// mostSteps is how many steps one transaction of Forget removes at most.
const mostSteps = 10000

// remove runs a statement of Forget in a transaction, and returns how many rows it has removed.
func (l *Loop) remove(ctx context.Context, sql string, args ...any) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, l.c.Pool, pgx.TxOptions{BeginQuery: l.sql.begin}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, append([]any{l.c.Consumer}, args...)...)
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}
