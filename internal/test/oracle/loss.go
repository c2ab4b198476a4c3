package oracle

import (
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// noLoss is O1: every event that was committed is in Kafka, and has an effect with every consumer; or it is a letter, or
// waits. A COMMIT without an answer counts by its effect. So committed = effects + letters + discarded + pending, for
// each consumer; O8 checks that nothing is pending.
func noLoss(b *book, found *findings) {
	done := make([][]bool, len(b.Consumers))
	for c := range done {
		done[c] = make([]bool, len(b.Written))
	}
	for _, e := range b.effects {
		if e.event != none && e.consumer != none {
			done[e.consumer][e.event] = true
		}
	}
	var missed []missing
	for i := range b.of {
		n := int32(i)
		if b.events[b.Written[i].ID] != n {
			continue // a second row of the same event
		}
		for _, l := range b.letters[n] {
			if !b.due(l) && !b.besideEffect(l) {
				found.add(Undue, "%s: letter %d of %s says %q", b.name(n), l.ID, giver(l), l.Reason)
			}
		}
		if b.of[i].copies == 0 {
			if b.excused(n, "") {
				continue // and no consumer has to have handled it
			}
			missed = append(missed, missing{n, none})
		}
		for c, name := range b.Consumers {
			if !done[c][i] {
				if !b.excused(n, name) {
					missed = append(missed, missing{n, int32(c)})
				}
				continue
			}
			for _, l := range b.letters[n] {
				if l.Consumer == name && (l.State == Open || l.State == Discarded) && !b.besideEffect(l) {
					found.add(GivenUp, "%s had its effect with %s, and letter %d says %q", b.name(n), name, l.ID, l.Reason)
				}
			}
		}
	}
	b.blame(missed, found)
	triedEnough(b, found)
}

// triedEnough is the part of O1 that counts attempts: a consumer gives an event up only after Limits.Tries.
func triedEnough(b *book, found *findings) {
	if b.Limits.Tries == 0 || len(b.Entries) == 0 {
		return
	}
	type story struct {
		tries       int
		begun, over time.Time // from its producer's intent until a letter of it was said
	}
	stories := map[int32]*story{}
	for n, letters := range b.letters {
		if slices.ContainsFunc(letters, func(l Letter) bool { return l.Consumer != "" && l.Command == "" && b.due(l) && !b.besideEffect(l) }) {
			stories[n] = &story{over: b.Entries[len(b.Entries)-1].At}
		}
	}
	ends := map[Process]time.Time{}
	for _, e := range b.Entries {
		ends[Process{e.Actor, e.PID}] = e.At
		for _, id := range e.IDs {
			switch s := stories[b.event(id)]; {
			case s == nil:
			case e.Op == history.Intend:
				s.begun = e.At
			case e.Op == history.Effect:
				s.tries++
			case e.Op == history.Letter:
				s.over = e.At
			}
		}
	}
	for i := range b.Written {
		n := int32(i)
		s := stories[n]
		if s == nil || b.events[b.Written[i].ID] != n {
			continue
		}
		cost := 0
		for _, o := range b.outages {
			if !o.from.After(s.over) && (o.recovered.IsZero() || !o.recovered.Before(s.begun)) {
				cost++
			}
		}
		for _, p := range b.Killed {
			if end := ends[p]; !end.Before(s.begun) && !end.After(s.over) {
				cost++
			}
		}
		if s.tries+cost < b.Limits.Tries {
			found.add(TooSoon, "%s was begun %d times, must be %d times, and no more than %d of them may have been lost", b.name(n), s.tries, b.Limits.Tries, cost)
		}
	}
}

// missing is an event that is not in Kafka (then consumer is none), or not handled by a consumer.
type missing struct{ event, consumer int32 }

// excused says whether an event need not have arrived with a consumer, or in Kafka (""). A letter of a repeat is no excuse:
// the event itself has its effect, or a letter of its own.
func (b *book) excused(n int32, consumer string) bool {
	if b.waiting[waitingAt{consumer, n}] {
		return true
	}
	for _, l := range b.letters[n] {
		if l.Consumer == consumer && l.State != Replayed && b.due(l) && !b.besideEffect(l) {
			return true
		}
	}
	return false
}

// besideEffect says whether a letter is of a repeat rather than of the event itself.
func (b *book) besideEffect(l Letter) bool {
	for _, beginning := range b.Limits.BesideEffects {
		if strings.HasPrefix(l.Reason, beginning) {
			return true
		}
	}
	return false
}

// due says whether an event may be given up by the process, or the person, that wrote the letter.
func (b *book) due(l Letter) bool {
	if b.Limits.MayDie == nil || l.Command != "" {
		return true
	}
	n := b.event(l.EventID)
	return l.Consumer != "" && n != none && slices.Contains(b.Limits.MayDie, b.Written[n].Type)
}

func giver(l Letter) string {
	if l.Consumer == "" {
		return "a relay"
	}
	return l.Consumer
}

// givenUp says whether a relay or the consumer gave an event up, whatever became of the letter: its place in its key's order
// is lost. That is so even if the letter was not due.
func (b *book) givenUp(n int32, consumer string) bool {
	for _, l := range b.letters[n] {
		if (l.Consumer == "" || l.Consumer == consumer) && b.due(l) && !b.besideEffect(l) {
			return true
		}
	}
	return false
}

// noGhost is O2: whatever is in Kafka, had an effect or became a letter was committed, has the topic, key and content that
// were written, and had no effect before it was due.
func noGhost(b *book, found *findings) {
	var said map[string]string
	outcome := func(id string) string { // asked for rarely: most runs have no ghosts
		if said == nil {
			said = b.failures()
		}
		return said[id]
	}
	for i, r := range b.Records {
		n := b.records[i]
		if n == none {
			found.add(Ghosts, "%s of key %q, offset %d of partition %d of topic %s%s", r.ID, r.Key, r.Offset, r.Partition, r.Topic, outcome(r.ID))
		} else if w := b.Written[n]; w.Topic != r.Topic || w.Key != r.Key {
			found.add(Altered, "%s is in topic %s with key %q, offset %d of partition %d", b.name(n), r.Topic, r.Key, r.Offset, r.Partition)
		} else if differ(w.Content, r.Content) {
			found.add(Altered, "%s has another payload, type or headers, offset %d of partition %d", b.name(n), r.Offset, r.Partition)
		}
	}
	for i, e := range b.Effects {
		n := b.effects[i].event
		if n == none {
			found.add(Phantoms, "%s of key %q had an effect with %s%s", e.ID, e.Key, e.Consumer, outcome(e.ID))
		} else if b.Written[n].Key != e.Key {
			found.add(Altered, "%s had an effect with %s under key %q", b.name(n), e.Consumer, e.Key)
		} else if differ(b.Written[n].Content, e.Content) {
			found.add(Altered, "%s came to %s with another payload, type or headers", b.name(n), e.Consumer)
		} else if due := b.Written[n].Due; due != nil && !e.At.IsZero() && e.At.Before(*due) {
			found.add(Hurried, "%s was done by %s at %s, and was not due before %s", b.name(n), e.Consumer, clock(e.At), clock(*due))
		}
	}
	for _, l := range b.stray {
		found.add(Phantoms, "letter %d is of %s%s", l.ID, l.EventID, outcome(l.EventID))
	}
}

// differ says whether two contents that are known are not the same.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// effectOnce is O3: no event had more than one effect with one consumer.
func effectOnce(b *book, found *findings) {
	first := make([][]int32, len(b.Consumers)) // the first effect's place and 1, by event
	for c := range first {
		first[c] = make([]int32, len(b.Written))
	}
	for i, e := range b.effects {
		if e.event == none || e.consumer == none {
			continue
		}
		if before := first[e.consumer][e.event]; before != 0 {
			found.add(Doubles, "%s with %s: effects %d and %d of all", b.name(e.event), b.Consumers[e.consumer], before, i+1)
			continue
		}
		first[e.consumer][e.event] = int32(i) + 1
	}
}
