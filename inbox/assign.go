package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file claims a partition in Postgres and chooses where to read it from.

// assign claims the partition in Postgres. It tries until that succeeds or ctx ends.
func (p *partition) assign(ctx context.Context) error {
	known := int64(source.NoOffset) // the position, read before the bounds were asked for
	var refused refusal
	held := 0
	for wait := 0; ; wait++ {
		first, end, err := p.gen.Bounds(ctx, p.tp)
		err = foreign.Error(err)
		if err != nil && ctx.Err() == nil {
			p.brokerTransient("asking for the log's bounds", err)
		}
		id, ok := logUnknown, err == nil
		if ok {
			id, ok = p.identify(ctx, first, end)
		}
		if ok {
			var a position.Assigned
			a, err = p.positions.Assign(ctx, p.tp.Topic, p.tp.Partition, groupOf(p.gen), func(at int64) (position.Reading, error) {
				if at > end && known <= end { // The last owner went on while we waited for the fence or were frozen.
					known = at
					return position.Reading{}, errOldBounds
				}
				if refused.stands(at, id) {
					return position.Reading{}, refused.err
				}
				committed := p.start.Committed
				if id == logOther { // It belongs to the other log, too.
					committed = source.NoOffset
				}
				r, err := position.StartAt(at, committed, first, end, id == logSame, p.start.AdoptCommitted, p.start.SkipDeleted)
				refused = refusal{at, err}
				return r, err
			})
			if err == nil {
				failpoint.Hit(failpoint.InboxAssigned)
				p.mu.Lock()
				p.fence, p.track = a.Fence, readahead.NewTracker(a.Reading.Start)
				p.saved, p.known = a.Reading.Start, p.start.Committed
				if a.Unclean {
					p.replaying, p.replayLeft, p.replayEnd = true, readahead.MaxAhead, end
				}
				p.mu.Unlock()
				p.c.Logger.Info("partition assigned", "consumer", p.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition,
					"epoch", a.Fence.Epoch, "start", a.Reading.Start, "position", a.Reading.Position, "committed", p.start.Committed, "unclean", a.Unclean)
				if p.c.Observer.OnAssigned != nil {
					p.c.Observer.OnAssigned(Assignment(a.Fence.Claim), a.Reading.Start)
				}
				p.otherGroup(a.OtherGroup)
				p.notifyReread(a.Fence, a.Reading, id)
				return nil
			}
			if errors.Is(err, errOldBounds) {
				continue
			}
			if errors.Is(err, source.ErrOffsetOutOfRange) {
				held++
				if err := p.hold(ctx, err, held, false); err != nil {
					return err
				}
				continue
			}
			if fatal(err) {
				return err
			}
			if ctx.Err() == nil {
				p.transient(err)
			}
		}
		if perr := loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait+1, p.random())); perr != nil {
			return perr
		}
	}
}

// groupOf is the name of a generation's group; "" if the generation does not tell.
func groupOf(gen source.Generation) string {
	if g, ok := gen.(source.Grouped); ok {
		return g.GroupID()
	}
	return ""
}

// otherGroup says that another group had the partition and did not release it. Two groups under one Consumer take each partition
// from each other again and again.
func (p *partition) otherGroup(other string) {
	if other == "" {
		return
	}
	if _, say := p.limiter.Allow("group", time.Minute, time.Now()); say {
		p.c.Logger.Warn("another group has read this partition for the same consumer: give each group a Consumer of its own", "consumer", p.c.Consumer,
			"topic", p.tp.Topic, "partition", p.tp.Partition, "group", groupOf(p.gen), "other_group", other)
	}
}

// refusal is why StartAt refused a position.
type refusal struct {
	position int64
	err      error // nil: it did not
}

// stands reports that the refusal still stands. A log that has grown to the position since is not the one that the position
// belongs to, unless it holds the event that was settled last.
func (r refusal) stands(position int64, id logIdentity) bool {
	return r.err != nil && r.position == position && id != logSame
}

// errOldBounds means that the log's bounds were read before the position, and the log may have grown since.
var errOldBounds = errors.New("the log's bounds may be older than the position")
