package holdfasttest

import (
	"sync"
	"time"
)

// Clock is a clock that a test sets, for handlers that are given a function for the time: pass its Now. Many goroutines may use it at
// once.
//
// It is the handler's clock only. An event has its own time (Event.Time), which is the same in each attempt, and often what a handler
// wants. now() in SQL is the time at which the transaction began, by the database's clock, and so are the times of retries and of
// scheduled events: no test can move those.
type Clock struct {
	mu sync.Mutex
	at time.Time
}

// NewClock returns a clock that stands at a time.
func NewClock(at time.Time) *Clock { return &Clock{at: at} }

// Now returns the time at which the clock stands.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// Advance moves the clock on by d, or back if d is negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}
