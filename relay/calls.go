package relay

import (
	"slices"
	"sync"
)

// callsInAll is how many calls of the publisher all lanes of a relay have under way at a time, besides those that take so long
// that their partition is slow. A publisher may open a connection for each. Many lanes with many partitions would have
// thousands under way, and every one would be late.
const callsInAll = 128

// noisyCallsInAll is how many of them have events of tenants that others overtake (overtake.go). What overtakes them comes before what
// waits, and behind what is under way: in the connections and queues of a broker.
const noisyCallsInAll = 4

// callSlots gives calls to lanes. A lane that gets none waits for its turn: then a slot is its own, and it is woken by a signal
// to its answers. It waits again behind the others if it wants more. One that is busy with something else at its turn keeps that
// slot from the others, and no more.
type callSlots struct {
	mu      sync.Mutex
	free    int            // Invariant: 0 while a lane waits
	waiting []*lane        // in the order of their turns
	turns   map[*lane]bool // those that have been given a slot and have not taken it yet
}

func newCallSlots(n int) *callSlots { return &callSlots{free: n, turns: map[*lane]bool{}} }

// callSlot is the right to one call. Its holder gives it back once; to give it again does nothing.
type callSlot struct {
	slots *callSlots
	given bool // guarded by slots.mu
}

// take gives a lane a slot. If it returns nil, the lane waits.
func (s *callSlots) take(l *lane) *callSlot {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.turns[l]:
		delete(s.turns, l)
	case s.free > 0:
		s.free--
	default:
		if !slices.Contains(s.waiting, l) {
			s.waiting = append(s.waiting, l)
		}
		return nil
	}
	return &callSlot{slots: s}
}

// leave says that a lane wants no slot now. It may not be waiting.
func (s *callSlots) leave(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(w *lane) bool { return w == l })
	if s.turns[l] {
		delete(s.turns, l)
		s.pass()
	}
}

// pass hands a slot to the lane whose turn it is.
func (s *callSlots) pass() {
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	l := s.waiting[0]
	s.waiting = s.waiting[1:]
	s.turns[l] = true
	signal(l.answered.some)
}

func (c *callSlot) give() {
	s := c.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.given {
		c.given = true
		s.pass()
	}
}

// mostOf is how many events a call of a destination may have. What has overtaken others does not wait for them to be sent with it.
func (l *lane) mostOf(d *destination) int {
	most := l.r.c.BatchSize
	if d.most > 0 {
		most = min(d.most, most)
	}
	if l.noisy != nil && len(d.queue) > 0 && !l.isNoisy(d.queue[0]) {
		if first := slices.IndexFunc(d.queue, l.isNoisy); first > 0 {
			most = min(first, most)
		}
	}
	return most
}

// slotFor takes a slot for a call; nil: the lane waits for its turn.
func (l *lane) slotFor(noisy bool) *callSlot {
	if noisy {
		return l.r.noisyCalls.take(l)
	}
	return l.r.calls.take(l)
}

// waitForTurn says for which calls the lane waits. One that waited and does not any more leaves its place to others.
func (l *lane) waitForTurn(refused, refusedNoisy bool) {
	if l.refused && !refused {
		l.r.calls.leave(l)
	}
	if l.refusedNoisy && !refusedNoisy {
		l.r.noisyCalls.leave(l)
	}
	l.refused, l.refusedNoisy = refused, refusedNoisy
}
