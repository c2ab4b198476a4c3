package inbox

import (
	"sync"
	"time"
)

// This file reports what an inbox waits for. The observer gets every error. The log does not: every worker waits for the same
// database, and an operator should not have to read a thousand equal lines.

// rateLimiter bounds how often each kind of line is logged. The zero rateLimiter has logged nothing. Many goroutines may use it at
// once.
type rateLimiter struct {
	mu   sync.Mutex
	last map[string]lastLine // by kind
}

type lastLine struct {
	at         time.Time
	suppressed int // lines since then
}

// allow reports whether to log a line of this kind now, at most one every so often, and how many were suppressed since the last one.
func (s *rateLimiter) allow(kind string, every time.Duration, now time.Time) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.last[kind]
	if known && now.Sub(last.at) < every {
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

// sayEvery is the time between two logged lines of one kind that say what is waited for.
const sayEvery = time.Second
