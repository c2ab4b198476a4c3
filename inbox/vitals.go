package inbox

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// seen is what the loops of an inbox saw last. Times are zero for what has not happened.
type seen struct {
	begun     bool
	ended     bool
	endedWith error
	schema    error // why the schema does not fit, or was not reached, if no loop runs

	reached bool   // the database has answered
	away    outage // it does not answer
	broker  outage // it does not answer

	consuming bool      // Consume runs, and not Run
	joined    bool      // a generation of the group runs
	joining   time.Time // since when it does not
	everIn    bool      // it was a member before

	starved      source.TopicPartition // whose reader has waited longest for memory
	starvedSince time.Time             // zero: none waits

	backfill *Progress // of ConsumeUntil; nil: none has begun
	full     string    // why the last event that found no room did not; "": the backfill has moved since
}

// outage is trouble that lasts. The zero value is none.
type outage struct {
	since, last time.Time // it was met first, and last
	why         error
}

// calmAfter is how long nothing fails until an answer to a read shows that an outage is over. While something does, it fails again
// within loop.DatabaseCap: reads may succeed where nothing can be written.
const calmAfter = 3 * time.Second

// over says that an answer to a read ends the outage.
func (o outage) over(now time.Time) bool { return now.Sub(o.last) >= calmAfter }

// vitals keeps what the loops see. Many goroutines may use it at once. The zero value is ready.
type vitals struct {
	mu      sync.Mutex
	seen    seen
	waiting map[source.TopicPartition]time.Time // since when readers wait for memory
}

func (v *vitals) read() seen {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.seen
	for tp, since := range v.waiting {
		if s.starvedSince.IsZero() || since.Before(s.starvedSince) {
			s.starved, s.starvedSince = tp, since
		}
	}
	return s
}

// waits records that the reader of a partition waits for memory, until the caller calls done.
func (v *vitals) waits(tp source.TopicPartition) (done func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.waiting == nil {
		v.waiting = map[source.TopicPartition]time.Time{}
	}
	v.waiting[tp] = time.Now()
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.waiting, tp)
	}
}

func (v *vitals) set(change func(*seen)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.seen)
}

func (v *vitals) begin(consuming bool) {
	v.set(func(s *seen) { *s = seen{begun: true, consuming: consuming, joining: time.Now()} })
}

func (v *vitals) end(err error) { v.set(func(s *seen) { s.ended, s.endedWith = true, err }) }

// reached records that the database has answered.
func (v *vitals) reached() { v.set(func(s *seen) { s.reached, s.away = true, outage{} }) }

// answered records that the database has answered a read.
func (v *vitals) answered() {
	v.set(func(s *seen) {
		if s.reached = true; s.away.over(time.Now()) {
			s.away = outage{}
		}
	})
}

// fetched records that Kafka has answered.
func (v *vitals) fetched() { v.set(func(s *seen) { s.broker = outage{} }) }

// joined records that a generation of the group begins, or that it is over.
func (v *vitals) joined(in bool) {
	v.set(func(s *seen) {
		s.joined, s.everIn = in, s.everIn || in
		if s.joining = time.Now(); in {
			s.broker = outage{}
		}
	})
}

// lost records that the database does not answer, and returns since when it has not.
func (v *vitals) lost(err error) (since time.Time) {
	v.set(func(s *seen) {
		s.away.note(err)
		since = s.away.since
	})
	return since
}

func (v *vitals) unheard(err error) { v.set(func(s *seen) { s.broker.note(err) }) }

// full records that an event found no room.
func (v *vitals) full(why string) { v.set(func(s *seen) { s.full = why }) }

// note keeps since when the trouble lasts, and its last cause.
func (o *outage) note(err error) {
	now := time.Now()
	if o.since.IsZero() {
		o.since = now
	}
	o.last, o.why = now, err
}
