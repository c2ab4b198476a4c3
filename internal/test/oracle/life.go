package oracle

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// liveness is O8: every fault ends, all that was committed before has arrived in time after that, and nothing waits at
// the end.
func liveness(b *book, found *findings, figures *Figures) {
	for _, o := range b.outages {
		switch took := o.recovered.Sub(o.until); {
		case o.until.IsZero():
			found.add(NeverHealed, "%s, made at %s", o.fault, clock(o.from))
		case o.recovered.IsZero():
			found.add(NeverBack, "%s, healed at %s", o.fault, clock(o.until))
		default:
			figures.Recoveries = append(figures.Recoveries, Recovery{o.fault, o.until, took})
			if took > b.Limits.Recovery {
				found.add(Slow, "%s, healed at %s: it took %s, allowed are %s", o.fault, clock(o.until), took.Round(time.Millisecond), b.Limits.Recovery)
			}
		}
	}
	slices.SortStableFunc(figures.Recoveries, func(a, b Recovery) int { return a.At.Compare(b.At) })
	for _, w := range b.Pending {
		what := w.ID
		if n := b.event(w.ID); n != none {
			what = b.name(n)
		}
		if w.Consumer != "" {
			what += " with " + w.Consumer
		}
		found.add(StillWaits, "%s: %s", w.Where, what)
	}
	for _, l := range b.Letters {
		if l.State == Replaying {
			what := l.EventID
			if n := b.event(l.EventID); n != none {
				what = b.name(n)
			}
			found.add(StillWaits, "letter %d is being replayed: %s", l.ID, what)
		}
	}
}

// settling is the longest time from a try of an event to the log line that it was given up, under faults.
const settling = 20 * time.Second

// lettersSaid is the part of O11 about letters. The log names no letter that does not exist, and the process that wrote a
// letter logs it, unless it was killed before it could. A letter does not name its writer. So one letter of an event may be
// missing in the log if its last try was by a process that was killed and logged nothing more within settling. A letter of
// a repeat, which needs no try, may be missing if anything was killed.
func lettersSaid(b *book, found *findings) {
	if len(b.Entries) == 0 {
		return
	}
	killed, silent := map[Process]bool{}, map[Process]time.Time{} // since when
	for _, p := range b.Killed {
		killed[p] = true
	}
	said, last := map[int32]int{}, map[int32]*history.Entry{} // its last try
	written := map[int32]int{}                                // letters that a process wrote: of a person's, nobody has to be told
	for n, letters := range b.letters {
		for _, l := range letters {
			if l.Command == "" {
				written[n]++
			}
		}
	}
	for i := range b.Entries {
		e := &b.Entries[i]
		silent[Process{e.Actor, e.PID}] = e.At
		if e.Op != history.Letter && e.Op != history.Effect && e.Op != history.Publish {
			continue
		}
		for _, id := range e.IDs {
			switch n := b.event(id); {
			case n == none:
			case e.Op == history.Letter:
				said[n]++
			case len(b.letters[n]) > 0:
				last[n] = e
			}
		}
	}
	for i := range b.Written {
		n := int32(i)
		if said[n] > 0 && len(b.letters[n]) == 0 {
			found.add(MadeUp, "%s, said %d times", b.name(n), said[n])
		}
		unsaid := written[n] - said[n]
		if e := last[n]; e != nil {
			if who := (Process{e.Actor, e.PID}); killed[who] && silent[who].Sub(e.At) < settling {
				unsaid--
			}
		}
		for _, l := range b.letters[n] {
			if unsaid > 0 && len(killed) > 0 && b.besideEffect(l) {
				unsaid--
			}
		}
		if unsaid > 0 {
			found.add(Unsaid, "%s has %d letters, and %d were said; the last says %q", b.name(n), written[n], said[n], b.letters[n][len(b.letters[n])-1].Reason)
		}
	}
}

// alarmsSounded is O11: every letter was logged, and during a fault, or shortly after, each role that has to report it logged
// one of the expected messages. A fault that nobody notices is a fault of its own, even if nothing was lost. A message after
// the next fault has begun counts for that one.
func alarmsSounded(b *book, found *findings) {
	lettersSaid(b, found)
	if len(b.outages) == 0 || len(b.Alarms) == 0 {
		return
	}
	var logged []*history.Entry // in the order of time
	var end time.Time
	for i := range b.Entries {
		e := &b.Entries[i]
		end = e.At
		if e.Op == history.Log {
			logged = append(logged, e)
		}
	}
	for _, o := range b.outages {
		until := end
		if !o.until.IsZero() {
			until = o.until.Add(b.Limits.Alarm)
			for _, next := range b.outages {
				if !next.from.Before(o.until) && next.from.Before(until) {
					until = next.from
				}
			}
		}
		for _, alarm := range b.Alarms[o.fault] {
			first, _ := slices.BinarySearchFunc(logged, o.from.Add(-alarm.Before), func(e *history.Entry, from time.Time) int { return e.At.Compare(from) })
			if !slices.ContainsFunc(logged[first:], func(e *history.Entry) bool { return alarm.is(e, until) }) {
				found.add(Silent, "%s, from %s to %s: no %s logged any of %q", o.fault, clock(o.from), clock(until), cmp.Or(alarm.By, "process"), alarm.Messages)
			}
		}
	}
}

// leftOut begins the line that says which lines a process has left out within a minute, because there were too many of them.
const leftOut = "lines left out: more of the same within a minute message="

// is says whether an entry is the alarm. One that was left out may be said up to a minute later.
func (a Alarm) is(e *history.Entry, until time.Time) bool {
	text, late := strings.CutPrefix(e.Text, leftOut)
	if late {
		until = until.Add(time.Minute)
	}
	return !e.At.After(until) && strings.HasPrefix(e.Actor, a.By) && slices.ContainsFunc(a.Messages, func(m string) bool { return strings.HasPrefix(text, m) })
}
