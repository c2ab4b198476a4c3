// Package dependency decides when handlers may begin that need something beyond Postgres while it is away, and when an event tries it. It
// is pure: values in, values out.
package dependency

import (
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

const (
	// Base and Cap bound the time until an event tries a dependency that is away. It doubles from one to the other, with jitter. So what
	// waits goes on within Cap after the dependency is back, and within Base at first.
	Base, Cap = time.Second, 30 * time.Second

	// MaxAsked is the longest time that a dependency may ask for (retry.After).
	MaxAsked = time.Hour

	// mostTries is the most tries that count: as many as it takes from Base to Cap.
	mostTries = 5

	// aloneTries is the most tries that count of one event alone: others wait for it for 4 seconds at most.
	aloneTries = 2

	// calm is how long a dependency has to be there for one try to be forgotten. So one that comes and goes is tried less often each time.
	calm = time.Minute
)

// State is what the nodes of a consumer know together of a dependency. Its row has it, and each change is made under the lock of that row.
//
//	there ── Found: a handler says that it is away ──► away, until the first try
//	away ─── Tried: the event that tried it found it away ──► away, for longer
//	away ─── Back: the event that tried it was handled ──► there
//
// While it is away, no handler that needs it begins, except for one event at a time once Until has passed.
type State struct {
	Away  bool
	Since time.Time // since when it is away, or there again
	Until time.Time // while it is away: when an event tries it next
	Tries int       // how often in a row a try found it away, as far as that is not forgotten
}

// Found is the state after a handler, which did not begin as a try, has found the dependency away. asked is how long the dependency itself
// wants to be left alone. It counts as no try: one event may be wrong.
func (s State) Found(now time.Time, asked time.Duration, random float64) State {
	if s.Away { // Another handler said so before. Many run when it goes.
		s.Until = latest(s.Until, now.Add(min(asked, MaxAsked)))
		return s
	}
	s.Tries = max(s.Tries-int(now.Sub(s.Since)/calm), 0)
	s.Away, s.Since = true, now
	return s.wait(now, asked, random)
}

// Tried is the state after an event has tried the dependency, and found it away. alone says that it is the one that said so before: as long
// as there is no other, tries stay close, because it may be the event.
func (s State) Tried(now time.Time, asked time.Duration, alone bool, random float64) State {
	if !alone || s.Tries < aloneTries {
		s.Tries = min(s.Tries+1, mostTries)
	}
	return s.wait(now, asked, random)
}

// wait sets when an event tries it next.
func (s State) wait(now time.Time, asked time.Duration, random float64) State {
	s.Until = now.Add(max(loop.Spread(Base, Cap, s.Tries+1, random), min(asked, MaxAsked)))
	return s
}

// Back is the state after an event has tried the dependency, and was handled.
func (s State) Back(now time.Time) State {
	if s.Away {
		s.Away, s.Since, s.Until = false, now, now
	}
	return s
}

// Unproven is the state after an event should have tried the dependency, and failed for another reason: the next one may.
func (s State) Unproven(now time.Time) State {
	if s.Away {
		s.Until = now
	}
	return s
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
