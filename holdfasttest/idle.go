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
	// Schema is the name that holdfast.Migrate was given. Defaults to "holdfast".
	Schema string

	// Consumers are those that must have nothing left to do. Defaults to all that have stored events.
	Consumers []string

	// Topics are those that all of Consumers read in this test: each must have taken in every event of them that is in
	// the log, so that none is on its way through Kafka. An event counts as taken in when the consumer has settled or
	// stored it; one whose type the consumer does not handle is not waited for once it runs. Both sides must be in one
	// database for that. Defaults to none: then WaitIdle knows nothing of what Kafka holds.
	Topics []string

	// NoRelay leaves the producer's side out: the log, what is parked and what is scheduled. It is for tests of a consumer
	// that writes events, without a relay that publishes them. Defaults to false.
	NoRelay bool

	// Ahead is how far into the future it looks: a retry or a scheduled event that falls due within it is waited for, a
	// later one is not. -1 counts only what is due now. Defaults to one minute.
	Ahead time.Duration

	// Within is how long to wait at most; the context may end it earlier. -1 leaves it to the context. Defaults to 30 s.
	Within time.Duration
}

// WaitIdle waits until nothing is under way any more: the relay has published every committed event of the log, and has
// saved that it did; nothing parked or scheduled is due; no consumer has anything stored that is due. What waits behind
// a dead letter that holds its key is at rest. Without a relay, or an Inbox.Run, for what there is to do it waits in
// vain: it only looks.
//
// When the time is up, the error says lane by lane and consumer by consumer what is still pending; it wraps
// context.DeadlineExceeded, or what ended ctx. It reads the tables in one statement again and again; use it in tests. It
// may be called from many goroutines at once.
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

func (c Idle) validate() error {
	var problems []error
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if len(c.Topics) > 0 && len(c.Consumers) == 0 {
		problems = append(problems, fmt.Errorf("topics are %q, but there are no consumers: name those that read them", c.Topics))
	}
	return errors.Join(problems...)
}

// look lists what is pending, a line each.
func (c Idle) look(ctx context.Context, pool *pgxpool.Pool, sql string) ([]string, error) {
	consumers, topics := c.Consumers, c.Topics
	if consumers == nil {
		consumers = []string{}
	}
	if topics == nil {
		topics = []string{}
	}
	rows, err := pool.Query(ctx, sql, consumers, topics, c.Ahead.Seconds(), !c.NoRelay)
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
			why, _, _ = strings.Cut(why, "\n") // a panic brings its stack along
			line += "; " + excerpt(why)
		}
		return line, nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for what is pending: %w", err)
	}
	return lines, nil
}
