package console

import (
	"context"
	"errors"
	"fmt"
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

// lookWithin is how long the database may take for what pages share.
const lookWithin = 10 * time.Second

// errNoAnswer is the error of a look that took too long. A pool that gets no connection in time says no more than that a context has ended.
var errNoAnswer = errors.New("no answer from the database")

// get returns what was read, and reads it anew if it is older. read is told what was read last, and how old that is.
func (s *shared[T]) get(ctx context.Context, read func(ctx context.Context, last T, age time.Duration) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := time.Since(s.at); age >= time.Second {
		// The caller's end does not end it: others may wait for the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
		defer cancel()
		if s.last, s.err = read(ctx, s.last, age); s.err != nil && ctx.Err() != nil {
			s.err = fmt.Errorf("%w within %s: %w", errNoAnswer, lookWithin, s.err)
		}
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
