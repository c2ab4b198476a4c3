// Package group decides which events may share a transaction, and how many: at most those that Config.Group or WithGroup allows.
// Timing and Group are pure: values in, values out.
package group

import (
	"sync"
	"time"
)

// Times are the times that decide. All but a test use DefaultTimes.
type Times struct {
	// Together is how long the handlers of a group take together, as far as one can tell beforehand: for so long is locked what the
	// first of them locks.
	Together time.Duration

	// Longest is how long the handlers of a group may take together, whatever one could tell beforehand. Then no other begins, what is
	// done is committed, and the rest waits again. So what a group locks is locked for that long and one handler more.
	Longest time.Duration

	// A handler that took longer than Slow is slow. Its type then runs alone for fifty times as long as that took: it may call services outside,
	// and others in its group would hold their locks meanwhile, so long that groups beside it fail, which wait for LockWait. On a busy
	// machine any handler takes some tens of milliseconds now and then.
	Slow time.Duration

	// Rest is how long a type runs alone that failed in a group of two: twice as long each time that no group of two succeeded in
	// between, up to maxRests times as long.
	Rest time.Duration

	// LockWait is how long a handler in a group waits for a lock. Then the group is rolled back, and each event runs alone and waits
	// as long as it may. So handlers that lock the same rows in different orders do not wait for Postgres to find the deadlock,
	// which takes a second.
	LockWait time.Duration
}

// DefaultTimes are those of an inbox.
var DefaultTimes = Times{
	Together: 5 * time.Millisecond,
	Longest:  100 * time.Millisecond,
	Slow:     100 * time.Millisecond,
	Rest:     10 * time.Second,
	LockWait: 100 * time.Millisecond,
}

const (
	// slowRests is how many times as long a slow type runs alone as its event took.
	slowRests = 50

	// maxRests bounds how many times as long as Times.Rest a type runs alone.
	maxRests = 64
)

// Timing is what is known of the handler of a type. The zero value is a type of which no event has run yet.
type Timing struct {
	took  time.Duration // what one event takes, without what it waits now and then
	most  int           // how large a group with an event of the type may be; 0: no limit of its own
	alone time.Time     // until then its events run alone
	rests int           // how many times as long as Times.Rest it runs alone after its next failure; 0: as long
	never bool          // they always run alone
}

// UpTo is the timing of a type whose registration allows groups of n. Alone says that its events run alone, whatever it allows.
func (t Timing) UpTo(n int, alone bool) Timing {
	if t.most == 0 || n < t.most {
		t.most = n
	}
	t.never = t.never || n == 1 || alone
	return t
}

// Ran is the timing after an event's handler has returned. It counts what is quick four times as much, and no more than twice the usual
// of what is slow: on a busy machine handlers wait for processors most of the time, and the more so if each has a transaction of its own.
func (t Timing) Ran(took time.Duration, now time.Time, times Times) Timing {
	took = max(took, 1)
	if t.took == 0 {
		t.took = took
	}
	if took < t.took {
		t.took -= (t.took - took) / 4
	} else {
		t.took += (min(took-t.took, t.took) + 15) / 16
	}
	if until := now.Add(slowRests * took); took > times.Slow && until.After(t.alone) {
		t.alone = until
	}
	return t
}

// Failed is the timing of a type after its handler has failed in a group of size events. A group of one is none.
func (t Timing) Failed(size int, now time.Time, times Times) Timing {
	t.most = size / 2
	if t.most < 2 {
		t.most, t.rests = 2, max(t.rests, 1)
		if until := now.Add(time.Duration(t.rests) * times.Rest); until.After(t.alone) {
			t.alone = until
		}
		t.rests = min(2*t.rests, maxRests)
	}
	return t
}

// Succeeded is the timing after a group of size events has committed: the limit that a failure left grows again.
func (t Timing) Succeeded(size int) Timing {
	if t.most > 0 && size >= t.most {
		t.most, t.rests = 2*t.most, 0
	}
	return t
}

// Timings are the timings of the types that have run. Many goroutines may use them at once. The zero value has none.
type Timings struct {
	mu sync.Mutex
	of map[string]Timing
}

// Get is the timing of a type.
func (t *Timings) Get(eventType string) Timing {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[eventType]
}

// Change changes the timing of a type.
func (t *Timings) Change(eventType string, to func(Timing) Timing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]Timing{}
	}
	t.of[eventType] = to(t.of[eventType])
}

// Group is a group that is being put together.
type Group struct {
	size   int
	most   int           // it holds no more
	others int           // so many jobs of other keys may join
	left   time.Duration // of Times.Together
}

// New is an empty group for one of so many workers. The jobs that wait are shared among all workers: each of them is busy
// before one has a second. What waits for a key's job has to wait for this worker anyway.
func New(limit, waiting, workers int, times Times) Group {
	return Group{most: limit, others: 1 + waiting/workers, left: times.Together}
}

// Admits reports whether an event of a type with this timing may join. It follows another of its key that is in the group, or not.
func (g Group) Admits(p Timing, follows bool, now time.Time) bool {
	most := g.most
	if p.most > 0 {
		most = min(most, p.most)
	}
	return g.size < most && (follows || g.others > 0) && p.took > 0 && p.took <= g.left && !p.never && !now.Before(p.alone)
}

// With is the group after such an event has joined.
func (g Group) With(p Timing, follows bool) Group {
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
