package inbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file replays what may have been in progress at an unclean end. Before handlers start, their starts are counted, a chunk of
// events in one statement. Then the events are handled as always. An event that ends keeps no count. If the process ends again,
// the counts remain, and those events are suspects: they run one at a time, alone in their partition and alone among the suspects
// of the node. So most unclean ends (a kill, a crash of the machine) delay nothing, and the next end has one suspect.
//
// If the process survives without a decision, its counts are taken back.

const (
	// replayChunk is how many events are counted in one statement, at least: Config.BatchSize if that is more. At most two chunks
	// are in progress at once, so that few become suspects.
	replayChunk = 64

	// An event whose starts end the process becomes a dead letter after minEnds of them, or up to maxEnds if Config.Retry allows
	// as many attempts. The first is not counted, the second was in a chunk, and only those after it were of this event alone.
	minEnds = 3
	maxEnds = 4
)

// chunk is how many events are counted together.
func (p *partition) chunk() int { return max(replayChunk, p.c.BatchSize) }

// countChunk counts the starts of the next events of a page, before the first of them begins. It returns how many events it has
// dealt with, and false when reading has to end. Suspects are not counted here.
func (p *partition) countChunk(ctx context.Context, ds []*delivery, dispositions []disposition) (n int, ok bool) {
	n = min(len(ds), p.chunk())
	var chunk []*delivery
	seen := map[[2]string]bool{} // One that comes twice is handled once.
	for i, d := range ds[:n] {
		id := [2]string{d.e.Source, d.e.ID}
		if dispositions[i] == disposeHandle && d.from.offset < p.replayEnd && !seen[id] {
			seen[id] = true
			chunk = append(chunk, d)
		}
	}
	if len(chunk) == 0 {
		return n, true
	}
	counts := p.receiver.ledger.starts
	if !p.untilAnswered(ctx, func(ctx context.Context) error { return counts.suspects(ctx, chunk) }) {
		return n, false
	}
	var fresh []*delivery
	for _, d := range chunk {
		if !d.suspect {
			d.start = 1
			fresh = append(fresh, d)
		}
	}
	p.mu.Lock()
	for _, d := range fresh {
		p.counted[d.from.offset] = d // From here on, release takes back what is not settled.
	}
	p.mu.Unlock()
	failpoint.Hit(failpoint.InboxCounting)
	if len(fresh) > 0 && !p.untilAnswered(ctx, func(ctx context.Context) error { return counts.countAll(ctx, fresh) }) {
		return n, false
	}
	failpoint.Hit(failpoint.InboxCounted)
	return n, true
}

// replayed notes that an event was begun during a replay, and ends the replay after the last one that may have been in progress.
func (p *partition) replayed(offset int64, known bool) {
	if !known {
		p.replayLeft--
	}
	if p.replayLeft <= 0 {
		p.replayEnd = min(p.replayEnd, offset+1)
	}
	p.replaying = offset+1 < p.replayEnd
}

// takeBackStarts takes back the counted starts of events that are not settled. Nothing of the partition is in progress any more.
func (p *partition) takeBackStarts(ctx context.Context) {
	p.mu.Lock()
	left := make([]*delivery, 0, len(p.counted))
	for _, d := range p.counted {
		left = append(left, d)
	}
	p.counted = nil
	p.mu.Unlock()
	p.receiver.ledger.starts.takeBack(ctx, left...)
}

// replaySerially brings a suspect to its outcome, in the reader's goroutine. It returns false when reading has to end. While the
// event waits for room, other partitions have their turns.
func (p *partition) replaySerially(ctx, jobs context.Context, d *delivery) bool {
	var s task // nil: its handler runs
	if d.h != nil && p.receiver.dependencies.waits(d.e.Type) {
		s = p.receiver.storing(d)
	}
	t := p.newIntake(d, s, ctx.Done())
	known := s != nil
	for tries := 1; ; tries++ {
		err := p.exclusively(d.e.Type, func() (err error) {
			failpoint.Hit(failpoint.InboxCounting)
			if s == nil {
				known, err = p.count(ctx, d, t)
			}
			if err == nil {
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
			if err = loop.Sleep(ctx, loop.CapacityDelay(tries, 1, p.random())); err == nil {
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
		return !p.stopped()
	}
}

// exclusively runs f in a turn of the type, while the node runs no other suspect. The turn comes first: other suspects do
// not wait for it. It returns errStopping if the partition is stopped first.
func (p *partition) exclusively(eventType string, f func() error) error {
	turns := p.turnsOf(eventType)
	if !turns.Enter(p.reading.Done()) {
		return errStopping
	}
	defer turns.Leave()
	if !p.serial.Enter(p.reading.Done()) {
		return errStopping
	}
	defer p.serial.Leave()
	if p.stopped() {
		return errStopping
	}
	return f()
}

// count counts that the handler of a suspect is about to start. An event that was started too often is dead-lettered instead.
// known reports that the event came before.
func (p *partition) count(ctx context.Context, d *delivery, t *intake) (known bool, err error) {
	starts := 0
	if !p.untilAnswered(ctx, func(ctx context.Context) (err error) {
		starts, known, err = p.receiver.ledger.starts.count(ctx, d)
		return err
	}) {
		return false, ctx.Err()
	}
	// The end that led to this replay may have been the event's doing, though nobody counted then: so this start is not the
	// process's end yet, and the uncounted one takes its place.
	if ends := starts; ends >= maxEnds || ends >= minEnds && p.of(d.e.Type).Retry.Last(ends) {
		err := failure.Ours("the process ended %d times while it was being handled", ends)
		l := letter{
			reason:   "it ended the process",
			holds:    p.of(d.e.Type).HoldKey,
			attempts: ends,
			errors:   []string{err.Error()},
			err:      err,
			reopen:   true,
		}
		t.h.Decided = true
		t.task, t.next = func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			return p.receiver.ledger.deadLetter(ctx, tx, d, l, Dead)
		}, nil
	}
	return known, nil
}
