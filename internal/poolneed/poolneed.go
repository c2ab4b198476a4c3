// Package poolneed knows how many connections the relays and inboxes of a process need of each pool, together, and says so when a pool
// has fewer.
package poolneed

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// part is one that works on a pool.
type part struct {
	name        string
	connections int
}

var (
	mu    sync.Mutex
	parts = map[*pgxpool.Pool][]*part{} // those that run; no entry is empty
)

// Enter says that a part of this process needs so many connections of pool at once, until leave is called. If the pool has fewer than
// all that have entered need together, log gets a warning that names them. pool may be nil. Many goroutines may call it at once.
func Enter(pool *pgxpool.Pool, name string, connections int, log *slog.Logger) (leave func()) {
	if pool == nil {
		return func() {}
	}
	p := &part{name, connections}
	mu.Lock()
	parts[pool] = append(parts[pool], p)
	needed, text := sum(parts[pool])
	mu.Unlock()
	if most := int(pool.Config().MaxConns); most < needed {
		log.Warn("the pool is smaller than what runs on it needs: its parts wait for each other; set pool_max_conns", "connections", most, "needed", needed, "parts", text)
	}
	return sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		left := slices.DeleteFunc(slices.Clone(parts[pool]), func(other *part) bool { return other == p })
		if parts[pool] = left; len(left) == 0 {
			delete(parts, pool)
		}
	})
}

// sum is what parts need together, and of what: "relay a: 4, consumer billing: 18".
func sum(of []*part) (needed int, text string) {
	var each []string
	for _, p := range of {
		needed += p.connections
		each = append(each, fmt.Sprintf("%s: %d", p.name, p.connections))
	}
	return needed, strings.Join(each, ", ")
}
