package readahead

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// panics reports what f panics with, "" if it does not.
func panics(f func()) (message string) {
	defer func() {
		if v := recover(); v != nil {
			message, _ = v.(string)
		}
	}()
	f()
	return ""
}

func TestTracker_AnOffsetOutOfOrderEndsTheProcess(t *testing.T) {
	t.Parallel()
	tr := NewTracker(5)
	if got := panics(func() { tr.Begin(4, 1, Reservation{}, 0) }); got != "inbox: an offset was begun out of order" {
		t.Errorf("an offset below the start: %q", got)
	}
	tr.Begin(5, 1, Reservation{}, 0)
	if got := panics(func() { tr.Begin(5, 1, Reservation{}, 0) }); got != "inbox: an offset was begun out of order" {
		t.Errorf("an offset for the second time: %q", got)
	}
	tr.SkipTo(9)
	if got := panics(func() { tr.Begin(8, 1, Reservation{}, 0) }); got != "inbox: an offset was begun out of order" {
		t.Errorf("an offset that was skipped: %q", got)
	}
	tr.SkipTo(3) // what lies below is no news
	tr.Begin(9, 1, Reservation{}, 0)
	if tr.Low() != 5 || tr.Bytes != 2 {
		t.Errorf("low is %d with %d bytes, want 5 and 2", tr.Low(), tr.Bytes)
	}
}

func TestTracker_AnOffsetThatIsSettledTwiceEndsTheProcess(t *testing.T) {
	t.Parallel()
	tr := NewTracker(0)
	for offset := range int64(3) {
		tr.Begin(offset, 10, Reservation{}, 0)
	}
	tr.Settle(1)
	for _, offset := range []int64{1, 3, -1} {
		if got := panics(func() { tr.Settle(offset) }); got != "inbox: an offset was settled that is not in progress" {
			t.Errorf("offset %d: %q", offset, got)
		}
	}
	if tr.Bytes != 20 || tr.Low() != 0 {
		t.Errorf("%d bytes are in progress and low is %d, want 20 and 0", tr.Bytes, tr.Low())
	}
}

func TestTracker_ATrackerCountsWhatIsOpenAndHowFarItLies(t *testing.T) {
	t.Parallel()
	tr := NewTracker(0)
	want := func(unsettled, spread int) {
		t.Helper()
		if tr.Unsettled() != unsettled || tr.Spread() != spread {
			t.Errorf("%d unsettled over %d events, want %d over %d", tr.Unsettled(), tr.Spread(), unsettled, spread)
		}
	}
	want(0, 0)
	for offset := range int64(4) {
		tr.Begin(offset*10, 1, Reservation{}, 0)
	}
	want(4, 4)
	tr.Settle(10)
	tr.Settle(20)
	want(2, 4)
	tr.Settle(0)
	want(1, 1)
	tr.Settle(30)
	want(0, 0)
}

func TestTracker_AnOffsetThatIsSettledGivesItsMemoryBackOnce(t *testing.T) {
	t.Parallel()
	room := semaphore.NewWeighted(60)
	if !room.TryAcquire(60) {
		t.Fatal("there is no room")
	}
	tr := NewTracker(0)
	for offset := range int64(3) {
		tr.Begin(offset, 1, Reservation{room, 20}, 0)
	}
	free := func(want int64) {
		t.Helper()
		if !room.TryAcquire(want) || room.TryAcquire(1) {
			t.Fatalf("not exactly %d bytes were given back", want)
		}
		room.Release(want)
	}
	tr.Settle(1)
	free(20)
	tr.Give() // the partition ends: what is in progress, and not what was settled
	free(60)
	tr.Settle(0)
	free(60)
}

// The tracker agrees with a slow model that looks at every offset.
func TestTracker_NoOffsetAboveAnUnsettledEventIsEverCommitted(t *testing.T) {
	seed := seed.New(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		start := random.Int64N(100)
		tr := NewTracker(start)
		open := map[int64]int{}
		var order []int64
		var all []int64
		next := start
		for range 400 {
			switch {
			case len(order) > 0 && random.IntN(2) == 0:
				i := random.IntN(len(order))
				tr.Settle(order[i])
				delete(open, order[i])
				order = append(order[:i], order[i+1:]...)
			case random.IntN(5) == 0:
				next += random.Int64N(4)
				tr.SkipTo(next)
			default:
				next += random.Int64N(3)
				size := random.IntN(100)
				tr.Begin(next, int64(size), Reservation{}, -next)
				open[next], order, all = size, append(order, next), append(all, next)
				next++
			}
			want, bytes := next, 0
			for offset, size := range open {
				want, bytes = min(want, offset), bytes+size
			}
			last := Checkpoint{Offset: source.NoOffset}
			for _, offset := range all {
				if offset < want {
					last = Checkpoint{offset, -offset}
				}
			}
			if tr.Last != last {
				t.Fatalf("seed %d: the last event below %d is %+v, want %+v", seed, want, tr.Last, last)
			}
			if tr.Low() != want || tr.Bytes != int64(bytes) {
				t.Fatalf("seed %d: low is %d and %d bytes in hand, want %d and %d", seed, tr.Low(), tr.Bytes, want, bytes)
			}
		}
	}
}
