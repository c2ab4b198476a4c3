package oracle

import (
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/history"
)

// Explanation is why an event was published again, so that Kafka has it twice.
type Explanation string

// The reasons for a duplicate. If more than one is true, the first of this list counts.
const (
	// AfterAdoption: the cursor of its lane began anew between the two, because a restored copy was adopted
	// (LaneChange.Adopted): what the copy does not know is sent again. A copy may have an event in more rows than one: in the log, and parked;
	// or in the log twice, if a person had redirected it. Each of its rows is sent.
	AfterAdoption Explanation = "sent again after a restored copy was adopted"
	// HandedBack: by another owner of the lane, or under a later claim, although the one before had handed the lane back in
	// order after the acknowledgement. A hand-over saves the cursor first. So this needs a save that failed, or a page that
	// was not acknowledged completely when the relay stopped.
	HandedBack Explanation = "sent again after the lane was handed back in order"
	// OtherProcess: the process that published it first ended, or lost the lane, before its cursor was saved.
	OtherProcess Explanation = "sent again by another process"
	// ClaimedAgain: the same process had dropped the lane in doubt.
	ClaimedAgain Explanation = "sent again under a later claim of its lane"
	// LetterReplayed: a person replayed its letter although it had arrived.
	LetterReplayed Explanation = "sent again because its letter was replayed"
	// Unanswered: the publications before this one have no known result. One that the broker refused excuses nothing: it
	// made no record.
	Unanswered Explanation = "sent again because it was not acknowledged"
)

var explanations = []Explanation{AfterAdoption, HandedBack, OtherProcess, ClaimedAgain, LetterReplayed, Unanswered}

// duplicates is O5: every record of an event beyond its first has a publication of its own that had a reason. There
// is no reason for a relay to publish an event whose acknowledgement it still remembers, or that the cursor of its claim
// calls published, or whose answer it does not wait for; nor for a record that nobody published. A relay must not go on for
// long without saving what was acknowledged (Limits.Unsaved), so that little is lost with it. A run without a fault has no
// duplicate at all.
func duplicates(b *book, found *findings, figures *Figures) {
	if len(b.Entries) == 0 {
		return // nobody said anything: where that is not as it should be, Evidence has it
	}
	suspects := map[string]*suspect{}
	for i, e := range b.of {
		if e.copies > 1 {
			w := b.Written[i]
			s := &suspect{event: int32(i), lane: none}
			if b.Lanes > 0 {
				s.lane = int32(lane.Of(w.Key, w.ID, b.Lanes))
			}
			suspects[w.ID] = s
		}
	}
	if len(suspects) == 0 {
		return
	}
	for _, p := range b.Parked {
		if s := suspects[p.ID]; s != nil {
			s.parked = true
			s.rows = append(s.rows, p.At)
		}
	}
	for _, r := range b.Removed {
		if s := suspects[r.ID]; s != nil {
			s.rows = append(s.rows, r.At)
		}
	}
	b.question(suspects)

	reasons := map[Explanation]int{}
	for i, e := range b.of { // in the order of Written, so that the same run has the same examples
		if e.copies < 2 {
			continue
		}
		n := int32(i)
		extra := int(e.copies) - 1
		if len(b.outages) == 0 {
			found.add(Unprovoked, "%s is in Kafka %d times", b.name(n), e.copies)
		}
		s := suspects[b.Written[i].ID]
		repeats := s.repeats()
		for _, t := range repeats[:min(extra, len(repeats))] {
			reasons[t.reason]++
		}
		if without := extra - len(repeats); without > 0 {
			found.add(Unexplained, "%s is in Kafka %d times, and %d of its %d publications had a reason to be repeats", b.name(n), e.copies, len(repeats), len(s.tries))
		}
		for _, t := range repeats {
			if t.unsaved > b.Limits.Unsaved && !s.parked {
				found.add(TooLate, "%s, %s by %s at %s: nothing kept who had it acknowledged from saving that for %s, allowed are %s", b.name(n), t.reason, t.by, clock(t.at), t.unsaved.Round(time.Millisecond), b.Limits.Unsaved)
			}
		}
	}
	for _, reason := range explanations {
		count := reasons[reason]
		if count == 0 {
			continue
		}
		figures.ByReason = append(figures.ByReason, ReasonCount{reason, count})
		if most, bounded := b.Limits.Duplicates[reason]; bounded && count > most {
			found.add(TooMany, "%d were %s, allowed are %d", count, reason, most)
		}
	}
}

// suspect is an event that is in Kafka more than once, with its publications and the reasons of those that had one.
type suspect struct {
	event  int32
	lane   int32       // none: not known
	parked bool        // it was once: then it has a time of its own at which it is tried again
	rows   []time.Time // when it got or lost a row beside that in the log: it was parked, or a person took it out of there
	tries  []try
}

// repeats are the publications that may have made a record beyond the first, and had a reason to be made.
func (s *suspect) repeats() (some []try) {
	first := true
	for _, t := range s.tries {
		if t.refused {
			continue
		}
		if !first && t.reason != "" {
			some = append(some, t)
		}
		first = false
	}
	return some
}

// rowsBefore is in how many rows beside that in the log a copy may have it that was adopted then.
func (s *suspect) rowsBefore(adopted time.Time) (n int) {
	for _, at := range s.rows {
		if at.Before(adopted) {
			n++
		}
	}
	return n
}

// sentSince is how often it has been published since.
func (s *suspect) sentSince(adopted time.Time) (n int) {
	for _, t := range s.tries {
		if !t.at.Before(adopted) && !t.refused {
			n++
		}
	}
	return n
}

// try is one publication of an event.
type try struct {
	at       time.Time
	by       Process
	claims   int  // of the lane by this process until then
	arrived  bool // it was acknowledged
	refused  bool // the broker said that it did not take it
	answered bool
	ended    time.Time     // when it was answered
	handed   int           // how often this process had handed the lane back when it was acknowledged
	reason   Explanation   // "" where it had none to be a repeat
	unsaved  time.Duration // how long another, to whom it had been acknowledged, could have saved that and did not, without a fault
}

// question goes through the history once and looks for the reason of each publication of a suspect.
func (b *book) question(suspects map[string]*suspect) {
	type hold struct {
		by   Process
		lane int32
	}
	claims, handed, under := map[hold]int{}, map[hold]int{}, map[hold]int64{}
	begun, places, troubles := b.claimed(), b.placed(suspects), b.troubles()
	for i := range b.Entries {
		e := &b.Entries[i]
		who := Process{e.Actor, e.PID}
		switch e.Op {
		case history.Claim:
			claims[hold{who, int32(e.Lane)}]++
			claims[hold{who, none}]++
			under[hold{who, int32(e.Lane)}] = e.Epoch
		case history.Lose:
			if e.How == history.OK {
				handed[hold{who, int32(e.Lane)}]++ // not for lane none: whose lane it was is not known
			}
		case history.Publish:
			for _, id := range e.IDs {
				s := suspects[id]
				if s == nil {
					continue
				}
				now := try{at: e.At, by: who, claims: claims[hold{who, s.lane}]}
				if len(s.tries) > 0 {
					reason := s.why(now, func(t try) bool { return handed[hold{t.by, s.lane}] > t.handed }, func(t try) bool {
						return b.adoptedLast(s.lane, now.at).After(t.at)
					})
					if reason == "" && b.replayed(s.event) {
						reason = LetterReplayed
					}
					if at, known := places[id]; known && s.lane != none && !b.undone(now.at) && begun[claimed{int(s.lane), under[hold{who, s.lane}]}].covers(at) {
						reason = ""
					}
					if adopted := b.adoptedLast(s.lane, now.at); reason == "" && s.sentSince(adopted) <= s.rowsBefore(adopted) {
						reason = AfterAdoption
					}
					now.reason = reason
					if reason == HandedBack || reason == OtherProcess || reason == ClaimedAgain {
						at, by := s.acknowledged()
						until := now.at
						if died, killed := b.KilledAt[by]; killed && died.Before(until) {
							until = died // What others take to go on is not a time in which it could have been saved.
						}
						now.unsaved = calm(troubles, by, at, until)
					}
				}
				s.tries = append(s.tries, now)
			}
		case history.Acknowledge:
			for _, id := range e.IDs {
				s := suspects[id]
				if s == nil {
					continue
				}
				for i := range s.tries {
					if t := &s.tries[i]; t.by == who && !t.answered {
						t.answered, t.arrived, t.refused, t.ended, t.handed = true, e.How == history.OK, e.How == history.Failed, e.At, handed[hold{who, s.lane}]
						break
					}
				}
			}
		}
	}
}

// why says what excuses one more publication after those before, "" if nothing does: then one of them was acknowledged to
// the process that now publishes again, under the same claim, or has no answer yet. A process that is killed before its
// answer is another one afterwards.
func (s *suspect) why(now try, handedBack, beforeAdoption func(try) bool) Explanation {
	var seen []Explanation
	for _, t := range s.tries {
		switch {
		case beforeAdoption(t):
			seen = append(seen, AfterAdoption)
		case t.arrived && (t.by != now.by || t.claims != now.claims) && handedBack(t):
			seen = append(seen, HandedBack)
		case t.by != now.by:
			seen = append(seen, OtherProcess)
		case t.claims != now.claims:
			seen = append(seen, ClaimedAgain)
		case t.answered && !t.arrived:
			seen = append(seen, Unanswered)
		default:
			return ""
		}
	}
	for _, reason := range explanations {
		if slices.Contains(seen, reason) {
			return reason
		}
	}
	return ""
}

// acknowledged is when the event was acknowledged last, and to whom; zero if it has not been.
func (s *suspect) acknowledged() (last time.Time, to Process) {
	for _, t := range s.tries {
		if t.arrived && t.ended.After(last) {
			last, to = t.ended, t.by
		}
	}
	return last, to
}

// A save that failed began and was followed by the next within these.
const (
	beforeUnsaving = 3 * time.Second
	behindUnsaving = time.Second
)

// trouble is a time in which relays may have been kept from saving.
type trouble struct {
	from, until time.Time // until is zero where it never ended
	of          Process   // by whose word it is, and for whom alone; zero for a fault
}

// troubles are the faults that keep relays from saving, with the time to recover from them, and the saves that failed
// according to the relay's log, in the order in which they began.
func (b *book) troubles() (all []trouble) {
	for _, o := range b.outages {
		if b.Limits.Keeping == nil || slices.Contains(b.Limits.Keeping, o.fault) {
			all = append(all, trouble{from: o.from, until: o.recovered})
		}
	}
	if b.Limits.Unsaving != "" {
		for _, e := range b.Entries {
			if e.Op == history.Log && strings.HasPrefix(e.Text, b.Limits.Unsaving) {
				all = append(all, trouble{e.At.Add(-beforeUnsaving), e.At.Add(behindUnsaving), Process{e.Actor, e.PID}})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b trouble) int { return a.from.Compare(b.from) })
	return all
}

// calm is the part of a time that is outside of all troubles of a process.
func calm(troubles []trouble, of Process, from, until time.Time) (span time.Duration) {
	if from.IsZero() {
		return 0
	}
	for _, t := range troubles {
		if !t.from.Before(until) {
			break
		}
		if t.of != (Process{}) && t.of != of {
			continue
		}
		span += max(t.from.Sub(from), 0)
		switch {
		case t.until.IsZero():
			return span
		case t.until.After(from):
			from = t.until
		}
	}
	return span + max(until.Sub(from), 0)
}

// claimed is a claim of a lane, and start the cursor that it found.
type claimed struct {
	lane  int
	epoch int64
}
type start struct {
	LaneChange
	adopted time.Time // when the last restored copy before it was adopted
}

// claimed are the claims whose cursors are known: those before which the log has the lane.
func (b *book) claimed() map[claimed]start {
	found, before, adopted := map[claimed]start{}, map[int]LaneChange{}, map[int]time.Time{}
	for _, c := range inOrder(b.LaneLog, func(c LaneChange) int64 { return c.N }) {
		if c.Adopted {
			adopted[c.Lane] = c.At
		}
		if p, known := before[c.Lane]; known && p.Epoch < c.Epoch {
			found[claimed{c.Lane, c.Epoch}] = start{c, adopted[c.Lane]}
		}
		before[c.Lane] = c
	}
	return found
}

// covers says whether a relay that began here had no reason to read the event: its cursor was past the event's place.
// Transaction ids of before an adoption say nothing.
func (s start) covers(at Place) bool {
	if s.Epoch == 0 || !s.adopted.Before(at.At) {
		return false
	}
	return visible(s.Done, at.XID) || visible(s.Upto, at.XID) && at.Seq <= s.Pos
}

// placed are the places in the log of suspects that came to Kafka only from there: they were not parked, and are not in it
// more than once, as replays of letters are.
func (b *book) placed(suspects map[string]*suspect) map[string]Place {
	places, times := map[string]Place{}, map[string]int{}
	for _, p := range b.Places {
		if s := suspects[p.ID]; s != nil && !s.parked {
			places[p.ID] = p
			times[p.ID]++
		}
	}
	for id, n := range times {
		if n > 1 {
			delete(places, id)
		}
	}
	return places
}

// replayed says whether a relay's letter of the event was replayed.
func (b *book) replayed(n int32) bool {
	for _, l := range b.letters[n] {
		if l.Consumer == "" && (l.State == Replayed || l.State == Replaying) {
			return true
		}
	}
	return false
}
