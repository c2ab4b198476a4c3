package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Health is what a probe wants to know of an inbox.
type Health struct {
	// Live says that the process should go on. It is false if Run, Consume or ConsumeUntil has returned an error, as they do when too many
	// handlers hang: then only a new process helps.
	Live bool

	// Ready says that events are handled. It is false while Postgres or the broker cannot be reached, before this node has joined the
	// consumer group, while a partition has waited for memory for long, and after Run, Consume or ConsumeUntil.
	Ready bool

	// Reasons says why it is not live or not ready, a sentence each. They have no payloads and no secrets.
	Reasons []string

	// Backfill is the progress of ConsumeUntil, while it runs and after it; nil otherwise. It does not make the inbox live or ready.
	Backfill *Progress
}

// Health says whether the inbox works. While Run, Consume or ConsumeUntil runs it looks only at what their loops saw last, so it answers at once,
// also while the database or the broker is away. An inbox that only receives (Receive) has no loops: for it the database is asked
// whether the schema fits, for two seconds at most. Many goroutines may ask.
//
// A restart brings neither Postgres nor the broker back, so their outages leave the inbox live. Events that wait, and partitions that
// are held, do not count: holdfast status shows them.
func (in *Inbox) Health(ctx context.Context) Health {
	seen := in.vitals.read()
	if !seen.begun {
		ctx, cancel := context.WithTimeout(ctx, healthTimeout)
		defer cancel()
		seen.schema = sqlschema.Fits(ctx, in.pool, in.c.Schema)
	}
	h := judgeHealth(seen, time.Now())
	h.Backfill = seen.backfill
	return h
}

const (
	// healthTimeout bounds the question to the database.
	healthTimeout = 2 * time.Second

	// awayAfter is how long the database or the broker is away before the inbox is not ready. A lost connection is no outage.
	awayAfter = 5 * time.Second

	// starvedAfter is how long a partition waits for memory before the inbox is not ready. Slow handlers behind a backlog make it wait,
	// and that is well: the memory comes as they end, and by default none runs for more than 30 s.
	starvedAfter = time.Minute

	// joinAfter is how long joining the group again may take. Each rebalance does it.
	joinAfter = 30 * time.Second
)

// judgeHealth decides what a probe gets.
func judgeHealth(s seen, now time.Time) Health {
	switch {
	case !s.begun && s.schema != nil:
		return Health{Live: true, Reasons: []string{"the database does not answer, or its schema does not fit: " + loggedError(s.schema)}}
	case !s.begun:
		return Health{Live: true, Ready: true}
	case s.ended && s.endedWith != nil:
		return Health{Reasons: []string{"the inbox has ended: " + loggedError(s.endedWith)}}
	case s.ended:
		return Health{Live: true, Reasons: []string{"the inbox has stopped"}}
	}
	h := Health{Live: true}
	lasts := func(o outage) bool { return !o.since.IsZero() && now.Sub(o.since) >= awayAfter }
	switch {
	case lasts(s.away):
		h.Reasons = append(h.Reasons, fmt.Sprintf("the database has not answered for %s: %s", now.Sub(s.away.since).Round(time.Second), loggedError(s.away.why)))
	case !s.reached:
		h.Reasons = append(h.Reasons, "the inbox has not reached the database yet")
	}
	if lasts(s.broker) {
		h.Reasons = append(h.Reasons, fmt.Sprintf("the broker has not answered for %s: %s", now.Sub(s.broker.since).Round(time.Second), loggedError(s.broker.why)))
	}
	switch waited := now.Sub(s.joining); {
	case !s.consuming || s.joined:
	case !s.everIn:
		h.Reasons = append(h.Reasons, "this node has not joined the consumer group yet")
	case waited >= joinAfter:
		h.Reasons = append(h.Reasons, fmt.Sprintf("this node has been joining the consumer group for %s", waited.Round(time.Second)))
	}
	if waited := now.Sub(s.starvedSince); !s.starvedSince.IsZero() && waited >= starvedAfter {
		h.Reasons = append(h.Reasons, fmt.Sprintf("partition %d of %s has waited for memory for %s: events that are not settled take all of it: see what they wait for (holdfast status), or raise MemoryBudget",
			s.starved.Partition, s.starved.Topic, waited.Round(time.Second)))
	}
	h.Ready = len(h.Reasons) == 0
	return h
}
