package inbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file saves positions in Postgres, commits the same offsets to the group, and releases partitions.

// saveLoop saves the positions of all partitions in one statement, and then commits the same offsets to Kafka. So Postgres never
// has a lower position than the group.
func (co *consumer) saveLoop(ctx context.Context, gen source.Generation, h *owned) {
	wait := saveEvery
	looked := time.Now()
	for loop.Sleep(ctx, wait) == nil {
		begun := time.Now()
		err := h.each(func(parts []*partition) error {
			err := co.save(ctx, gen, parts)
			if err == nil && begun.Sub(looked) >= lookEvery {
				looked = begun
				err = co.look(ctx, parts)
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			co.transient(err)
		}
		wait = loop.Rest(time.Since(begun), 10, saveEvery, saveAtLeast)
	}
}

func (co *consumer) save(ctx context.Context, gen source.Generation, parts []*partition) error {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	var all []position.Progress
	var moved []*partition
	for _, p := range parts {
		if low, last, ok := p.unsaved(); ok {
			all, moved = append(all, position.Progress{
				Fence:   p.fence,
				Settled: low,
				Last:    last,
			}), append(moved, p)
		}
	}
	if len(moved) > 0 {
		mine, err := co.positions.Save(ctx, all)
		if err != nil {
			return err
		}
		if len(mine) < len(moved) {
			if err := co.look(ctx, parts); err != nil {
				return err // It is not known yet why some are not ours.
			}
		}
		for i, p := range moved {
			if !mine[p.tp] {
				p.fencedOff()
				continue
			}
			p.savedAt(all[i].Settled)
			if co.c.Observer.OnSettled != nil {
				co.c.Observer.OnSettled(Assignment(p.fence.Claim), all[i].Settled)
			}
		}
	}
	co.commit(ctx, gen, parts)
	return nil
}

// commit commits the saved positions that the group does not have yet.
func (co *consumer) commit(ctx context.Context, gen source.Generation, parts []*partition) {
	offsets := map[source.TopicPartition]int64{}
	for _, p := range parts {
		if offset, ok := p.uncommitted(); ok {
			offsets[p.tp] = offset
		}
	}
	if len(offsets) == 0 {
		return
	}
	failpoint.Hit(failpoint.InboxCommittingOffset)
	if err := foreign.Error(gen.Commit(ctx, offsets)); err != nil {
		// Events above the last committed offset come again as duplicates.
		co.brokerTransient("committing offsets", err)
		return
	}
	failpoint.Hit(failpoint.InboxOffsetCommitted)
	for _, p := range parts {
		if offset, ok := offsets[p.tp]; ok {
			p.committedAt(offset)
		}
	}
}

// release releases partitions whose work has ended. It saves each position, and whether the end was clean.
func (co *consumer) release(gen source.Generation, parts []*partition) {
	ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range parts {
		if p.fence == nil {
			continue // It was never claimed.
		}
		wg.Go(func() {
			low, last, clean := p.end()
			// The next owner continues a replay that has not ended.
			orderly := clean && low >= p.replayEnd
			if p.repositioned() {
				low, last.Offset = source.NoOffset, source.NoOffset
			}
			failpoint.Hit(failpoint.InboxReleasing)
			same, err := co.positions.Release(ctx, position.Progress{
				Fence:   p.fence,
				Settled: low,
				Last:    last,
			}, orderly)
			switch {
			case errors.Is(err, failure.ErrFenced):
				p.fencedOff() // It was lost while nothing was in progress that could have noticed.
			case err != nil:
				co.transient(err)
			case !same:
				p.staleGeneration()
			default:
				p.savedAt(low)
			}
			p.takeBackStarts(ctx)
			co.c.Logger.Info("partition released", "consumer", co.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition, "position", low, "clean", clean)
			if co.c.Observer.OnRevoked != nil {
				co.c.Observer.OnRevoked(Assignment(p.fence.Claim), clean)
			}
		})
	}
	wg.Wait()
	failpoint.Hit(failpoint.InboxReleased)
	// The offsets get their own time-out: a position that could not be saved must not delay those that were.
	committing, done := context.WithTimeout(context.Background(), finishTimeout)
	defer done()
	co.commit(committing, gen, parts)
}

const (
	// saveEvery is how often positions are saved and offsets committed, at most. If that takes long, it happens less often.
	saveEvery = 100 * time.Millisecond

	// saveAtLeast is how often at least, however long it takes: what is not saved is read again after a crash.
	saveAtLeast = 2 * time.Second
)

// lookEvery is how often the database's token is read while no position moves. Otherwise what a quiet partition lost would wait for its
// next event.
const lookEvery = time.Second

// renew fills the database's token after a crash has emptied it.
func (co *consumer) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	return co.positions.Renew(ctx)
}

// look gives up partitions that were assigned in another incarnation of the database.
func (co *consumer) look(ctx context.Context, parts []*partition) error {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	token, err := co.positions.Incarnation(ctx)
	if err != nil {
		return err
	}
	for _, p := range parts {
		p.mu.Lock()
		old := p.fence != nil && p.fence.Token != token
		p.mu.Unlock()
		if old {
			p.staleGeneration()
		}
	}
	return nil
}
