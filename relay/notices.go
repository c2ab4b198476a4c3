package relay

import (
	"sync"
	"time"
)

// This file decides when to log that a topic or a partition takes nothing. All lanes of a process meet the same trouble, and
// each of them tries again and again: one line tells what a hundred would. It knows no clock and no logger.

const (
	// noticeEvery is how often a process logs about the same topic or partition.
	noticeEvery = time.Minute

	// noticeAfter is how long trouble lasts that is logged sooner: it has begun anew since the last line.
	noticeAfter = 5 * time.Second
)

// notices are the topics and partitions that take nothing, and what was said of them. It may be used by many goroutines. The
// zero value is ready.
type notices struct {
	mu    sync.Mutex
	spots map[spot]*notice
}

// notice is what is known of one of them.
type notice struct {
	since time.Time   // it takes nothing; of the first lane that met it
	lanes map[int]int // that wait, and how many events of each
	waits entry
	held  entry
}

// entry is what was logged last of one of them, in one kind of line.
type entry struct {
	at          time.Time // the last one
	said        bool      // since notice.since
	unexplained bool      // it could not say why
}

// again says whether it is time to say it, of trouble that has lasted since then. An unexplained line cannot say why: the first one
// that can comes at once.
func (e entry) again(unexplained bool, since, now time.Time) bool {
	if e.at.IsZero() || now.Sub(e.at) >= noticeEvery {
		return true
	}
	if e.said {
		return e.unexplained && !unexplained
	}
	return now.Sub(since) >= noticeAfter
}

// scope is what a line tells besides its cause.
type scope struct {
	waited        time.Duration
	lanes, events int
}

// waits records that so many events of a lane wait for at, and says whether to log it now. An unexplained line says only that
// there is no answer yet.
func (n *notices) waits(at spot, lane, events int, unexplained bool, now time.Time) (w scope, say bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.of(at, lane, events, now)
	if !s.waits.again(unexplained, s.since, now) {
		return scope{}, false
	}
	s.waits = entry{now, true, unexplained}
	return s.scope(now), true
}

// held is waits for at being held from now on, which is worth a line of its own.
func (n *notices) held(at spot, lane, events int, now time.Time) (w scope, say bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.of(at, lane, events, now)
	if !s.held.again(false, s.since, now) {
		return scope{}, false
	}
	s.held = entry{now, true, false}
	s.waits = s.held
	return s.scope(now), true
}

// flows records that at takes the events of a lane again, and says whether to log it now: no other lane waits, and it was
// said that they did.
func (n *notices) flows(at spot, lane int, now time.Time) (w scope, say bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.spots[at]
	if s == nil || len(s.lanes) == 0 {
		return scope{}, false
	}
	delete(s.lanes, lane)
	if len(s.lanes) > 0 {
		return scope{}, false
	}
	say = s.waits.said // as also a line that it is held says
	s.waits.said, s.held.said = false, false
	return s.scope(now), say
}

// leave forgets a lane that has ended. What was said still holds: the lane may come back, and meet the same trouble.
func (n *notices) leave(lane int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.spots {
		delete(s.lanes, lane)
	}
}

func (n *notices) of(at spot, lane, events int, now time.Time) *notice {
	if n.spots == nil {
		n.spots = map[spot]*notice{}
	}
	s := n.spots[at]
	if s == nil {
		s = &notice{lanes: map[int]int{}}
		n.spots[at] = s
	}
	if len(s.lanes) == 0 {
		s.since = now
	}
	s.lanes[lane] = events
	return s
}

func (n *notice) scope(now time.Time) scope {
	w := scope{waited: now.Sub(n.since), lanes: len(n.lanes)}
	for _, events := range n.lanes {
		w.events += events
	}
	return w
}
