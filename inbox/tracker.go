package inbox

import "github.com/holdfast-go/holdfast/inbox/source"

// tracker knows which offsets of a partition are settled. It is safe to commit the offset below which all are settled. A higher one,
// above an event in progress, would lose that event with the process.
//
// One goroutine at a time may use it. partition guards it with its mutex.
type tracker struct {
	begun []begun // in the order of offsets; the first is not settled
	next  int64   // every offset below it was begun, or holds no event
	first int     // the index of begun[0] among all that were ever begun
	index map[int64]int
	bytes int64      // in progress
	last  checkpoint // the highest event below low that was begun here
}

type begun struct {
	offset   int64
	bytes    int64
	memory   reservation
	identity int64 // the event's identity, for last
	settled  bool
}

func newTracker(start int64) *tracker {
	return &tracker{next: start, index: map[int64]int{}, last: checkpoint{offset: source.NoOffset}}
}

// begin adds an event, and the memory that it takes. Offsets ascend.
func (t *tracker) begin(offset, bytes int64, memory reservation, identity int64) {
	if offset < t.next {
		panic("inbox: an offset was begun out of order")
	}
	t.index[offset] = t.first + len(t.begun)
	t.begun = append(t.begun, begun{offset: offset, bytes: bytes, memory: memory, identity: identity})
	t.next = offset + 1
	t.bytes += bytes
}

// skipTo notes that no event lies between what was begun and offset.
func (t *tracker) skipTo(offset int64) { t.next = max(t.next, offset) }

// settle notes that the event's outcome is durable.
func (t *tracker) settle(offset int64) {
	i, ok := t.index[offset]
	if !ok {
		panic("inbox: an offset was settled that is not in progress")
	}
	delete(t.index, offset)
	b := &t.begun[i-t.first]
	b.settled = true
	b.memory.give()
	t.bytes -= b.bytes
	n := 0
	for n < len(t.begun) && t.begun[n].settled {
		t.last = checkpoint{t.begun[n].offset, t.begun[n].identity}
		n++
	}
	t.begun, t.first = t.begun[n:], t.first+n
}

// give gives back the memory of the events that are not settled.
func (t *tracker) give() {
	for i := range t.begun {
		t.begun[i].memory.give()
	}
}

// low is the offset below which everything is settled.
func (t *tracker) low() int64 {
	if len(t.begun) > 0 {
		return t.begun[0].offset
	}
	return t.next
}

// unsettled is how many events are in progress.
func (t *tracker) unsettled() int { return len(t.index) }

// spread is how many events lie between low and the last one begun.
func (t *tracker) spread() int { return len(t.begun) }

const (
	// maxAhead is how many events of a partition may be in progress. After an unclean end, that many may have been.
	maxAhead = 1024

	// maxSpread is how many events may lie between the lowest unsettled one of a partition and the last begun. After an unclean
	// end that many are read again, most of them duplicates. It is more than maxAhead, so that an event whose handler takes long
	// holds nobody up.
	maxSpread = 16 * maxAhead
)

// checkpoint is the last event below a position, and is saved with it. In a topic that was made again, another event has its offset,
// or none.
type checkpoint struct {
	offset   int64 // NoOffset: no event of the partition was settled yet
	identity int64 // the event's identity
}
