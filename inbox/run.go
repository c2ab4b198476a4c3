package inbox

import (
	"context"
)

// This file is the loop over what is stored.

// Run works the stored events of the consumer: retries that are due, events behind them, those of Store, and replays of
// dead letters. Any number of nodes may run it at once; the events of one key are handled one after the other, in their
// order. It returns nil when ctx is done: handlers in hand may finish for Config.StopTimeout, are cancelled then, and their
// events go back unspent. The error wraps ErrHungHandlers when it had to stop by itself, and holdfast.ErrSchemaMissing
// where there is no schema. A database that cannot be reached is waited for. Consume runs it too.
//
// It also removes the rows of `inbox` that are no longer needed (Config.Retention), a few at a time.
func (in *Inbox) Run(ctx context.Context) error {
	in.registry.start()
	g := newGroup(ctx)
	in.runStored(g)
	return g.wait()
}

// runStored starts what Run consists of.
func (in *Inbox) runStored(g *group) {
	g.run(in.backlog.workStored)
	g.run(in.declarations.declareLoop)
	g.run(in.sweeper.sweepLoop)
	g.run(in.retention.retentionLoop)
}
