package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file holds a partition whose log does not hold the next offset to read. Other partitions go on. The hold ends when a person
// changes the partition's position in Postgres, or sets Start.SkipDeleted and starts again, or when the log holds the event again
// that was settled last. It does not end because a log has grown to the position: the events there are others.

const (
	// holdBase and holdCap are how often a held partition looks again, and is reported.
	holdBase, holdCap = time.Second, time.Minute
)

// errPositionChanged ends a generation, so that the partition is assigned again with the position that it has now.
var errPositionChanged = fmt.Errorf("the position was changed while the partition was held: %w", failure.ErrFenced)

// hold reports that the partition is held, and waits before the next look. tries counts the looks, from 1. The error ends the
// partition: ctx ended, or its position is not the one that it was. own says that this node has claimed the partition.
func (p *partition) hold(ctx context.Context, why error, tries int, own bool) error {
	delay := loop.Spread(holdBase, holdCap, tries, p.random())
	attrs := []any{"consumer", p.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition, "error", loggedError(why), "retry_in", delay}
	if errors.Is(why, source.ErrOffsetOutOfRange) {
		p.c.Logger.Error("partition is held: its offset is out of range", attrs...)
	} else {
		p.c.Logger.Error("partition is held: its next batch cannot be read", attrs...)
	}
	if p.c.Observer.OnHeld != nil {
		held := Assignment{Topic: p.tp.Topic, Partition: p.tp.Partition}
		if own {
			held = Assignment(p.fence.Claim)
		}
		p.c.Observer.OnHeld(held, why)
	}
	text := failure.BoundedError(why)
	if same, err := p.noteHeld(ctx, &text, own); err != nil {
		if ctx.Err() == nil {
			p.transient(err)
		}
	} else if own && !same {
		return errPositionChanged
	}
	return loop.Sleep(ctx, delay)
}

// noteHeld writes why the partition is held, for holdfast status; nil: it is not. same reports that the position is still the one that
// this node has saved.
func (p *partition) noteHeld(ctx context.Context, why *string, own bool) (same bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	var epoch *int64
	if own {
		epoch = &p.fence.Epoch
	}
	at, found, err := p.positions.Hold(ctx, p.tp, why, epoch)
	if err != nil || !found {
		return false, err
	}
	if !own {
		return true, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return at >= p.saved && at <= p.track.Low(), nil // A save may be on its way.
}

// letGo notes that the partition is not held any more. The error ends the partition, as that of hold does.
func (p *partition) letGo(ctx context.Context) error {
	same := false
	if !p.untilAnswered(ctx, func(ctx context.Context) (err error) {
		same, err = p.noteHeld(ctx, nil, true)
		return err
	}) {
		return ctx.Err()
	}
	if !same {
		return errPositionChanged
	}
	return nil
}

// outOfRange decides what to do about an offset that the log does not hold, while the partition is being read. It waits until
// reading may go on, at the offset that it returns. The error ends the partition.
func (p *partition) outOfRange(ctx context.Context, offset int64) (int64, error) {
	var refused error
	for tries, wait := 1, 1; ; wait++ {
		first, end, err := p.gen.Bounds(ctx, p.tp)
		if err = foreign.Error(err); err != nil {
			if ctx.Err() == nil {
				p.brokerTransient("asking for the log's bounds", err)
			}
			if perr := loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait, p.random())); perr != nil {
				return 0, perr
			}
			continue
		}
		same := logUnknown
		if refused != nil {
			same, _ = p.identify(ctx, first, end)
		}
		if refused == nil || same == logSame {
			var r position.Reading
			if r, refused = position.StartAt(offset, offset, first, end, true, false, p.start.SkipDeleted); refused == nil {
				if r.Start > offset {
					p.c.Logger.Warn("records that were deleted before they were handled are skipped", "consumer", p.c.Consumer,
						"topic", p.tp.Topic, "partition", p.tp.Partition, "offsets", r.Start-offset, "start", r.Start)
				}
				if tries > 1 {
					return r.Start, p.letGo(ctx)
				}
				return r.Start, nil
			}
			refused = fmt.Errorf("read %s/%d: %w", p.tp.Topic, p.tp.Partition, p.positions.Remedied(refused, p.tp.Topic, p.tp.Partition))
		}
		if err := p.hold(ctx, refused, tries, true); err != nil {
			return 0, err
		}
		tries++
	}
}
