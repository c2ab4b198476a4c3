package inbox

import (
	"crypto/rand"
	mathrand "math/rand/v2"

	"github.com/jackc/pgx/v5/pgxpool"
)

// env is what every part of an inbox works with.
type env struct {
	pool    *pgxpool.Pool
	c       Config
	sql     statements
	node    string // this process, among the nodes of the consumer
	random  func() float64
	wakeup  chan struct{} // an event was stored here: Run need not wait for its next look
	limiter rateLimiter
}

func newEnv(pool *pgxpool.Pool, c Config) *env {
	return &env{pool: pool, c: c, sql: newStatements(c), node: rand.Text(), random: mathrand.Float64, wakeup: make(chan struct{}, 1)}
}

// wake tells Run that something was stored.
func (env *env) wake() {
	select {
	case env.wakeup <- struct{}{}:
	default:
	}
}
