package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file replays a partition after an unclean end: one event of the node at a time, each start counted first. If the handler ends
// the process, the count remains. If the process survives without a decision, the count is taken back before the node begins
// another event.

// replaySerially brings one event to its outcome, in the reader's goroutine. It returns false when reading has to end. While the
// event waits for room, other partitions have their turns.
func (p *partition) replaySerially(ctx, jobs context.Context, d *delivery, s step) bool {
	t := p.newIntake(d, s, ctx.Done())
	known := false
	for tries := 1; ; tries++ {
		err := p.exclusively(func() (err error) {
			failpoint.Hit(failpoint.InboxCounting)
			if known, err = p.count(ctx, d, t); err == nil {
				failpoint.Hit(failpoint.InboxCounted)
				_, err = p.receiver.receive(jobs, t, nil)
			}
			if err != nil && !known && d.start > 0 { // It may be counted even if the answer did not come.
				p.receiver.ledger.starts.takeBack(jobs, d)
			}
			return err
		})
		if errors.Is(err, ErrFull) {
			p.notifyFull(d, err)
			if err = pause(ctx, capacityDelay(tries, 1, p.random())); err == nil {
				continue
			}
		}
		if err == nil {
			p.settle(d)
			err = p.receiver.runner.tooManyHung()
		}
		if err != nil {
			p.failWith(err)
			return false
		}
		break
	}
	if !known {
		p.replayLeft--
	}
	if p.replayLeft <= 0 || d.from.offset+1 >= p.replayEnd {
		p.replaying = false
	}
	return !p.stopped()
}

// exclusively runs f while no other partition of the node does. It returns errStopping if the partition is stopped first.
func (p *partition) exclusively(f func() error) error {
	p.serial.Lock()
	defer p.serial.Unlock()
	if p.stopped() {
		return errStopping
	}
	return f()
}

// count counts that the handler is about to start. An event that was started too often is dead-lettered instead. known reports that
// the event came before.
func (p *partition) count(ctx context.Context, d *delivery, t *intake) (known bool, err error) {
	starts := 0
	if !p.untilAnswered(ctx, func(ctx context.Context) (err error) {
		starts, known, err = p.receiver.ledger.starts.count(ctx, d)
		return err
	}) {
		return false, ctx.Err()
	}
	// The end that led to this replay may have been the event's doing, though nobody counted then. With a single attempt that
	// would condemn every event in progress. In that case the first counted start is the first.
	previous := starts
	if p.c.Retry.Last(1) {
		previous = starts - 1
	}
	if previous > 0 && p.c.Retry.Last(previous) {
		err := fmt.Errorf("the process ended %d times while it was being handled", previous)
		l := letter{reason: "it ended the process", holds: p.c.HoldKey, attempts: previous, errors: []string{err.Error()}, err: err, reopen: true}
		t.h.decided = true
		t.step, t.next = func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			return p.receiver.ledger.deadLetter(ctx, tx, d, l, Dead)
		}, nil
	}
	return known, nil
}
