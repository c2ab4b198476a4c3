package inbox

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// This file says what an inbox waits for. The observer is told of every try. The log is not: every worker waits for the
// same database, and a person who looks at it should not have to look past a thousand lines that say so.

// sayEvery is how often one kind of trouble is logged.
const sayEvery = time.Second

// troubled tells of an error that is waited out.
func (env *env) troubled(err error) { env.waitsOut(err, "consumer", env.c.Consumer) }

// troubledBy is troubled with an event in hand.
func (env *env) troubledBy(d *delivery, err error) {
	attrs := env.attrs(d.e)
	if d.from != nil {
		attrs = append(attrs, "partition", d.from.fence.Partition)
	}
	env.waitsOut(err, attrs...)
}

func (env *env) waitsOut(err error, attrs ...any) {
	if unsaid, say := env.said.say(kindOf(err), time.Now()); say {
		if unsaid > 0 {
			attrs = append(attrs, "suppressed", unsaid)
		}
		env.c.Logger.Warn("waiting for the database", append(attrs, "error", boundedError(err))...)
	}
	if env.c.Observer.OnError != nil {
		env.c.Observer.OnError(err)
	}
}

func (env *env) kafkaTroubled(doing string, err error) {
	env.c.Logger.Warn("waiting for Kafka", "consumer", env.c.Consumer, "doing", doing, "error", boundedError(err))
	if env.c.Observer.OnError != nil {
		env.c.Observer.OnError(fmt.Errorf("%s: %w", doing, err))
	}
}

// kindOf is a server's error by its SQLSTATE, and all others alike: those of connections.
func kindOf(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

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
