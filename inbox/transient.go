package inbox

import (
	"sync"
	"time"
)

// This file says what an inbox waits for. The observer is told of every try. The log is not: every worker waits for the
// same database, and a person who looks at it should not have to look past a thousand lines that say so.

// seldom bounds how often each kind of line is logged. The zero seldom has logged nothing. Its method may be called by many
// goroutines at once.
type seldom struct {
	mu   sync.Mutex
	last map[string]saying // by kind
}

type saying struct {
	at     time.Time
	unsaid int // since then
}

// say tells whether a line of this kind is to be logged now, and how many were not since the one before it.
func (s *seldom) say(kind string, now time.Time) (unsaid int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.last[kind]
	if known && now.Sub(last.at) < sayEvery {
		last.unsaid++
		s.last[kind] = last
		return 0, false
	}
	if s.last == nil {
		s.last = map[string]saying{}
	}
	s.last[kind] = saying{at: now}
	return last.unsaid, true
}

// sayEvery is how often one kind of trouble is logged.
const sayEvery = time.Second
