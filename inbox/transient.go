package inbox

import (
	"sync"
	"time"
)

// This file says what an inbox waits for. The observer receives every try. The log is not: every worker waits for the
// same database, and a person who looks at it should not have to look past a thousand lines that say so.

// rateLimiter bounds how often each kind of line is logged. The zero rateLimiter has logged nothing. Its method may be called by many
// goroutines at once.
type rateLimiter struct {
	mu   sync.Mutex
	last map[string]lastLine // by kind
}

type lastLine struct {
	at         time.Time
	suppressed int // since then
}

// allow tells whether a line of this kind is to be logged now, and how many were not since the one before it.
func (s *rateLimiter) allow(kind string, now time.Time) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.last[kind]
	if known && now.Sub(last.at) < sayEvery {
		last.suppressed++
		s.last[kind] = last
		return 0, false
	}
	if s.last == nil {
		s.last = map[string]lastLine{}
	}
	s.last[kind] = lastLine{at: now}
	return last.suppressed, true
}

// sayEvery is how often one kind of trouble is logged.
const sayEvery = time.Second
