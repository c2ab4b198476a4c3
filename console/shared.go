package console

import (
	"context"
	"sync"
	"time"
)

// shared is what was read last, for a second: many pages may be open, and so a database in trouble is not asked more often.
type shared[T any] struct {
	mu   sync.Mutex
	last T
	err  error
	at   time.Time
}

// get returns what was read, and reads it anew if it is older. read is told what was read last, and how old that is.
func (s *shared[T]) get(ctx context.Context, read func(ctx context.Context, last T, age time.Duration) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := time.Since(s.at); age >= time.Second {
		// The caller's end does not end it: others may wait for the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		s.last, s.err = read(ctx, s.last, age)
		s.at = time.Now()
	}
	return s.last, s.err
}

// forget has the next page read again.
func (s *shared[T]) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = time.Time{}
}
