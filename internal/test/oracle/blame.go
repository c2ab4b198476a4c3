package oracle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// blame adds the missing events, each with its known way and the process that had it last. It reads the history once, for
// those that are kept as examples.
func (b *book) blame(missed []missing, found *findings) {
	traces := map[string]*trace{}
	shown := map[Kind]int{}
	for _, m := range missed {
		if shown[m.kind()]++; shown[m.kind()] <= maxExamples {
			traces[b.Written[m.event].ID] = &trace{}
		}
	}
	if len(traces) > 0 {
		b.follow(traces)
	}
	for _, m := range missed {
		if t := traces[b.Written[m.event].ID]; t != nil {
			found.add(m.kind(), "%s", b.line(m, t))
		} else {
			found.of(m.kind()).Count++ // as many are not told
		}
	}
}

func (m missing) kind() Kind {
	if m.consumer == none {
		return Lost
	}
	return Missing
}

// trace is what the history says of one event.
type trace struct {
	intended, committed          *history.Entry
	claimed                      *history.Entry // the claim under which it was first published
	published                    []*history.Entry
	acknowledged, refused        *history.Entry
	received, effects, givenUpBy []*history.Entry
}

func (b *book) follow(traces map[string]*trace) {
	holding := map[Process]*history.Entry{} // its last claim
	for i := range b.Entries {
		e := &b.Entries[i]
		who := Process{e.Actor, e.PID}
		if e.Op == history.Claim {
			holding[who] = e
		}
		for _, id := range e.IDs {
			t := traces[id]
			if t == nil {
				continue
			}
			switch e.Op {
			case history.Intend:
				t.intended = e
			case history.Commit:
				t.committed = e
			case history.Publish:
				if len(t.published) == 0 {
					t.claimed = holding[who]
				}
				t.published = append(t.published, e)
			case history.Acknowledge:
				if e.How == history.OK {
					t.acknowledged = e
				} else {
					t.refused = e
				}
			case history.Receive:
				t.received = append(t.received, e)
			case history.Effect:
				t.effects = append(t.effects, e)
			case history.Letter:
				t.givenUpBy = append(t.givenUpBy, e)
			}
		}
	}
}

// line describes an event's way in one line, and ends with where it was last.
func (b *book) line(m missing, t *trace) string {
	var steps []string
	step := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	by := func(e *history.Entry) string { return fmt.Sprintf("by %s at %s", Process{e.Actor, e.PID}, clock(e.At)) }
	consumer, last := "", "its producer: nobody ever published it"
	if m.consumer != none {
		consumer = b.Consumers[m.consumer]
	}

	// 1. The producer.
	if t.intended == nil {
		step("intended by nobody")
	} else {
		step("intended %s", by(t.intended))
	}
	if t.committed == nil {
		step("COMMIT without a word")
	} else {
		step("COMMIT %s", t.committed.How)
	}
	// 2. The relay.
	if len(t.published) == 0 {
		step("never published")
	} else {
		under := ""
		if t.claimed != nil {
			under = fmt.Sprintf(", who claimed lane %d last, under epoch %d", t.claimed.Lane, t.claimed.Epoch)
		}
		step("published %d times, first %s%s", len(t.published), by(t.published[0]), under)
		last = "its relay: it was published and never acknowledged"
	}
	switch {
	case t.acknowledged != nil:
		step("acknowledged %s", by(t.acknowledged))
		last = "Kafka: it acknowledged the event and does not have it"
	case t.refused != nil:
		step("not acknowledged: %s %s %s", t.refused.How, t.refused.Text, by(t.refused))
	case len(t.published) > 0:
		step("never answered")
	}
	// 3. Kafka.
	if first := b.of[m.event].first; first == none {
		step("not in Kafka")
	} else {
		r := b.Records[first]
		step("in Kafka at offset %d of partition %d", r.Offset, r.Partition)
		last = "its consumer: nobody received it"
	}
	// 4. The consumer.
	if m.consumer != none {
		received := b.ofConsumer(t.received, consumer)
		for _, e := range received {
			step("received %s: %s", by(e), e.Text)
			last = "its consumer: somebody settled it without an effect"
		}
		if len(received) == 0 {
			step("never received")
		}
		if began := b.ofConsumer(t.effects, consumer); len(began) > 0 {
			step("a handler began %d times, first %s", len(began), by(began[0]))
		}
		step("no effect with %s", consumer)
	}
	for _, l := range b.letters[m.event] {
		step("letter %d is %s", l.ID, l.State)
	}
	for _, e := range t.givenUpBy {
		step("given up %s", by(e))
	}
	return fmt.Sprintf("%s: %s; last seen with %s", b.name(m.event), strings.Join(steps, "; "), last)
}

// ofConsumer are the entries of a consumer's processes, found by their names; all entries if no name fits.
func (b *book) ofConsumer(entries []*history.Entry, consumer string) []*history.Entry {
	names := func(e *history.Entry) bool {
		return slices.ContainsFunc(b.Consumers, func(c string) bool { return strings.Contains(e.Actor, c) })
	}
	var own []*history.Entry
	for _, e := range entries {
		if strings.Contains(e.Actor, consumer) || !names(e) {
			own = append(own, e)
		}
	}
	return own
}
