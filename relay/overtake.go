package relay

import (
	"slices"
	"strings"
	"time"
)

// This file decides how the events of quiet tenants overtake the backlog of noisy ones (Config.TenantSeparator). It knows no clock,
// context or database; log.go and read_ahead.go load what it asks for, and apply what it says.
//
// A lane's log is read in order. While a backlog is read, which some tenants have written almost alone, a second cursor runs ahead: it
// reads the log up to now, without the events of these tenants. What it finds is handed out between two pages of the first reader, as a
// page that does not move the lane's cursor, and while the next page of the first waits for room. When the first reader comes to such an
// event, it leaves it out.
//
// The order of keys holds, because a key belongs to one tenant. Of the events of a tenant each reader meets the earlier one first, and
// the second begins where the first stands. So if one of them hands out an event, all earlier ones of its key have been handed out, by
// this reader or by the other. Nothing is lost, because the page that was put in between comes before the page from which its events
// are left out: the cursor moves past neither until both are settled. A crash, or a handover of the lane, repeats what was ahead of the
// cursor: most events of a lane, and a page, at most.
type overtaking struct {
	separator string
	most      int // events ahead of the cursor

	// What the first reader has met since it was last at the end of the log.
	met   map[string]int // events by tenant
	total int

	turn   int                // of the second reader: 1 and one more each time it begins
	noisy  []string           // those whose events the second reader leaves out; nil: it rests
	from   cursor             // where the first reader stood when the second began: it has handed out what is in the window up to pos
	at     cursor             // how far the second reader has read
	taken  map[int64]int      // events that the second reader has handed out, and the first has not met: the turn in which it met them last
	first  map[int64]struct{} // events of quiet tenants that the first reader has handed out, and the second has not met
	nextAt time.Time          // the second reader reads again
	beyond bool               // it has read since the first last handed out a page: it may have gone past the end of the one that waits

	failures int       // of the second reader, in a row
	rests    time.Time // until then it does not begin
}

const (
	maxTaken   = 20_000 // events ahead of the cursor, of a lane
	maxTenants = 1000   // that are told apart in a backlog
	noisyShare = 8      // who has written one in so many events of a backlog is noisy

	// After a read that failed, the second reader rests for a minute, then for two, up to an hour.
	aheadRest, aheadRestMost = time.Minute, time.Hour
)

// tenantOf is what a key says before the separator; "" if it has none.
func tenantOf(key, separator string) string {
	name, _, found := strings.Cut(key, separator)
	if !found {
		return ""
	}
	return name
}

// left is what is to be handed out of a page of the first reader: without what the second has handed out.
func (o *overtaking) left(p page) page {
	if len(o.taken) > 0 {
		events := make([]logEvent, 0, len(p.events))
		for _, e := range p.events {
			if _, taken := o.taken[e.seq]; !taken {
				events = append(events, e)
			}
		}
		p.events = events
	}
	if !p.last {
		p.noisy = o.noisy
	}
	return p
}

// meet takes in a page of the first reader of which left has been handed out. limit is how many events a page may have.
func (o *overtaking) meet(p page, limit int, now time.Time) {
	for i := range p.events {
		e := &p.events[i]
		tenant := tenantOf(e.Key, o.separator)
		if _, known := o.met[tenant]; known || len(o.met) < maxTenants {
			o.met[tenant]++
		}
		turn, taken := o.taken[e.seq]
		delete(o.taken, e.seq)
		if o.noisy != nil && !o.isNoisy(e.Key) && (!taken || turn != o.turn) { // the second reader will meet it in this turn
			o.first[e.seq] = struct{}{}
		}
	}
	o.total += len(p.events)
	switch {
	case p.last:
		o.rest()
		if !o.beyond { // all that the second reader has met is behind both, but for rows that somebody has deleted
			clear(o.taken)
		}
	case len(o.first) > o.most:
		o.rest()
	case o.noisy == nil && len(o.taken) <= o.most/2 && o.total >= limit && !now.Before(o.rests):
		if o.noisy = noisyTenants(o.met, o.total); o.noisy != nil {
			o.turn++
			o.from, o.at, o.nextAt = p.after, cursor{done: p.after.done}, time.Time{}
		}
	}
	o.beyond = false
}

func newOvertaking(separator string) *overtaking {
	return &overtaking{
		separator: separator,
		most:      maxTaken,
		met:       map[string]int{},
		taken:     map[int64]int{},
		first:     map[int64]struct{}{},
	}
}

// rest ends the second reader. The first one goes on leaving out what was taken. Another begins when most of that is behind it.
func (o *overtaking) rest() {
	o.noisy, o.total = nil, 0
	clear(o.first)
	clear(o.met)
}

// failed ends the second reader after a read that failed, and says for how long: such a read costs the lane as much as many pages.
func (o *overtaking) failed(now time.Time) time.Duration {
	o.rest()
	rest := min(aheadRest<<min(o.failures, 10), aheadRestMost)
	o.failures++
	o.rests = now.Add(rest)
	return rest
}

// noisyTenants are those who have written so much of a backlog that others wait for them: at least one in noisyShare events each, and
// half of it together. Nil: nobody stands out.
func noisyTenants(met map[string]int, total int) (names []string) {
	events := 0
	for name, n := range met {
		if n*noisyShare >= total {
			names = append(names, name)
			events += n
		}
	}
	if events*2 < total {
		return nil
	}
	slices.Sort(names)
	return names
}

// isNoisy says whether the second reader leaves a key out.
func (o *overtaking) isNoisy(key string) bool {
	return slices.Contains(o.noisy, tenantOf(key, o.separator))
}

// due says whether the second reader is to read a page.
func (o *overtaking) due(now time.Time) bool { return o.noisy != nil && !now.Before(o.nextAt) }

// take takes in a page of the second reader, and returns what of it the first has not handed out. Both orders are those of the log.
func (o *overtaking) take(events []logEvent, upto string, full bool) []logEvent {
	last := int64(0)
	if len(events) > 0 {
		last = events[len(events)-1].seq
	}
	o.failures, o.beyond = 0, true
	o.at = o.at.after(upto, full, last)
	events = slices.DeleteFunc(events, func(e logEvent) bool {
		_, before := o.first[e.seq]
		_, taken := o.taken[e.seq] // in an earlier turn
		delete(o.first, e.seq)
		if taken {
			o.taken[e.seq] = o.turn
		}
		return before || taken
	})
	for i := range events {
		o.taken[events[i].seq] = o.turn
	}
	if len(o.taken) >= o.most {
		o.rest()
	}
	return events
}

// readsAgain is when the second reader reads next. first says that it has read its first window, which is the whole backlog, and full that
// there is more of that. What is added later is little, and gets a fifth of the time. While a page of the first reader has waited long, as
// for a broker that is away, it is read less and less often.
func readsAgain(ended time.Time, took, waited time.Duration, first, full bool) time.Time {
	switch {
	case full:
		return ended
	case first:
		took = 0
	}
	return ended.Add(max(readAheadEvery, 4*took, min(waited/16, readAheadMost)))
}

const readAheadEvery, readAheadMost = 20 * time.Millisecond, time.Second
