// Package retention removes rows of the table inbox that nobody needs any more, and counts of starts that nobody will ask for.
//
// A row may go when its event was settled longer than the window ago and its offset, if it has one, lies below the partition's
// position. So a record that Kafka delivers again is known by its row, or it lies below the position and is stale. A row stays
// while it says 'stored', and while it says 'dead' and a letter of the event is open.
package retention

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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

	// Own has the windows of sources that have one of their own. Source is the one of them whose rows this Loop removes; "" removes
	// those of all others. Each has a Loop: see Loops.
	Own    map[string]time.Duration
	Source string

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
)

// ErrNotOurTurn means that another node is removing rows, or that the next turn is not due.
var ErrNotOurTurn = errors.New("it is not our turn")

// Loop removes rows of one consumer, of one source or of all that have no Loop.
type Loop struct {
	c       Config
	sources []string // of Own
	sql     statements
	turns   *sync.Mutex // of all Loops of a node: together they use one connection
}

// New returns the Loop of c.Source. It asks the database nothing.
func New(c Config) *Loop {
	sources := slices.AppendSeq([]string{}, maps.Keys(c.Own)) // nil would be null, which equals nothing
	if c.Source != "" {
		c.Window, sources = c.Own[c.Source], []string{c.Source}
	}
	return &Loop{c: c, sources: sources, sql: newStatements(c.Schema), turns: new(sync.Mutex)}
}

// Loops returns the Loop of the sources without a window of their own, and then that of each that has one.
func Loops(c Config) []*Loop {
	loops := []*Loop{New(c)}
	for _, source := range slices.Sorted(maps.Keys(c.Own)) {
		c.Source = source
		l := New(c)
		l.turns = loops[0].turns
		loops = append(loops, l)
	}
	return loops
}

// Run removes rows, turn by turn, until ctx ends. Any number of nodes may run it. The Loop's row in `retention` is
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
		if whole {
			nextWhole = time.Now().Add(daily)
		}
		t, err := l.Turn(ctx, limit, whole)
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
		if whole && l.c.Source == "" {
			if err := l.ForgetStarts(ctx); err != nil && ctx.Err() == nil {
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
	l.turns.Lock()
	defer l.turns.Unlock()
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	if _, err := l.c.Pool.Exec(ctx, l.sql.row, l.c.Consumer, l.c.Source); err != nil {
		return Turn{}, fmt.Errorf("make retention row: %w", err)
	}
	var t Turn
	var begun time.Time
	err := pgx.BeginTxFunc(ctx, l.c.Pool, pgx.TxOptions{BeginQuery: l.sql.begin}, func(tx pgx.Tx) error {
		begun = time.Now() // Do not count the wait for a connection.
		// 1. Take the turn: lock the row, without waiting for it.
		var m mark
		err := tx.QueryRow(ctx, l.sql.take, l.c.Consumer, l.c.Source, longestPause.Microseconds()).Scan(&m.from, &m.kept)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotOurTurn
		}
		if err != nil {
			return fmt.Errorf("take retention's turn: %w", err)
		}
		start := m
		if whole {
			start = mark{}
		}
		// 2. Remove the rows.
		s := swept{limit: limit}
		working := time.Now()
		var overdue int64
		err = tx.QueryRow(ctx, l.sql.sweep, l.c.Consumer, start.from, l.c.Window.Microseconds(), int32(limit), l.sources, l.c.Source != "").
			Scan(&s.Read, &s.Removed, &s.last, &s.kept, &overdue)
		if err != nil {
			return fmt.Errorf("remove inbox rows: %w", err)
		}
		s.overdue, s.took = time.Duration(overdue)*time.Microsecond, time.Since(working)
		// 3. Save the mark, and when the next node may begin.
		t.swept = s
		t.NextLimit, t.wait = pace(s, start.from, l.c.Window)
		next := start.after(s)
		if next.from == nil {
			next = m // There were no rows.
		}
		tag, err := tx.Exec(ctx, l.sql.save, l.c.Consumer, l.c.Source, next.from, next.kept, t.wait.Microseconds())
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
	_, paced := pace(t.swept, nil, l.c.Window)
	t.wait = max(t.wait, paced)
	return t, nil
}

// ForgetStarts removes counts of starts that nobody asked for again, for example because the partition was released before the
// handler ran. The table holds few rows at any time.
func (l *Loop) ForgetStarts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, l.c.Pool, pgx.TxOptions{BeginQuery: l.sql.begin}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, l.sql.starts, l.c.Consumer, max(l.c.Window, startsKept).Microseconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("forget starts: %w", err)
	}
	return nil
}
