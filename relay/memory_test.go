package relay

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// weighing is a lane whose events can be seen to be in memory, or not.
type weighing struct {
	*lane
	db       *simdb.DB
	payloads []weak.Pointer[byte]
}

const (
	budgetOfTest  = 64 << 20
	payloadOfTest = 64 << 10
)

func newWeighing(t *testing.T, p Publisher) *weighing {
	db, r, l := pacedRelay(t, p, func(string) {})
	r.c.BatchSize, r.c.ParkAfter = 200, 10*time.Second
	r.c.Lease, l.leaseUntil = 24*time.Hour, time.Now().Add(24*time.Hour) // nobody saves
	r.budget = newBudget(budgetOfTest, inMemory*usualBounds.pageBytes)
	l.reader.limit = r.c.BatchSize
	return &weighing{lane: l, db: db}
}

// read writes an event for each partition, and takes them in as a page, within the budget.
func (w *weighing) read(t *testing.T) {
	t.Helper()
	tx := w.db.Begin()
	for partition := range partitionsOfTest {
		tx.Append(0, simdb.Event{ID: fmt.Sprint(len(w.payloads) + partition), Topic: "orders", Key: fmt.Sprint(partition), Payload: make([]byte, payloadOfTest)})
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	p, err := w.readPage(t.Context())
	if err != nil || len(p.events) != partitionsOfTest {
		t.Fatalf("a page of %d events, %v", len(p.events), err)
	}
	for i := range p.events {
		w.payloads = append(w.payloads, weak.Make(&p.events[i].Payload[0]))
	}
	w.accept(p)
}

// alive is how many events are in memory.
func (w *weighing) alive() (events int) {
	runtime.GC()
	for _, p := range w.payloads {
		if p.Value() != nil {
			events++
		}
	}
	return events
}

// counted is how many bytes of the budget are in use.
func (w *weighing) counted() (bytes int) {
	room := w.r.budget.room
	for part := budgetOfTest; part > 0; part /= 2 {
		if room.TryAcquire(int64(part)) {
			defer room.Release(int64(part))
			bytes += part
		}
	}
	return budgetOfTest - bytes
}

// want asks that so many events are in memory, and that the budget has just those.
func (w *weighing) want(t *testing.T, when string, events int) {
	t.Helper()
	alive, counted := w.alive(), w.counted()
	least, most := inMemory*events*payloadOfTest, inMemory*events*payloadOfTest+inMemory*300*len(w.payloads)
	if alive != events || counted < least || counted > most {
		t.Errorf("%s, %d events are in memory and %d bytes are counted; want %d events, %d to %d bytes", when, alive, counted, events, least, most)
	}
}

// A page is not in memory as a whole because one of its events is.
func TestMemory_OnlyEventsThatAreNotSettledTakeMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		release := sync.OnceFunc(func() { close(answer) })
		defer release()
		w := newWeighing(t, &hanging{answering: &answering{}, partition: 3, until: answer})
		for range 5 {
			w.read(t)
		}
		w.work(t, 500*time.Millisecond)
		w.want(t, "while one partition does not answer", 5)
		for range 15 {
			w.read(t)
			w.work(t, time.Second)
		}
		if len(w.tracker.pages) > 0 {
			t.Fatal("the partition is not held")
		}
		w.want(t, "when all of its events are parked, and five are in a call", 5)
		release()
		w.work(t, time.Minute)
		w.want(t, "when all is published", 0)
	})
}

// work works the lane for a while.
func (w *weighing) work(t *testing.T, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	if err := work(t, w.lane, func() bool { return time.Now().Before(end) }); err != nil {
		t.Fatal(err)
	}
}

// A page ends after the event that fills it, which may be larger than all before.
func TestMemory_AnEventLargerThanAPageCountsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeighing(t, &answering{})
		const large = 20 << 20
		tx := w.db.Begin()
		tx.Append(0, simdb.Event{ID: "large", Topic: "orders", Key: "1", Payload: make([]byte, large)})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		p, err := w.readPage(t.Context())
		if n := w.counted(); err != nil || n < inMemory*large {
			t.Fatalf("%d bytes are counted, %v", n, err)
		}
		w.accept(p)
		w.work(t, time.Second)
		if n := w.counted(); n > 0 {
			t.Errorf("%d bytes are counted when it is published", n)
		}
	})
}

// The lane ends at the first answer that it cannot write down. The others were taken in, too.
func TestMemory_ALaneThatEndsAmongAnswersGivesAllBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		w := newWeighing(t, &hanging{answering: &answering{}, partition: 3, until: answer})
		for range 15 {
			w.read(t)
			w.work(t, time.Second)
		}
		if w.leases.events == 0 {
			t.Fatal("the event in the call is not parked")
		}
		close(answer)
		synctest.Wait()
		w.read(t)
		if err := w.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.settleAll(gone); err == nil {
			t.Fatal("an outcome was written")
		}
		w.giveBack()
		w.want(t, "when the lane has ended", 0)
		if n := w.counted(); n > 0 {
			t.Errorf("%d bytes are still counted", n)
		}
	})
}

// hanging is a publisher of which one partition answers no first call before a test says so.
type hanging struct {
	*answering
	partition int
	until     chan struct{}
}

func (h *hanging) Publish(ctx context.Context, events []holdfast.Event) []error {
	if partition, _ := h.Partition(events[0]); partition == h.partition || h.partition < 0 {
		<-h.until
	}
	return h.answering.Publish(ctx, events)
}

// A lane that is dropped leaves its calls behind, and is read again at once: both are in memory.
func TestMemory_CallsOfALaneThatHasEndedStayCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		release := sync.OnceFunc(func() { close(answer) })
		defer release()
		w := newWeighing(t, &hanging{answering: &answering{}, partition: -1, until: answer})
		w.read(t)
		w.read(t)
		if err := w.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.read(t) // it waits for its turn
		w.giveBack()
		synctest.Wait()
		w.lane = &lane{r: w.r} // nothing but the calls is left of it
		w.want(t, "when the lane has ended", 2*partitionsOfTest)
		release()
		synctest.Wait()
		if n := w.counted(); n > 0 {
			t.Errorf("%d bytes are counted when all calls have returned", n)
		}
	})
}
