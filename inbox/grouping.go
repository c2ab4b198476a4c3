package inbox

import "time"

// This file decides which events may share a transaction, and how many: at most those that Config.Group or WithGroup allows. It is
// pure: values in, values out.

// groupTimes are the times that decide. All but a test use defaultGroupTimes.
type groupTimes struct {
	// together is how long the handlers of a group take together, as far as one can tell beforehand: for so long is locked what the
	// first of them locks.
	together time.Duration

	// longest is how long the handlers of a group may take together, whatever one could tell beforehand. Then no other begins, what is
	// done is committed, and the rest waits again. So what a group locks is locked for that long and one handler more.
	longest time.Duration

	// A type whose handler once took longer than slow runs alone for fifty times as long as that took: it may call services outside,
	// and others in its group would hold their locks meanwhile, so long that groups beside it fail, which wait for lockWait. On a busy
	// machine any handler takes some tens of milliseconds now and then.
	slow time.Duration

	// rest is how long a type runs alone that failed in a group of two: twice as long each time that no group of two succeeded in
	// between, up to maxRests times as long.
	rest time.Duration

	// lockWait is how long a handler in a group waits for a lock. Then the group is rolled back, and each event runs alone and waits
	// as long as it may. So handlers that lock the same rows in different orders do not wait for Postgres to find the deadlock,
	// which takes a second.
	lockWait time.Duration
}

var defaultGroupTimes = groupTimes{together: 5 * time.Millisecond, longest: 100 * time.Millisecond, slow: 100 * time.Millisecond, rest: 10 * time.Second, lockWait: 100 * time.Millisecond}

const (
	// slowRests is how many times as long a slow type runs alone as its event took.
	slowRests = 50

	// maxRests bounds how many times as long as rest a type runs alone.
	maxRests = 64
)

// timing is what is known of the handler of a type. The zero value is a type of which no event has run yet.
type timing struct {
	took  time.Duration // what one event takes, without what it waits now and then
	most  int           // how large a group with an event of the type may be; 0: no limit of its own
	alone time.Time     // until then its events run alone
	rests int           // how many times as long as groupTimes.rest it runs alone after its next failure; 0: as long
	never bool          // they always run alone
}

// upTo is the timing of a type whose registration allows groups of n.
func (p timing) upTo(n int) timing {
	if p.most == 0 || n < p.most {
		p.most = n
	}
	p.never = p.never || n == 1
	return p
}

// ran is the timing after an event's handler has returned. It counts what is quick four times as much, and no more than twice the usual
// of what is slow: on a busy machine handlers wait for processors most of the time, and the more so if each has a transaction of its own.
func (p timing) ran(took time.Duration, now time.Time, times groupTimes) timing {
	took = max(took, 1)
	if p.took == 0 {
		p.took = took
	}
	if took < p.took {
		p.took -= (p.took - took) / 4
	} else {
		p.took += (min(took-p.took, p.took) + 15) / 16
	}
	if until := now.Add(slowRests * took); took > times.slow && until.After(p.alone) {
		p.alone = until
	}
	return p
}

// failed is the timing of a type after its handler has failed in a group of size events. A group of one is none.
func (p timing) failed(size int, now time.Time, times groupTimes) timing {
	p.most = size / 2
	if p.most < 2 {
		p.most, p.rests = 2, max(p.rests, 1)
		if until := now.Add(time.Duration(p.rests) * times.rest); until.After(p.alone) {
			p.alone = until
		}
		p.rests = min(2*p.rests, maxRests)
	}
	return p
}

// succeeded is the timing after a group of size events has committed: the limit that a failure left grows again.
func (p timing) succeeded(size int) timing {
	if p.most > 0 && size >= p.most {
		p.most, p.rests = 2*p.most, 0
	}
	return p
}

// grouping is a group that is being put together.
type grouping struct {
	size   int
	most   int           // it holds no more
	others int           // so many jobs of other keys may join
	left   time.Duration // of groupTimes.together
}

// newGrouping is an empty group for one of so many workers. The jobs that wait are shared among all workers: each of them is busy
// before one has a second. What waits for a key's job has to wait for this worker anyway.
func newGrouping(limit, waiting, workers int, times groupTimes) grouping {
	return grouping{most: limit, others: 1 + waiting/workers, left: times.together}
}

// admits reports whether an event of a type with this timing may join. It follows another of its key that is in the group, or not.
func (g grouping) admits(p timing, follows bool, now time.Time) bool {
	most := g.most
	if p.most > 0 {
		most = min(most, p.most)
	}
	return g.size < most && (follows || g.others > 0) && p.took > 0 && p.took <= g.left && !p.never && !now.Before(p.alone)
}

// with is the group after such an event has joined.
func (g grouping) with(p timing, follows bool) grouping {
	if p.most > 0 {
		g.most = min(g.most, p.most)
	}
	if !follows {
		g.others--
	}
	g.size++
	g.left -= p.took
	return g
}
