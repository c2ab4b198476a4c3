package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

var (
	outboxWritten = counter("holdfast.outbox.written", "{event}", "Events that Write gave to the database; their transactions may still roll back", "topic")

	relayPublished = counter("holdfast.relay.published", "{event}", "Events that the broker acknowledged, repeats included", "topic")
	relayWaits     = counter("holdfast.relay.waits", "{event}", "Events that began to wait in a relay, by what for", "topic", "why")
	relayResumed   = counter("holdfast.relay.resumed", "{event}", "Events that were published after they had waited", "topic")
	relayDead      = counter("holdfast.relay.dead", "{event}", "Events that became dead letters", "topic")
	relayClaimed   = counter("holdfast.relay.claimed", "{lane}", "Lanes that were claimed")
	relayReleased  = counter("holdfast.relay.released", "{lane}", "Lanes that were released in an orderly way")
	relayLost      = counter("holdfast.relay.lost", "{lane}", "Lanes that were lost to another relay, or dropped to be claimed again")
	relayFenced    = counter("holdfast.relay.fenced", "{lane}", "Lanes that were lost because a write came too late and changed nothing")
	relayHeld      = counter("holdfast.relay.held", "{wait}", "Waits of a lane before it tries again", "fault")
	relayDelay     = histogram("holdfast.relay.retry.delay", "How long a topic or a partition waits before it is tried again", ofWork, "fault")
	relayLag       = histogram("holdfast.relay.lag", "From the time of an event to its acknowledgement, of the oldest event of each call of the broker", ofWaits)
	relaySaving    = histogram("holdfast.relay.saving", "How long a save of cursors took", ofWork)
	relayPoll      = histogram("holdfast.relay.poll", "How long a look at the log for all idle lanes took", ofWork, "found")
	relayPage      = histogram("holdfast.relay.page", "How long a page of the log took to read", ofWork)
	relayRead      = counter("holdfast.relay.read", "{event}", "Events that were read from the log")
	relayMoved     = counter("holdfast.relay.moved", "{event}", "Scheduled events that became due")
	relayReclaimed = counter("holdfast.relay.reclaimed", "{segment}", "Segments of the log that were checked, by result", "result")
)

// Outbox makes the Observer of an Outbox: events by topic, and how long writes take. An error means that an instrument could not be
// made.
func Outbox(meter Meter) (outbox.Observer, error) {
	m := maker{meter: meter}
	written, took := m.of(outboxWritten), m.of(operationDuration)
	if m.err != nil {
		return outbox.Observer{}, m.err
	}
	topics := &bounded{most: maxTopics, none: "unnamed", rest: "other"}
	return outbox.Observer{OnWrite: func(ctx context.Context, events []holdfast.Event) (map[string]string, func(error)) {
		begun := time.Now()
		return nil, func(err error) {
			took.record(ctx, time.Since(begun).Seconds(), systemHoldfast, "create", "", errorType(err))
			if err != nil {
				return
			}
			for from := 0; from < len(events); { // Most often all have one topic.
				topic, to := events[from].Topic, from
				for to < len(events) && events[to].Topic == topic {
					to++
				}
				written.record(ctx, float64(to-from), topics.name(topic))
				from = to
			}
		}
	}}, nil
}

// errorType is an error's class, "" for none.
func errorType(err error) string {
	if err == nil {
		return ""
	}
	return string(retry.Classify(err))
}

// Relay makes the Observer of a Relay. It counts events, by topic: published, that began to wait and by what for, published after they had
// waited, and given up. It counts calls of the broker by what it answered, lanes that were claimed, released, lost and fenced, waits by
// reason, scheduled events that became due, and segments that were checked, by result. Histograms have the lag of events, the duration
// of calls of the broker, looks at the log, pages and saves of cursors, and the delays before repeats. An error means that an instrument
// could not be made.
func Relay(meter Meter) (relay.Observer, error) {
	m := maker{meter: meter}
	sent, took := m.of(sentMessages), m.of(operationDuration)
	published, waits, resumed, dead := m.of(relayPublished), m.of(relayWaits), m.of(relayResumed), m.of(relayDead)
	claimed, released, lost, fenced := m.of(relayClaimed), m.of(relayReleased), m.of(relayLost), m.of(relayFenced)
	held, delay, lag, saving := m.of(relayHeld), m.of(relayDelay), m.of(relayLag), m.of(relaySaving)
	poll, page, read := m.of(relayPoll), m.of(relayPage), m.of(relayRead)
	moved, reclaimed := m.of(relayMoved), m.of(relayReclaimed)
	if m.err != nil {
		return relay.Observer{}, m.err
	}
	ctx := context.Background()
	topics := newTopicNames()
	one := func(s *series, values ...string) { s.record(ctx, 1, values...) }
	return relay.Observer{
		OnPublish: func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
			begun := time.Now()
			return ctx, func(errs []error) {
				topic, acknowledged, faults, first := topics.ofCall(p.Topic, errs), 0, map[string]int{}, ""
				for _, err := range errs {
					if err == nil { // as most often; FaultOf would allocate
						acknowledged++
						continue
					}
					fault := string(publish.FaultOf(err))
					faults[fault]++
					if first == "" {
						first = fault
					}
				}
				if acknowledged > 0 {
					sent.record(ctx, float64(acknowledged), p.System, "publish", topic, "")
				}
				for fault, n := range faults {
					sent.record(ctx, float64(n), p.System, "publish", topic, fault)
				}
				took.record(ctx, time.Since(begun).Seconds(), p.System, "publish", topic, first)
			}
		},
		OnPublished: func(_ int, events []holdfast.Event) {
			topic, oldest := events[0].Topic, events[0].Time
			counts := map[string]int{}
			n := 0
			for i := range events {
				e := &events[i]
				if !e.Time.IsZero() && (oldest.IsZero() || e.Time.Before(oldest)) {
					oldest = e.Time
				}
				if e.Topic == topic { // as in all calls of the relay
					n++
				} else {
					counts[e.Topic]++
				}
			}
			published.record(ctx, float64(n), topics.published.name(topic))
			for topic, n := range counts {
				published.record(ctx, float64(n), topics.published.name(topic))
			}
			if !oldest.IsZero() {
				lag.record(ctx, max(time.Since(oldest).Seconds(), 0))
			}
		},
		OnWaiting:  func(p relay.Waiting) { one(waits, topics.inTrouble(p.Event.Topic), p.Why) },
		OnResumed:  func(_ int, e holdfast.Event) { one(resumed, topics.published.name(e.Topic)) },
		OnDead:     func(d relay.DeadLettered) { one(dead, topics.inTrouble(d.Event.Topic)) },
		OnClaimed:  func(int, int64) { one(claimed) },
		OnReleased: func(int) { one(released) },
		OnLost: func(_ int, tooLate bool, _ error) {
			one(lost)
			if tooLate {
				one(fenced)
			}
		},
		OnHeld: func(h relay.Held) {
			one(held, string(h.Fault))
			delay.record(ctx, h.Wait.Seconds(), string(h.Fault))
		},
		OnPolled: func(_ int, found bool, took time.Duration) {
			poll.record(ctx, took.Seconds(), strconv.FormatBool(found))
		},
		OnRead: func(_, events int, took time.Duration) {
			page.record(ctx, took.Seconds())
			if events > 0 {
				read.record(ctx, float64(events))
			}
		},
		OnSaved:     func(_ int, took time.Duration) { saving.record(ctx, took.Seconds()) },
		OnMoved:     func(_, events int) { moved.record(ctx, float64(events)) },
		OnReclaimed: func(_ int, result string) { one(reclaimed, resultOf(result)) },
	}, nil
}

// resultOf is what became of a segment, without the reason of a refusal: that names transactions.
func resultOf(result string) string {
	switch result {
	case "emptied", "unread", "busy":
		return result
	}
	return "refused"
}
