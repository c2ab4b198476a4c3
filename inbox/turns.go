package inbox

import (
	"slices"
	"sync"
)

// This file bounds how many handlers of a type run at once in this process (WithConcurrency). Each one that runs has a turn. The
// others wait, and get theirs in the order in which they came, so that neither new nor stored events starve.

// turns are those of one registration. A nil one has no limit. Many goroutines may use it at once.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting []turn // the first is the next; Invariant: none waits while a turn is free
}

// turn is closed when it has come.
type turn chan struct{}

func newTurns(n int) *turns { return &turns{free: n} }

// join asks for a turn, which may have come at once. wait or leave must follow.
func (t *turns) join() turn {
	mine := make(turn)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		close(mine)
	} else {
		t.waiting = append(t.waiting, mine)
	}
	return mine
}

// wait waits for a turn that was asked for. It is false if stop was closed first: then there is none.
func (t *turns) wait(mine turn, stop <-chan struct{}) bool {
	select {
	case <-mine:
		return true
	case <-stop:
	}
	t.mu.Lock()
	if i := slices.Index(t.waiting, mine); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		t.mu.Unlock()
		return false
	}
	t.mu.Unlock()
	t.leave() // It came at the same moment.
	return false
}

// enter waits for a turn. It is false if stop was closed first.
func (t *turns) enter(stop <-chan struct{}) bool { return t == nil || t.wait(t.join(), stop) }

// try takes a turn if one is free.
func (t *turns) try() bool {
	if t == nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free == 0 {
		return false
	}
	t.free--
	return true
}

// leave ends a turn. The next one who waits gets it.
func (t *turns) leave() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.free++
		return
	}
	close(t.waiting[0])
	t.waiting = slices.Delete(t.waiting, 0, 1)
}
