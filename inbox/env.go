package inbox

import (
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/group"
	"github.com/holdfast-go/holdfast/internal/correlation"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/process"
	"github.com/holdfast-go/holdfast/internal/quiet"
	"github.com/holdfast-go/holdfast/internal/rights"
)

// env is what every part of an inbox uses.
type env struct {
	pool     *pgxpool.Pool
	settings // the Config c, and what the registrations of types change
	sql      statements
	node     string // names this process among the nodes of the consumer
	random   func() float64
	wakeup   chan struct{} // this node stored an event: Run looks at once
	limiter  quiet.Limiter
	tested   quiet.Limiter // of tests of the pool
	rights   *rights.Checks
	doubts   chan error    // an error of our statements that waiting may never cure
	asking   chan struct{} // full while the question about a handler is asked
	beside   chan struct{} // full while a handler has a connection beside the pool
	groups   group.Times
	vitals   vitals // what Health tells

	system atomic.Pointer[string] // the messaging system of the last source; nil before the first
}

func newEnv(pool *pgxpool.Pool, c Config) *env {
	return &env{
		pool:     pool,
		settings: settings{c: c, kinds: map[string]kind{}},
		sql:      newStatements(c),
		rights: &rights.Checks{
			Pool:     pool,
			Schema:   c.Schema,
			Rights:   rights.Of["consumer"],
			Consumer: c.Consumer,
			Logger:   c.Logger,
		},
		node:   process.Name(c.Consumer),
		random: mathrand.Float64,
		wakeup: make(chan struct{}, 1),
		doubts: make(chan error, 1),
		asking: make(chan struct{}, 1),
		beside: make(chan struct{}, 1),
		groups: group.DefaultTimes,
	}
}

// wake tells Run that an event was stored.
func (env *env) wake() {
	select {
	case env.wakeup <- struct{}{}:
	default:
	}
	for _, k := range env.kinds {
		if k.turns != nil {
			select {
			case k.wakeup <- struct{}{}:
			default:
			}
		}
	}
}

// keyNumber is the number of a key's lock in the class lane.KeyClass. Package dlq takes it before it changes a key's queue.
func (env *env) keyNumber(topic, key string) int32 {
	return lane.Number(env.c.Schema, env.c.Consumer, topic, key)
}

// attrs are the attributes of an event in a log line: never its payload, its key or its headers, except for the one that is there to
// correlate logs.
func (env *env) attrs(e holdfast.Event) []any {
	attrs := []any{"consumer", env.c.Consumer, "topic", e.Topic, "type", e.Type, "source", e.Source, "event_id", e.ID}
	if id := env.correlation(e); id != "" {
		attrs = append(attrs, "correlation_id", id)
	}
	return attrs
}

// correlation is the name by which other logs know an event.
func (env *env) correlation(e holdfast.Event) string {
	return correlation.ID(func(name string) string { return e.Headers[name] }, env.c.CorrelationHeader)
}

// sayEvery is the time between two logged lines of one kind that say what is waited for. The observer gets every error. The log does not: every
// worker waits for the same database, and an operator should not have to read a thousand equal lines.
const sayEvery = time.Minute
