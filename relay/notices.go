package relay

import (
	"sync"
	"time"
)

// This file decides when to speak of a topic or a partition that takes nothing. All lanes of a process meet the same trouble, and
// each of them tries again and again: one line tells what a hundred would. It knows no clock and no logger.

// noticeEvery is how often a process speaks of the same topic or partition.
const noticeEvery = time.Minute

// notices are the topics and partitions that take nothing, and what was said of them. It may be used by many goroutines. The
// zero value is ready.
type notices struct {
	mu    sync.Mutex
	spots map[spot]*notice
}

// notice is what is known of one of them.
type notice struct {
	since  time.Time   // it takes nothing; of the first lane that met it
	lanes  map[int]int // that wait, and how many events of each
	said   bool        // since then
	saidAt time.Time   // that it waits
	heldAt time.Time   // that it is held
}

// extent is what a line tells besides its cause.
type extent struct {
	waited        time.Duration
	lanes, events int
}

// waits records that so many events of a lane wait for at, and says whether to speak of it now.
func (n *notices) waits(at spot, lane, events int, now time.Time) (w extent, speak bool) {
	return n.met(at, lane, events, now, false)
}

// held is waits for at being held from now on, which is worth a line of its own.
func (n *notices) held(at spot, lane, events int, now time.Time) (w extent, speak bool) {
	return n.met(at, lane, events, now, true)
}

func (n *notices) met(at spot, lane, events int, now time.Time, held bool) (w extent, speak bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.of(at, lane, events, now)
	last := s.saidAt
	if held {
		last = s.heldAt
	}
	if !last.IsZero() && now.Sub(last) < noticeEvery {
		return extent{}, false
	}
	s.said, s.saidAt = true, now
	if held {
		s.heldAt = now
	}
	return s.extent(now), true
}

// flows records that at takes the events of a lane again, and says whether to speak of it now: no other lane waits, and it was
// said that they did.
func (n *notices) flows(at spot, lane int, now time.Time) (w extent, speak bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.spots[at]
	if s == nil || len(s.lanes) == 0 {
		return extent{}, false
	}
	delete(s.lanes, lane)
	if len(s.lanes) > 0 {
		return extent{}, false
	}
	speak, s.said = s.said, false
	return s.extent(now), speak
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

func (s *notice) extent(now time.Time) extent {
	w := extent{waited: now.Sub(s.since), lanes: len(s.lanes)}
	for _, events := range s.lanes {
		w.events += events
	}
	return w
}
