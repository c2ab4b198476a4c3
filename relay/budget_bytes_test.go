package relay

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

func TestBudgetBytes_TheBudgetCountsAllOfAnEvent(t *testing.T) {
	t.Parallel()
	e := logEvent{Event: holdfast.Event{Payload: make([]byte, 1000), Key: "key", Headers: map[string]string{"a": "bc", "de": "f"}}}
	if got, want := eventBytes(&e), 256+1000+3+2*32+6; got != want {
		t.Errorf("an event takes %d bytes, want %d", got, want)
	}
	p := page{events: []logEvent{e, {}, e}}
	if got, want := p.bytes(), int64(2*(256+1000+3+2*32+6)+256); got != want {
		t.Errorf("a page takes %d bytes, want %d", got, want)
	}
}

func TestBudgetBytes_TheBudgetGivesOutEveryByteOnceAndNoMore(t *testing.T) {
	t.Parallel()
	b := newBudget(10, 100) // a page may take all of it
	free := func(bytes int64) bool {
		if !b.room.TryAcquire(bytes) {
			return false
		}
		b.room.Release(bytes)
		return true
	}
	if err := b.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	if free(1) {
		t.Error("a page took less than all")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := b.take(ctx); err == nil {
		t.Error("a second page found room")
	}
	if kept := b.keep(4); kept != 4 || !free(6) || free(7) {
		t.Errorf("a page of 4 keeps %d; 6 are free: %v, 7: %v", kept, free(6), free(7))
	}
	b.give(1)
	b.give(0)
	if !free(7) || free(8) {
		t.Errorf("with 3 kept, 7 are free: %v, 8: %v", free(7), free(8))
	}
	b.give(3)
	if !free(10) {
		t.Error("what was given back is not free")
	}
}

func TestBudgetBytes_APageThatIsTooLargeIsCountedAndPaidFirst(t *testing.T) {
	t.Parallel()
	b := newBudget(16, 4)
	if err := b.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.keep(40)
	b.owe(36)
	free := func() (bytes int64) {
		for b.room.TryAcquire(1) {
			bytes++
		}
		b.room.Release(bytes)
		return bytes
	}
	for i, step := range []struct{ give, free int64 }{{0, 0}, {10, 0}, {14, 0}, {3, 3}, {13, 16}} {
		b.give(step.give)
		if got := free(); got != step.free {
			t.Errorf("step %d: %d bytes are free, want %d", i, got, step.free)
		}
	}
	if err := b.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.keep(4)
	if b.owe(5); free() != 7 {
		t.Errorf("with 9 of 16 in memory %d are free", free())
	}
}

func TestBudgetBytes_ALaneRestsByChanceBetweenHalfAndTheWhole(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	for _, chance := range []float64{0, 0.25, 0.5, 0.999} {
		var f failing
		for lane := range 20 {
			for range 2 {
				f.claimed(19-lane, now)
				f.failed(19-lane, now, chance)
			}
		}
		if want, got := claimPolicy.Delay(1, 0.5+chance/2), f.next(now, time.Hour); got != want {
			t.Errorf("chance %v: it rests for %v, want %v", chance, got, want)
		}
		resting := f.resting(now)
		for i, lane := range resting {
			if int(lane) != i {
				t.Fatalf("the lanes are out of order: %v", resting)
			}
		}
		if len(resting) != 20 {
			t.Errorf("%d lanes rest", len(resting))
		}
	}
}
