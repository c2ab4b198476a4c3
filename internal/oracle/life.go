package oracle

import (
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/history"
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
			found.add(StillWaits, "letter %d is being replayed: %s", l.ID, l.EventID)
		}
	}
}

// alarmsSounded is O11: while a fault was on, or shortly after, somebody logged one of the messages that say so. A fault
// that nobody notices is a fault of its own, even if nothing was lost. What is logged once the next fault has begun is
// that one's.
func alarmsSounded(b *book, found *findings) {
	if len(b.outages) == 0 || len(b.Alarms) == 0 {
		return
	}
	heard := map[string][]time.Time{} // by message, in the order of time
	for _, messages := range b.Alarms {
		for _, m := range messages {
			heard[m] = nil
		}
	}
	var end time.Time
	for i := range b.Entries {
		e := &b.Entries[i]
		end = e.At
		if e.Op != history.Log {
			continue
		}
		for m := range heard {
			if strings.Contains(e.Text, m) {
				heard[m] = append(heard[m], e.At)
			}
		}
	}
	for _, o := range b.outages {
		messages, must := b.Alarms[o.fault]
		if !must {
			continue
		}
		until := end
		if !o.until.IsZero() {
			until = o.until.Add(b.Limits.Alarm)
			for _, next := range b.outages {
				if !next.from.Before(o.until) && next.from.Before(until) {
					until = next.from
				}
			}
		}
		if !slices.ContainsFunc(messages, func(m string) bool {
			at, _ := slices.BinarySearchFunc(heard[m], o.from, time.Time.Compare)
			return at < len(heard[m]) && !heard[m][at].After(until)
		}) {
			found.add(Silent, "%s, from %s to %s: nobody logged any of %q", o.fault, clock(o.from), clock(until), messages)
		}
	}
}
