// Package quiet bounds how often a log says the same: a thousand workers that wait for one database, or a thousand requests of a
// stranger, are one line and a number.
package quiet

import (
	"sync"
	"time"
)

// Limiter bounds how often each kind of line is logged. The zero Limiter has logged nothing. Many goroutines may use it at once.
// It remembers every kind, so kinds must be few, and not a stranger's choice.
type Limiter struct {
	mu   sync.Mutex
	last map[string]lastLine // by kind
}

type lastLine struct {
	at         time.Time
	suppressed int // lines since then
}

// Allow reports whether to log a line of this kind now, at most one every so often, and how many were suppressed since the last one.
func (s *Limiter) Allow(kind string, every time.Duration, now time.Time) (suppressed int, ok bool) {
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
