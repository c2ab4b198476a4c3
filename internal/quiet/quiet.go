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

// anewAfter is how long trouble lasts that is logged sooner than usual: it has begun anew since the last line.
const anewAfter = 5 * time.Second

// Allow reports whether to log a line of this kind now, at most one every so often, and how many were suppressed since the last one.
func (l *Limiter) Allow(kind string, every time.Duration, now time.Time) (suppressed int, ok bool) {
	return l.AllowSince(kind, every, now, now)
}

// AllowSince is Allow for trouble that has lasted since then. Trouble that began after the last line is allowed one when it has lasted
// for 5 s: an outage soon after another is not passed over.
func (l *Limiter) AllowSince(kind string, every time.Duration, since, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.last[kind]
	anew := last.at.Before(since) && now.Sub(since) >= anewAfter
	if known && now.Sub(last.at) < every && !anew {
		last.suppressed++
		l.last[kind] = last
		return 0, false
	}
	if l.last == nil {
		l.last = map[string]lastLine{}
	}
	l.last[kind] = lastLine{at: now}
	return last.suppressed, true
}
