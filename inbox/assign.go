package inbox

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file claims a partition in Postgres and chooses where to read it from.

// assign claims the partition in Postgres. It tries until that succeeds or ctx ends.
func (p *partition) assign(ctx context.Context) error {
	known := int64(NoOffset) // the position, read before the bounds were asked for
	for wait := 0; ; wait++ {
		first, end, err := p.gen.Bounds(ctx, p.tp)
		if err != nil && ctx.Err() == nil {
			p.kafkaTransient("asking for the log's bounds", err)
		}
		same, ok := false, err == nil
		if ok {
			same, ok = p.sameIdentity(ctx, first)
		}
		if ok {
			var a assignment
			a, err = p.fences.assign(ctx, p.tp.Topic, p.tp.Partition, func(position int64) (reading, error) {
				if position > end && known <= end { // The last owner went on while we waited for the fence or were frozen.
					known = position
					return reading{}, errOldBounds
				}
				return startAt(position, p.start.Committed, first, end, same, p.start.AdoptCommitted, p.start.SkipDeleted)
			})
			if err == nil {
				failpoint.Hit(failpoint.InboxAssigned)
				p.mu.Lock()
				p.fence, p.track = a.fence, newTracker(a.reading.start)
				p.saved, p.known = a.reading.start, p.start.Committed
				p.replaying, p.replayLeft, p.replayEnd = a.unclean, maxAhead, end
				p.mu.Unlock()
				p.c.Logger.Info("partition assigned", "consumer", p.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition,
					"epoch", a.fence.Epoch, "start", a.reading.start, "position", a.reading.position, "committed", p.start.Committed, "unclean", a.unclean)
				if p.c.Observer.OnAssigned != nil {
					p.c.Observer.OnAssigned(a.fence.Assignment, a.reading.start)
				}
				p.notifyReread(a.fence, a.reading)
				return nil
			}
			if errors.Is(err, errOldBounds) {
				continue
			}
			if fatal(err) {
				return err
			}
			if ctx.Err() == nil {
				p.transient(err)
			}
		}
		if perr := pause(ctx, spread(databaseBase, databaseCap, wait+1, p.random())); perr != nil {
			return perr
		}
	}
}

// errOldBounds means that the log's bounds were read before the position, and the log may have grown since.
var errOldBounds = errors.New("the log's bounds may be older than the position")
