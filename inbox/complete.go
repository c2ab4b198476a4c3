package inbox

import (
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file says, when a node starts, what keeps it from working though nothing fails.

// sayMissing warns of topics that do not exist.
func (env *env) sayMissing(gen source.Generation) {
	known, ok := gen.(source.Incomplete)
	if !ok {
		return
	}
	missing := known.MissingTopics()
	if len(missing) == 0 {
		return
	}
	names := strings.Join(missing, ", ")
	if suppressed, say := env.limiter.Allow("missing: "+names, sayEvery, time.Now()); say {
		env.c.Logger.Warn("topics are missing: nothing is read of them until they are created", leftOut(suppressed, "consumer", env.c.Consumer, "topics", names)...)
	}
}

// needed is how many connections a node uses: one for each worker of Consume and of Run, and two for the loops.
func needed(c Config, consuming bool) int {
	if consuming {
		return 2*c.Workers + 2
	}
	return c.Workers + 2
}

// sayPool warns of a pool that is too small.
func (env *env) sayPool(consuming bool) {
	if env.pool == nil {
		return
	}
	if most, want := int(env.pool.Config().MaxConns), needed(env.c, consuming); most < want {
		env.c.Logger.Warn("the pool is smaller than the workers need: they wait for each other; set pool_max_conns, or fewer Workers", "consumer", env.c.Consumer,
			"connections", most, "needed", want, "workers", env.c.Workers)
	}
}
