package inbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// batches is a batch handler that leaves a trace of each event, and remembers how they came.
type batches struct {
	mu    sync.Mutex
	sizes []int
	fail  func(e holdfast.Event) error
}

func (b *batches) handle(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
	b.mu.Lock()
	b.sizes = append(b.sizes, len(events))
	b.mu.Unlock()
	for _, e := range events {
		if err := effectOf(ctx, tx, e); err != nil {
			return err
		}
		if b.fail != nil {
			if err := b.fail(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *batches) largest() (largest, calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.sizes {
		largest = max(largest, n)
	}
	return largest, len(b.sizes)
}

func TestBatch_ABatchIsOneTransactionOfUpToBatchEvents(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.BatchSize = 50 })
	h := &batches{}
	in.HandleBatch("order.placed", h.handle)
	const n = 1000
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, n)...))) // No key comes twice: each batch is full.
	b.awaitSettled(n)
	b.inOrderAndOnce(n)
	if largest, calls := h.largest(); largest != 50 || calls != n/50 {
		t.Errorf("the largest batch had %d events, and there were %d batches; want 50 and %d", largest, calls, n/50)
	}
	if n := b.count("select count(distinct xmin::text) from effect"); n != 20 {
		t.Errorf("%d transactions, want 20", n)
	}
	if got := b.count("select count(*) from holdfast.inbox where result = 'handled' and attempts = 1 and processed_at is not null"); got != n {
		t.Errorf("%d inbox rows, want %d", got, n)
	}
}

// While a handler has an event of a key, the others of that key are left out of the batches: nobody else waits for it.
func TestBatch_AKeyInHandIsLeftOutOfBatchesAndItsEventsCatchUpInOne(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.BatchSize, c.Timeout = 20, time.Minute })
	begun, finish := make(chan struct{}), make(chan struct{})
	h := &batches{fail: func(e holdfast.Event) error {
		if e.ID == "00000" {
			close(begun)
			<-finish
		}
		return nil
	}}
	in.HandleBatch("order.placed", h.handle)
	log := keyed(600, 30)
	for i := range log {
		if i%10 == 0 {
			log[i].Key = "slow"
		}
	}
	g := newFakeGeneration(logOf(log...))
	g.gate = make(chan struct{})
	b.consumeFake(in, g)
	<-begun // of the only event that is there yet
	close(g.gate)
	b.await("the other keys", func(o *observations) bool { return len(o.outcomes) == 540 })
	if n := b.count("select count(*) from effect where key = 'slow'"); n != 0 {
		t.Errorf("%d events overtook the one of their key that is in hand", n)
	}
	h.mu.Lock()
	h.sizes = nil
	h.mu.Unlock()
	close(finish)
	b.awaitSettled(600)
	b.inOrderAndOnce(600)
	if largest, calls := h.largest(); largest != 20 || calls != 3 {
		t.Errorf("the 59 that waited came in %d batches, the largest of %d; want 3 and 20", calls, largest)
	}
}

func TestBatch_AnEventThatFailsItsBatchAloneBearsTheFailure(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.BatchSize = 25 })
	tries := 0
	h := &batches{fail: func(e holdfast.Event) error {
		if e.ID == "00060" {
			tries++
			return errors.New("no such customer")
		}
		return nil
	}}
	in.HandleBatch("order.placed", h.handle)
	const n = 200
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 20)...)))
	b.awaitOutcome("00060", Dead)
	b.awaitSettled(n)
	b.awaitOutcome("00180", Handled) // the last of its key
	b.inOrderAndOnce(n - 1)
	if got := b.count("select attempts from holdfast.letter where event_id = '00060'"); got != 3 {
		t.Errorf("its letter says %d attempts, want 3: the batch's failure is not one", got)
	}
	if tries != 4 {
		t.Errorf("it was tried %d times, want 4: in its batch, and its three attempts", tries)
	}
	if got := b.count("select count(*) from holdfast.letter"); got != 1 {
		t.Errorf("%d letters, want 1", got)
	}
}

func TestBatch_ABatchWithKnownAndWaitingEventsAmongItIsTakenApart(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	failing := true
	var mu sync.Mutex
	h := &batches{fail: func(e holdfast.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if failing && e.ID == "00003" {
			return errors.New("not yet")
		}
		return nil
	}}
	in := b.inbox(func(c *Config) { c.BatchSize = 25; c.Retry.Attempts = 1000 })
	in.HandleBatch("order.placed", h.handle)
	log := keyed(100, 10)
	b.receive(in, log[1], Handled)  // is a duplicate in its batch
	b.receive(in, log[3], Retrying) // a duplicate too, and 13, 23, … wait behind it
	edited := log[2]                // another payload under its id came first: a conflict
	edited.Payload = []byte("another")
	b.receive(in, edited, Handled)
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	b.awaitSettled(100)
	if got := b.count("select count(*) from effect where key = 'key 3'"); got != 0 {
		t.Errorf("%d events of a key were handled before its head", got)
	}
	if got := b.count("select count(*) from holdfast.stored where key = 'key 3'"); got != 10 {
		t.Errorf("%d events of the key wait, want 10", got)
	}
	mu.Lock()
	failing = false
	mu.Unlock()
	b.run(in.Run)
	b.awaitOutcome("00093", Handled)
	b.inOrderAndOnce(100)
	if got := b.count("select count(*) from holdfast.letter where event_id = '00002'"); got != 1 {
		t.Errorf("%d letters of the conflict, want 1", got)
	}
}

func TestBatch_BatchesAndSingleEventsOfOneKeyKeepTheirOrder(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.BatchSize = 10 })
	h := &batches{}
	in.HandleBatch("order.placed", h.handle)
	in.Handle("order.paid", effectOf)
	const n = 600
	log := keyed(n, 7)
	for i := range log {
		if i%11 > 6 {
			log[i].Type = "order.paid"
		}
	}
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	b.awaitSettled(n)
	b.inOrderAndOnce(n)
	if largest, _ := h.largest(); largest < 2 || largest > 10 {
		t.Errorf("the largest batch had %d events", largest)
	}
}

func TestBatch_ABatchOfAZombieCommitsNothing(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.BatchSize = 10 })
	h := &batches{}
	in.HandleBatch("order.placed", h.handle)
	g := newFakeGeneration(logOf(keyed(20, 5)...))
	g.gate = make(chan struct{})
	b.consumeFake(in, g)
	b.awaitSettled(1)
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set epoch = epoch + 1") // as another node's assignment does
	close(g.gate)
	b.await("the fence", func(o *observations) bool { return o.fenced == 1 })
	if got := b.count("select count(*) from effect"); got != 1 {
		t.Errorf("%d effects, want 1", got)
	}
}
