package metrics

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

var (
	inboxEvents    = counter("holdfast.inbox.events", "{event}", "Events whose outcome is durable", "consumer", "outcome")
	inboxDuration  = histogram("holdfast.inbox.duration", "How long an event took, until its commit", ofWork, "consumer", "outcome")
	inboxLag       = histogram("holdfast.inbox.lag", "From the time of an event to the commit of its handler", ofWaits, "consumer")
	inboxDelay     = histogram("holdfast.inbox.retry.delay", "How long a failed event waits for its next attempt", ofWaits, "consumer")
	inboxDead      = counter("holdfast.inbox.dead", "{event}", "Events that became dead letters", "consumer")
	inboxConflicts = counter("holdfast.inbox.conflicts", "{event}", "Events whose id came a second time with another payload", "consumer")
	inboxFull      = counter("holdfast.inbox.full", "{event}", "Events refused at capacity; every attempt counts", "consumer")
	inboxHeld      = counter("holdfast.inbox.held", "{look}", "Looks at a partition that is held because its log does not hold the next offset", "consumer")
	inboxErased    = counter("holdfast.inbox.erased", "{event}", "Events that their handler did not get, because the key of their payload was erased", "consumer")
	inboxUnknown   = counter("holdfast.inbox.unknown.types", "{type}", "Topics and types whose events are skipped because no node handles them; the first event of each counts", "consumer")
	inboxCleaned   = counter("holdfast.inbox.cleaned.rows", "{row}", "Rows that retention removed", "consumer")
	inboxCleaning  = histogram("holdfast.inbox.cleaned", "How long a round of retention took", ofWork, "consumer")
	inboxHung      = counter("holdfast.inbox.hung", "{handler}", "Handlers that did not return in time and were abandoned", "consumer")
	inboxLeases    = counter("holdfast.inbox.leases.lost", "{event}", "Stored events that a worker finished after losing their lease: rolled back", "consumer")
	inboxFenced    = counter("holdfast.inbox.fenced", "{partition}", "Partitions that turned out to belong to another node", "consumer")
	inboxRevoked   = counter("holdfast.inbox.revoked", "{partition}", "Partitions that this node released", "consumer", "clean")
	inboxAssigned  = counter("holdfast.inbox.assigned", "{partition}", "Partitions that were assigned to this node", "consumer")
	inboxReread    = counter("holdfast.inbox.reread", "{offset}", "Offsets below the position that were read again", "consumer")
	inboxPoll      = histogram("holdfast.inbox.poll", "How long a look for stored events that are due took", ofWork, "consumer", "found")
	inboxSteps     = counter("holdfast.inbox.steps", "{step}", "Steps of handlers (inbox.Step), by result: done, known or failed", "consumer", "result")
	inboxErrors    = counter("holdfast.inbox.errors", "{error}", "Errors of the database or the broker that are retried", "consumer")
)

// Inbox makes the Observer of an Inbox. It counts events by outcome, runs of handlers, their steps, dead letters and conflicts, rows that retention
// removes, abandoned handlers, leases and partitions lost to others, repeated reads, and errors that are retried. Histograms have the
// duration of events and of handlers, the lag of events, the delays before retries, and looks for stored events. An error means that
// an instrument could not be made.
func Inbox(meter Meter, consumer string) (inbox.Observer, error) {
	m := maker{meter: meter}
	consumed, handling := m.of(consumedMessages), m.of(processDuration)
	events, took, lag, delays := m.of(inboxEvents), m.of(inboxDuration), m.of(inboxLag), m.of(inboxDelay)
	dead, conflicts, full, held := m.of(inboxDead), m.of(inboxConflicts), m.of(inboxFull), m.of(inboxHeld)
	erased, unknown, cleaned, cleaning := m.of(inboxErased), m.of(inboxUnknown), m.of(inboxCleaned), m.of(inboxCleaning)
	hung, leases, fenced, revoked := m.of(inboxHung), m.of(inboxLeases), m.of(inboxFenced), m.of(inboxRevoked)
	assigned, reread, poll, steps, errors := m.of(inboxAssigned), m.of(inboxReread), m.of(inboxPoll), m.of(inboxSteps), m.of(inboxErrors)
	if m.err != nil {
		return inbox.Observer{}, m.err
	}
	ctx := context.Background()
	topics := &bounded{most: maxTopics, none: "unnamed", rest: "other"}
	one := func(ctx context.Context, s *series) { s.record(ctx, 1, consumer) }
	lags := lag.with(consumer)
	return inbox.Observer{
		OnHandle: func(ctx context.Context, h inbox.Handling) (context.Context, func(error)) {
			begun := time.Now()
			return ctx, func(err error) {
				system, operation := cmp.Or(h.System, systemHoldfast), "process"
				if h.Attempt > 1 {
					operation = "retry"
				}
				topic, failure := topics.name(h.Events[0].Topic), errorType(err)
				consumed.record(ctx, float64(len(h.Events)), system, operation, topic, consumer, failure)
				handling.record(ctx, time.Since(begun).Seconds(), system, operation, topic, consumer, failure)
			}
		},
		OnStep: func(s inbox.Stepped) { steps.record(within(s.Context), 1, consumer, string(s.Result)) },
		OnReceive: func(r inbox.Received) {
			ctx, outcome := within(r.Context), string(r.Outcome)
			events.record(ctx, 1, consumer, outcome)
			took.record(ctx, r.Took.Seconds(), consumer, outcome)
			if r.Outcome == inbox.Handled && !r.Event.Time.IsZero() {
				lags(ctx, max(time.Since(r.Event.Time).Seconds(), 0))
			}
		},
		OnRetry:       func(r inbox.Retried) { delays.record(within(r.Context), r.Delay.Seconds(), consumer) },
		OnDead:        func(d inbox.DeadLettered) { one(within(d.Context), dead) },
		OnConflict:    func(holdfast.Event) { one(ctx, conflicts) },
		OnFull:        func(holdfast.Event, error) { one(ctx, full) },
		OnHeld:        func(inbox.Assignment, error) { one(ctx, held) },
		OnErased:      func(holdfast.Event) { one(ctx, erased) },
		OnUnknownType: func(_, _ string) { one(ctx, unknown) },
		OnHungHandler: func(holdfast.Event, int) { one(ctx, hung) },
		OnLeaseLost:   func(holdfast.Event) { one(ctx, leases) },
		OnFenced:      func(inbox.Assignment) { one(ctx, fenced) },
		OnRevoked: func(_ inbox.Assignment, clean bool) {
			revoked.record(ctx, 1, consumer, strconv.FormatBool(clean))
		},
		OnAssigned: func(inbox.Assignment, int64) { one(ctx, assigned) },
		OnReread:   func(_ inbox.Assignment, offsets int64) { reread.record(ctx, float64(offsets), consumer) },
		OnPolled: func(n int, d time.Duration) {
			poll.record(ctx, d.Seconds(), consumer, strconv.FormatBool(n > 0))
		},
		OnError: func(error) { one(ctx, errors) },
		OnCleaned: func(rows int, d time.Duration) {
			cleaned.record(ctx, float64(rows), consumer)
			cleaning.record(ctx, d.Seconds(), consumer)
		},
	}, nil
}

// within is the context of a measurement, in which an exemplar finds the span.
func within(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
