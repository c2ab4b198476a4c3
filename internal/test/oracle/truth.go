package oracle

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// cursorTruth is O7: whatever a saved cursor called published was somewhere at that moment. It finds a loss while the
// event could still be read, before its segment is emptied.
func cursorTruth(b *book, found *findings) {
	for _, s := range b.Cursors {
		for _, id := range s.Missing {
			what := id
			if n := b.event(id); n != none {
				what = b.name(n)
			}
			found.add(SkippedByCursor, "%s, at %s", what, clock(s.At))
		}
	}
}

// honestErrors is O9: a COMMIT that was answered is there, one that was refused is not, and one without an answer is
// there as a whole or not at all. An id that a later COMMIT wrote does not accuse an earlier one that failed. An event that
// a consumer calls handled has had its effect by then. No relay begins to send an event after a person was told that it is given up.
func honestErrors(b *book, found *findings) {
	handledWhenSaid(b, found)
	givenUpWhenSaid(b, found)
	for i := range b.Entries {
		e := &b.Entries[i]
		if e.Op != history.Intend && e.Op != history.Commit {
			continue
		}
		there, absent := 0, ""
		for _, id := range e.IDs {
			if b.event(id) != none {
				there++
			} else {
				absent = id
			}
		}
		switch {
		case e.Op == history.Commit && e.How == history.OK && absent != "":
			found.add(FalseOK, "%s, %d of %d events: %s at %s", absent, len(e.IDs)-there, len(e.IDs), e.Actor, clock(e.At))
		case e.Op == history.Commit && e.How == history.Failed:
			for _, id := range e.IDs {
				if n := b.event(id); n != none && !b.of[n].answered {
					found.add(FalseFailure, "%s: %s at %s says %q", b.name(n), e.Actor, clock(e.At), e.Text)
				}
			}
		case e.How != history.OK && there > 0 && absent != "":
			found.add(Halved, "%d of %d events are there, %s is not: %s at %s", there, len(e.IDs), absent, e.Actor, clock(e.At))
		}
	}
}

// handledWhenSaid looks for events that were called handled before any effect of theirs was written. If a consumer's effect
// is missing it says nothing: that is for O1, which knows the consumer.
func handledWhenSaid(b *book, found *findings) {
	type effects struct {
		first time.Time // zero where the time of one is not known
		n     int
	}
	of := map[int32]effects{}
	for i, e := range b.effects {
		if e.event == none {
			continue
		}
		known, at := of[e.event], b.Effects[i].At
		if known.n == 0 || at.Before(known.first) {
			known.first = at
		}
		known.n++
		of[e.event] = known
	}
	for i := range b.Entries {
		e := &b.Entries[i]
		if e.Op != history.Receive || e.Text != "handled" {
			continue
		}
		for _, id := range e.IDs {
			n := b.event(id)
			if known := of[n]; known.n >= len(b.Consumers) && e.At.Before(known.first) {
				found.add(SaidTooEarly, "%s: %s said so at %s, and the effect was written at %s", b.name(n), e.Actor, clock(e.At), clock(known.first))
			}
		}
	}
}

// givenUpWhenSaid looks for events that a relay began to send after a person's command had given them up, and had said that it was
// done. What was under way by then may still arrive. A letter that was replayed is sent again, as it must be, and all that is in the log is
// when a restored copy is adopted.
func givenUpWhenSaid(b *book, found *findings) {
	done := map[string]time.Time{} // commands
	for i := range b.Entries {
		e := &b.Entries[i]
		switch {
		case e.Op == history.Decide && e.How == history.OK:
			done[e.Text] = e.At
		case e.Op != history.Publish || len(done) == 0 || b.undone(e.At):
			continue
		}
		for _, id := range e.IDs {
			n := b.event(id)
			for _, l := range b.letters[n] {
				at, told := done[l.Command]
				if told && l.Consumer == "" && (l.State == Open || l.State == Discarded) && !b.adoptedLast(none, e.At).After(at) {
					found.add(SentAfter, "%s: %s began at %s, and the command %q was done at %s", b.name(n), e.Actor, clock(e.At), l.Command, clock(at))
				}
			}
		}
	}
}

// failures says of ids that are not in Written how their COMMIT went, for people.
func (b *book) failures() map[string]string {
	said := map[string]string{}
	for i := range b.Entries {
		e := &b.Entries[i]
		if e.Op != history.Intend && e.Op != history.Commit {
			continue
		}
		for _, id := range e.IDs {
			if b.event(id) != none {
				continue
			}
			switch {
			case e.Op == history.Intend && said[id] == "":
				said[id] = "; " + e.Actor + " was about to commit it, and said no more"
			case e.Op == history.Commit:
				said[id] = "; its COMMIT by " + e.Actor + " was " + string(e.How)
			}
		}
	}
	return said
}

// clock is the time of day: a run is shorter than that.
func clock(at time.Time) string { return at.UTC().Format("15:04:05.000") }

// adoptedLast is when a restored copy was adopted last before a moment, as the log of a lane says, or of any if it is not known; zero if none
// was.
func (b *book) adoptedLast(lane int32, until time.Time) (last time.Time) {
	for _, c := range b.adoptions {
		if (lane == none || lane == int32(c.Lane)) && c.At.Before(until) && c.At.After(last) {
			last = c.At
		}
	}
	return last
}
