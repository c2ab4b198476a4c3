// Package turns bounds how many handlers of a type run at once in this process (inbox.WithConcurrency). Each one that runs has a turn.
// The others wait, and get theirs in the order in which they came, so that neither new nor stored events starve.
package turns

import (
	"slices"
	"sync"
)

// Turns are those of one registration. A nil one has no limit. Many goroutines may use it at once.
type Turns struct {
	mu      sync.Mutex
	free    int
	waiting []Turn // the first is the next; Invariant: none waits while a turn is free
}

// Turn is closed when it has come.
type Turn chan struct{}

// New returns n turns that are free.
func New(n int) *Turns { return &Turns{free: n} }

// Join asks for a turn, which may have come at once. Wait or Leave must follow.
func (t *Turns) Join() Turn {
	mine := make(Turn)
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

// Wait waits for a turn that was asked for. It is false if stop was closed first: then there is none.
func (t *Turns) Wait(mine Turn, stop <-chan struct{}) bool {
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
	t.Leave() // It came at the same moment.
	return false
}

// Enter waits for a turn. It is false if stop was closed first.
func (t *Turns) Enter(stop <-chan struct{}) bool { return t == nil || t.Wait(t.Join(), stop) }

// Try takes a turn if one is free.
func (t *Turns) Try() bool {
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

// Leave ends a turn. The next one who waits gets it.
func (t *Turns) Leave() {
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

// Look says how many turns are free, and how many wait for one.
func (t *Turns) Look() (free, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free, len(t.waiting)
}
