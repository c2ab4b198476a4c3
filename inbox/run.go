package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file has the methods that run until their context ends.

// Run handles the stored events of the consumer: retries that are due, the events that wait for them, those of Store, and replays
// of dead letters. Any number of nodes may run it at once. The events of one key are handled one after the other, in order.
//
// Run returns nil when ctx ends. Running handlers may finish within Config.StopTimeout; then they are cancelled, and their events
// go back without an attempt spent. The error wraps ErrHungHandlers when too many handlers hang, and holdfast.ErrSchemaMissing
// or holdfast.ErrSchemaVersion when there is no schema, or one that does not fit this build; an error about missing rights says which.
// A pool that is closed ends it with an error too. Run waits for a database that cannot be reached. Consume runs it too.
//
// Run also removes rows of `inbox` that are no longer needed (Config.Retention, SourceRetention), a few at a time.
func (in *Inbox) Run(ctx context.Context) (err error) {
	if err := in.registry.start(); err != nil {
		return err
	}
	in.vitals.begin(false)
	defer in.usePool(false)()
	defer func() { in.vitals.end(err) }()
	defer in.receiver.dependencies.told()
	g := loop.NewGroup(ctx)
	in.runStored(g)
	return g.Wait()
}

// runStored starts the parts of Run.
func (in *Inbox) runStored(g *loop.Group) {
	g.Run(in.pauses.watch)
	g.Run(in.backlog.workStored)
	g.Run(in.declarations.declareLoop)
	g.Run(in.receiver.watchWiring)
	g.Run(in.skips.skipsLoop)
	g.Run(in.sweeper.sweepLoop)
	g.Run(in.retention.Run)
}

// Consume takes in the events of a consumer group's topics, and also does what Run does. Events of a partition with different keys
// are handled in parallel; those of one key one after the other.
//
// A consumer without a position in Postgres starts at the first offset of each partition, also if the group has committed another
// (Start.AdoptCommitted). Otherwise reading starts at the position or at the group's committed offset, whichever is lower. A broker forgets offsets after a while, and with a deleted topic. A group without an
// offset starts at the position if the log still holds the event that was settled last below it, and at the first offset if
// not. Events below the position are duplicates, or Stale if no row shows that they were handled; Observer.OnReread reports how
// many offsets that may be. To read events again on purpose, set the group's offsets back. After a crash or a failover of
// Postgres the node joins the group again and reading starts in the same way: what the database lost is handled again.
//
// Consume returns nil when ctx ends. Running handlers may finish within Config.StopTimeout and are cancelled then, offsets are
// committed, and the node leaves the group. Consume waits for brokers and databases that cannot be reached. It holds a partition
// whose log does not hold the next offset (source.ErrOffsetOutOfRange), so that no record is skipped silently, and goes on with the
// others. The error wraps ErrHungHandlers when too many handlers hang, ErrConfiguration when the brokers refuse a setting or no type
// has a handler, and holdfast.ErrSchemaMissing or holdfast.ErrSchemaVersion when there is no schema, or one that does not fit
// this build; an error about missing rights says which. A pool that is closed ends it with an error too.
func (in *Inbox) Consume(ctx context.Context, s Source) error {
	if s == nil {
		return errors.New("source is nil: it must be one like kafkago.NewGroup's")
	}
	src, err := open(ctx, in, s)
	if err != nil {
		return err
	}
	return in.consume(ctx, src)
}

// open starts an inbox, and opens a source for it.
func open(ctx context.Context, in *Inbox, s Source) (source.Session, error) {
	if err := in.registry.start(); err != nil {
		return nil, err
	}
	if len(in.registry.types) == 0 {
		return nil, fmt.Errorf("%w: no type has a handler, so every event would be skipped: register handlers (Handle, HandleBatch) before Consume", ErrConfiguration)
	}
	src, err := s.Open(ctx, in.c.StopTimeout+in.c.Grace)
	if err != nil {
		return nil, fmt.Errorf("open source: %w", foreign.Error(err))
	}
	system := wire.System(s)
	in.system.Store(&system)
	return src, nil
}

// consume runs until ctx ends, or until the bound of a backfill is reached.
func (in *Inbox) consume(ctx context.Context, src source.Session) (err error) {
	in.vitals.begin(true)
	defer in.usePool(true)()
	defer func() {
		if errors.Is(err, errArrived) {
			err = nil
		}
		in.vitals.end(err)
	}()
	defer in.receiver.dependencies.told()
	g := loop.NewGroup(ctx)
	in.runStored(g)
	if b, ok := src.(*backfill); ok {
		g.Run(b.watch)
	}
	g.Run(func(ctx context.Context) error { return in.consumer.run(ctx, src) })
	return g.Wait()
}
