package franz

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file decides which events of a lane are in Kafka and need not be sent. It knows no client or broker.

// ledger is what a lane has committed and its relay may not have saved. Events are counted: an event that is written to the outbox twice
// is published twice.
//
//	           commit                         settled
//	events ──────────────► kept ──────────────────────────► forgotten
//	           the mark of another, or      ▲
//	           a commit without an answer   │ reported
//	       ──────────────► kept and skip ───┘
type ledger struct {
	epoch  int64
	number int64 // of our last transaction that is committed

	kept map[eventHash]int
	skip map[eventHash]int // those of kept that our relay takes for unpublished. Invariant: at most as many as in kept.

	// foundAt is when something was last added to skip.
	foundAt time.Time

	doubt *mark // a transaction of ours that may be committed: its events alone
}

func newLedger(epoch int64) *ledger {
	return &ledger{epoch: epoch, kept: map[eventHash]int{}, skip: map[eventHash]int{}}
}

// next is the mark of the next transaction, which has some events.
func (l *ledger) next(events []eventHash) mark {
	m := mark{
		epoch:  l.epoch,
		number: l.number + 1,
		events: make([]eventHash, 0, len(l.kept)+len(events)),
	}
	for h, n := range l.kept {
		for range n {
			m.events = append(m.events, h)
		}
	}
	m.events = append(m.events, events...)
	return m
}

// committed takes in that the next transaction is committed.
func (l *ledger) committed(events []eventHash) {
	l.number++
	for _, h := range events {
		l.kept[h]++
	}
}

// doubted takes in that the next transaction may be committed.
func (l *ledger) doubted(events []eventHash) {
	l.doubt = &mark{epoch: l.epoch, number: l.number + 1, events: events}
}

// resolve takes in the last mark of the lane, nil for none, once every other producer of it is fenced, which happened at a time. It says
// whether the transaction in doubt is committed; its events are in skip then. An error means that the producer does not know what
// is published.
func (l *ledger) resolve(last *mark, at time.Time) (committed bool, err error) {
	doubt := l.doubt
	switch {
	case last != nil && last.epoch > l.epoch:
		return false, fmt.Errorf("%w: a claim with epoch %d has published it, and this one has epoch %d", publish.ErrLaneTaken, last.epoch, l.epoch)
	case last != nil && last.epoch == l.epoch && doubt != nil && last.number == doubt.number && last.endsWith(doubt.events):
		l.doubt = nil
		l.committed(doubt.events)
		l.found(doubt.events, at)
		return true, nil
	case last != nil && last.epoch == l.epoch && last.number == l.number:
		l.doubt = nil
		return false, nil
	case last != nil && last.epoch == l.epoch:
		return false, fmt.Errorf("%w: its last mark is of transaction %d of its epoch %d, and this producer knows of %d: no other installation may use the transactional id, nor this one after a restore of its database", publish.ErrLaneTaken, last.number, l.epoch, l.number)
	case l.number > 0:
		return false, fmt.Errorf("%w: the mark of its transaction %d is gone: the marks topic was emptied or recreated, or an old node became its leader", publish.ErrLaneTaken, l.number)
	}
	// The first of our epoch, or another owner has published since we looked.
	l.doubt = nil
	clear(l.kept)
	clear(l.skip)
	if last != nil {
		for _, h := range last.events {
			l.kept[h]++
		}
		l.found(last.events, at)
	}
	return false, nil
}

func (l *ledger) found(events []eventHash, at time.Time) {
	for _, h := range events {
		l.skip[h]++
	}
	l.foundAt = at
}

// reported says whether an event is in Kafka already. Its relay gets that answer once.
func (l *ledger) reported(h eventHash) bool {
	n := l.skip[h]
	if n > 0 {
		set(l.skip, h, n-1)
	}
	return n > 0
}

// settled takes in what the relay will not publish again.
func (l *ledger) settled(events []publish.EventName, readAt time.Time) {
	for _, name := range events {
		h := hashOf(name)
		if n := l.kept[h]; n > 0 {
			set(l.kept, h, n-1)
			if l.skip[h] > n-1 {
				set(l.skip, h, n-1)
			}
		}
	}
	if readAt.After(l.foundAt) {
		// What the mark named beyond that, its owner had saved without writing another mark.
		for h, n := range l.skip {
			set(l.kept, h, l.kept[h]-n)
		}
		clear(l.skip)
	}
}

func set(counts map[eventHash]int, h eventHash, n int) {
	if n > 0 {
		counts[h] = n
	} else {
		delete(counts, h)
	}
}
