package inbox

import "sync"

// This file bounds the bytes of the stored events that a node has claimed. They have a share of their own, an eighth of
// Config.MemoryBudget: partitions that wait for room among the stored events would otherwise leave these none.

// storedMemory counts what the workers of stored events have in memory. Safe for use by many goroutines.
type storedMemory struct {
	bytes int64

	mu   sync.Mutex
	used int64
	more bool // a claim since the last give may have left events because of their bytes
}

// leastStored is what a claimed event counts at least.
const leastStored = 4 << 10

func newStoredMemory(bytes int64, workers int) *storedMemory {
	return &storedMemory{bytes: max(bytes, 2*leastStored*int64(workers))}
}

// room is how many bytes of events a claim may take. alone says that it may take one of any size: nothing else is in memory.
func (m *storedMemory) room() (bytes int64, alone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bytes, alone = max(m.bytes-m.used, 0)/2, m.used == 0
	m.more = m.more || !alone // The first event that is due may be larger than any part of the memory.
	return bytes, alone
}

// reserve counts an event twice: when its worker ends it, the next one of its key is in memory, too.
func (m *storedMemory) reserve(s *claimed) {
	s.reserved = max(2*s.cost(), leastStored)
	m.mu.Lock()
	m.used += s.reserved
	m.mu.Unlock()
}

// give ends reserve, after the last event of its key. again says that a claim may find more now.
func (m *storedMemory) give(s *claimed) (again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= s.reserved
	s.reserved = 0
	again, m.more = m.more, false
	return again
}

// next is how many bytes the next event of the key may have, to be claimed by the worker of this one.
func (cl *claimed) next() int64 { return max(cl.reserved-cl.cost(), leastStored) }

// cost is about what the event takes in memory.
func (cl *claimed) cost() int64 {
	n := 256 + len(cl.e.Key) + len(cl.e.Payload)
	for name, value := range cl.e.Headers {
		n += 64 + len(name) + len(value)
	}
	return int64(n)
}
