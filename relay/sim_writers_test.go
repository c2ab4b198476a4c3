package relay

import (
	"fmt"
	"time"

	hash "github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

func eventID(n int) string { return fmt.Sprint("e", n) }

// write is a writer: transactions on one or two keys, under locks taken in order before the first event of a key is
// written, with ids drawn early or late, pauses everywhere, rollbacks, and transactions that are long or prepared.
func (s *sim) write() {
	for s.chaos && s.events < s.plan.events {
		s.sleep(time.Duration(s.rng.IntN(60)) * time.Millisecond)
		s.busy++
		s.transact()
		s.busy--
	}
}

// rest pauses at times.
func (s *sim) rest() {
	if s.one(2) {
		s.pause(nil, time.Time{})
	}
}

func (s *sim) transact() {
	tx := s.db.Begin()
	if s.plan.repeatable && s.one(2) {
		tx.Repeatable()
		if s.rest(); !tx.Open() {
			return // the server crashed
		}
	}
	if s.one(2) {
		tx.Draw() // an early id, long before the locks: the trap of ordering by it
		s.rest()
	}
	first, keys := s.rng.IntN(s.plan.keys), 1
	if s.one(3) {
		keys = 2
	}
	if s.plan.tenants && s.tenantRng.IntN(5) > 0 {
		first, keys = 0, 1 // the noisy one
	}
	for k := first; k < min(first+keys, s.plan.keys); k++ {
		q := queueOf(k, s.plan.tenants)
		for tx.Open() && !tx.Lock(q.key) {
			s.sleep(5 * time.Millisecond)
		}
		s.rest()
		for range 1 + s.rng.IntN(2) {
			if !tx.Open() {
				return // the server crashed
			}
			s.append(tx, q.topic, q.key)
			s.rest()
		}
	}
	if !tx.Open() {
		return
	}
	if s.plan.long && s.one(8) {
		s.sleep(time.Duration(s.rng.IntN(2000)) * time.Millisecond)
	}
	switch {
	case s.plan.long && s.one(8) && tx.Open():
		tx.Prepare()
		s.sleep(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
		if s.one(4) {
			tx.Rollback()
			return
		}
	case s.one(4):
		tx.Rollback()
		return
	}
	_ = tx.Commit()
}

func (s *sim) append(tx *simdb.Tx, topic, key string) {
	id := eventID(s.events)
	s.events++
	if s.plan.scheduled && s.one(10) {
		t := s.oracle.written(id, queue{topic, "late"}, false)
		s.spoil(id, true)
		now := s.db.Now()
		// In a transaction of its own: nothing is asked of the order of scheduled events.
		own := s.db.Begin()
		own.Schedule(simdb.Scheduled{Lane: hash.Of("late", id, s.plan.lanes), DueAt: now.Add(time.Duration(s.rng.IntN(1000)) * time.Millisecond), ID: id, Topic: topic, Key: "late"})
		if own.Commit() == nil {
			s.oracle.commit(t)
		}
		return
	}
	if s.one(10) {
		key = ""
	}
	segment := s.db.Segment()
	if s.one(4) {
		s.pause(nil, time.Time{}) // the log may rotate, and empty that segment
		if !tx.Open() {
			return
		}
	}
	s.oracle.written(id, queue{topic, key}, key != "")
	s.spoil(id, false)
	tx.Append(segment, simdb.Event{ID: id, Topic: topic, Key: key, Lane: hash.Of(key, id, s.plan.lanes), Payload: make([]byte, s.rng.IntN(40))})
}

// queueOf is the topic and the key that writers number k, which may be a tenant's.
func queueOf(k int, tenants bool) queue {
	q := queue{[]string{"orders", "other"}[k%2], fmt.Sprint("k", k)}
	if tenants {
		q.key = fmt.Sprintf("t%d/%s", k, q.key)
	}
	return q
}
