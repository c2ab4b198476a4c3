// Package readahead says how far a partition is read ahead of what is settled: which of the offsets that were begun are settled
// (Tracker), how many bytes events in memory may take (Memory), and up to where a backfill reads (Bound).
package readahead

import "github.com/holdfast-go/holdfast/inbox/source"

// Tracker knows which offsets of a partition are settled. It is safe to commit the offset below which all are settled. A higher one,
// above an event in progress, would lose that event with the process.
//
// One goroutine at a time may use it. partition guards it with its mutex.
type Tracker struct {
	begun []begun // in the order of offsets; the first is not settled
	Next  int64   // every offset below it was begun, or holds no event
	first int     // the index of begun[0] among all that were ever begun
	index map[int64]int
	Bytes int64      // in progress
	Last  Checkpoint // the highest event below low that was begun here
}

type begun struct {
	offset   int64
	bytes    int64
	memory   Reservation
	identity int64 // the event's identity, for last
	settled  bool
}

// NewTracker returns a Tracker of a partition that is read from an offset on.
func NewTracker(start int64) *Tracker {
	return &Tracker{Next: start, index: map[int64]int{}, Last: Checkpoint{Offset: source.NoOffset}}
}

// Begin adds an event, and the memory that it takes. Offsets ascend.
func (t *Tracker) Begin(offset, bytes int64, memory Reservation, identity int64) {
	if offset < t.Next {
		panic("inbox: an offset was begun out of order")
	}
	t.index[offset] = t.first + len(t.begun)
	t.begun = append(t.begun, begun{
		offset:   offset,
		bytes:    bytes,
		memory:   memory,
		identity: identity,
	})
	t.Next = offset + 1
	t.Bytes += bytes
}

// SkipTo notes that no event lies between what was begun and offset.
func (t *Tracker) SkipTo(offset int64) { t.Next = max(t.Next, offset) }

// Settle notes that the event's outcome is durable.
func (t *Tracker) Settle(offset int64) {
	i, ok := t.index[offset]
	if !ok {
		panic("inbox: an offset was settled that is not in progress")
	}
	delete(t.index, offset)
	b := &t.begun[i-t.first]
	b.settled = true
	b.memory.Give()
	t.Bytes -= b.bytes
	n := 0
	for n < len(t.begun) && t.begun[n].settled {
		t.Last = Checkpoint{t.begun[n].offset, t.begun[n].identity}
		n++
	}
	t.begun, t.first = t.begun[n:], t.first+n
}

// Give gives back the memory of the events that are not settled.
func (t *Tracker) Give() {
	for i := range t.begun {
		t.begun[i].memory.Give()
	}
}

// Low is the offset below which everything is settled.
func (t *Tracker) Low() int64 {
	if len(t.begun) > 0 {
		return t.begun[0].offset
	}
	return t.Next
}

// Unsettled is how many events are in progress.
func (t *Tracker) Unsettled() int { return len(t.index) }

// Spread is how many events lie between low and the last one begun.
func (t *Tracker) Spread() int { return len(t.begun) }

const (
	// MaxAhead is how many events of a partition may be in progress. After an unclean end, that many may have been.
	MaxAhead = 1024

	// MaxSpread is how many events may lie between the lowest unsettled one of a partition and the last begun. After an unclean
	// end that many are read again, most of them duplicates. It is more than MaxAhead, so that an event whose handler takes long
	// holds nobody up.
	MaxSpread = 16 * MaxAhead
)

// Checkpoint is the last event below a position, and is saved with it. In a topic that was recreated, another event has its offset,
// or none.
type Checkpoint struct {
	Offset   int64 // NoOffset: no event of the partition was settled yet
	Identity int64 // the event's identity
}
