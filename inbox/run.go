package inbox

import (
	"context"
	"errors"
	"fmt"
)

// This file is the methods that run until their context ends.

// Run works the stored events of the consumer: retries that are due, events behind them, those of Store, and replays of
// dead letters. Any number of nodes may run it at once; the events of one key are handled one after the other, in their
// order. It returns nil when ctx is done: running handlers may finish for Config.StopTimeout, are cancelled then, and their
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

// Consume takes in the events of a consumer group's topics, and runs what Run runs. A partition's events are handled in
// parallel as far as their keys differ; those of one key one after the other. A new group starts at the first offset;
// otherwise reading starts at the lower of the consumer's position in Postgres and the group's committed offset. Where the
// group has none it starts at the position, if the log still holds the event that was settled last below it, and else at
// the first offset: Kafka forgets offsets after a while, and with a topic that is deleted. What is read below the position
// is a duplicate, or Stale where no row knows it any more; Observer.OnReread tells how much that may be. To read again on
// purpose, set the group's offsets back. After a crash or a failover of Postgres the group is joined anew, and reading
// starts again so: what was lost with the database's last transactions is handled again.
//
// It returns nil when ctx is done: running handlers may finish for Config.StopTimeout and are cancelled then, offsets are
// committed, and the group is left. Brokers and databases that cannot be reached are waited for. It returns an error
// that wraps ErrOffsetOutOfRange when a log does not hold what is to be read next, so that nothing is skipped in silence,
// ErrHungHandlers when too many handlers hang, ErrConfiguration when the brokers refuse a setting, and
// holdfast.ErrSchemaMissing where there is no schema.
func (in *Inbox) Consume(ctx context.Context, s Source) error {
	if s == nil {
		return errors.New("source is nil: pass kafkago.NewGroup's")
	}
	in.registry.start()
	src, err := s.Open(ctx, in.c.StopTimeout+in.c.Grace)
	if err != nil {
		return fmt.Errorf("open source: %w", err)
	}
	return in.consume(ctx, src)
}

func (in *Inbox) consume(ctx context.Context, src Session) error {
	g := newGroup(ctx)
	in.runStored(g)
	g.run(func(ctx context.Context) error { return in.consumer.run(ctx, src) })
	return g.wait()
}
