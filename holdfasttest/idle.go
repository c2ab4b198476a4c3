package holdfasttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Defaults of Idle.
const (
	defaultAhead  = time.Minute
	defaultWithin = 30 * time.Second
)

// Idle says what WaitIdle waits for. The zero Idle works.
type Idle struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string

	// Consumers are the consumers that must be idle. One that the database does not know is: check the spelling. Defaults to all that have
	// stored events.
	Consumers []string

	// Topics are topics that all of Consumers read in this test. Every event of them in the log must have reached each
	// consumer, so that none is still on its way through Kafka. An event has reached a consumer when that has settled
	// or stored it. An event type that a running consumer does not handle is not waited for. Both sides must use one
	// database. A topic of which the log has no event is idle. Defaults to none: then WaitIdle knows nothing about events in Kafka.
	Topics []string

	// NoRelay excludes the producer's side: the log, the relay's parked events and scheduled events. Use it to test a consumer that
	// writes events without a relay that publishes them. Defaults to false.
	NoRelay bool

	// Ahead is how far ahead WaitIdle looks. It waits for a retry or a scheduled event that is due within this time,
	// but not for a later one. -1 counts only what is due now. Defaults to one minute.
	Ahead time.Duration

	// Within is the maximum time to wait; the context may end it earlier. -1 leaves it to the context. Defaults to 30
	// s.
	Within time.Duration
}

// WaitIdle waits until nothing is in progress. The relay has published every committed event of the log and saved its
// position. No parked or scheduled event is due, and no consumer has a stored event that is due. An event that waits
// because a dead letter holds its key counts as idle. WaitIdle only looks: without a relay, or an Inbox.Run, that does
// the work it waits in vain.
//
// When the time is up, the error lists by lane and by consumer what is still pending. It wraps
// context.DeadlineExceeded, or the error that ended ctx. WaitIdle reads the tables again and again, in one statement
// each time; use it in tests. Many goroutines may call it at once.
func WaitIdle(ctx context.Context, pool *pgxpool.Pool, c Idle) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("wait until idle: %w", err)
	}
	if c.Within == 0 {
		c.Within = defaultWithin
	}
	switch {
	case c.Ahead == 0:
		c.Ahead = defaultAhead
	case c.Ahead < 0:
		c.Ahead = 0
	}
	if c.Within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Within)
		defer cancel()
	}
	sql := sqlschema.In(c.Schema, pending)
	var last []string
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		left, err := c.look(ctx, pool, sql)
		switch {
		case err == nil && len(left) == 0:
			return nil
		case err == nil:
			last = left
		case ctx.Err() == nil:
			return fmt.Errorf("wait until idle: %w", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			if last == nil {
				return fmt.Errorf("wait until idle: %w before the database answered", ctx.Err())
			}
			return fmt.Errorf("wait until idle: %w; still pending:\n%s", ctx.Err(), strings.Join(last, "\n"))
		}
	}
}

func (i Idle) validate() error {
	var problems []error
	if err := sqlschema.Validate(i.Schema); err != nil {
		problems = append(problems, err)
	}
	if len(i.Topics) > 0 && len(i.Consumers) == 0 {
		problems = append(problems, fmt.Errorf("consumers is empty: it must name the consumers that read topics %q", i.Topics))
	}
	return errors.Join(problems...)
}

// look lists what is pending, one line each.
func (i Idle) look(ctx context.Context, pool *pgxpool.Pool, sql string) ([]string, error) {
	consumers, topics := i.Consumers, i.Topics
	if consumers == nil {
		consumers = []string{}
	}
	if topics == nil {
		topics = []string{}
	}
	rows, err := pool.Query(ctx, sql, consumers, topics, i.Ahead.Seconds(), !i.NoRelay)
	if err != nil {
		return nil, fmt.Errorf("look for what is pending: %w", err)
	}
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var who, what, example, why string
		var events int64
		var due *float64
		if err := row.Scan(&who, &events, &what, &example, &due, &why); err != nil {
			return "", err
		}
		line := fmt.Sprintf("  %s: %d %s, such as %s", who, events, what, example)
		switch {
		case due != nil && *due > 0:
			line += fmt.Sprintf("; due in %s", time.Duration(*due*float64(time.Second)).Round(time.Millisecond))
		case due != nil:
			line += "; due now"
		}
		if why != "" {
			why, _, _ = strings.Cut(why, "\n") // without the stack of a panic
			line += "; " + excerpt(why)
		}
		return line, nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for what is pending: %w", err)
	}
	return lines, nil
}
