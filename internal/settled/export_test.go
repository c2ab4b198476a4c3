package settled

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// LookUp is the statement of a look.
const LookUp = lookUp

// Callers is how many wait on a pool and the schema "holdfast"; -1 if nobody does, and the goroutine has ended.
func Callers(pool *pgxpool.Pool) (n int) {
	mu.Lock()
	defer mu.Unlock()
	r := rooms[place{pool, "holdfast"}]
	if r == nil {
		return -1
	}
	for _, g := range r.of {
		n += g.callers
	}
	return n
}

// Delay sets when an event is looked at next by itself, and returns when it was.
func Delay(pool *pgxpool.Pool, e Event, by time.Duration) (was time.Duration) {
	mu.Lock()
	defer mu.Unlock()
	r := rooms[place{pool, "holdfast"}]
	g := r.of[e]
	if was = time.Until(g.next); r.sooner[e] {
		was = 0
	}
	g.next = time.Now().Add(by)
	r.scan = g.next
	return was
}
