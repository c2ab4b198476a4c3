package inbox

import (
	"testing"

	"golang.org/x/sync/semaphore"
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
	tr := newTracker(5)
	if got := panics(func() { tr.begin(4, 1, reservation{}, 0) }); got != "inbox: an offset was begun out of order" {
		t.Errorf("an offset below the start: %q", got)
	}
	tr.begin(5, 1, reservation{}, 0)
	if got := panics(func() { tr.begin(5, 1, reservation{}, 0) }); got != "inbox: an offset was begun out of order" {
		t.Errorf("an offset for the second time: %q", got)
	}
	tr.skipTo(9)
	if got := panics(func() { tr.begin(8, 1, reservation{}, 0) }); got != "inbox: an offset was begun out of order" {
		t.Errorf("an offset that was skipped: %q", got)
	}
	tr.skipTo(3) // what lies below is no news
	tr.begin(9, 1, reservation{}, 0)
	if tr.low() != 5 || tr.bytes != 2 {
		t.Errorf("low is %d with %d bytes, want 5 and 2", tr.low(), tr.bytes)
	}
}

func TestTracker_AnOffsetThatIsSettledTwiceEndsTheProcess(t *testing.T) {
	t.Parallel()
	tr := newTracker(0)
	for offset := range int64(3) {
		tr.begin(offset, 10, reservation{}, 0)
	}
	tr.settle(1)
	for _, offset := range []int64{1, 3, -1} {
		if got := panics(func() { tr.settle(offset) }); got != "inbox: an offset was settled that is not in progress" {
			t.Errorf("offset %d: %q", offset, got)
		}
	}
	if tr.bytes != 20 || tr.low() != 0 {
		t.Errorf("%d bytes are in progress and low is %d, want 20 and 0", tr.bytes, tr.low())
	}
}

func TestTracker_ATrackerCountsWhatIsOpenAndHowFarItLies(t *testing.T) {
	t.Parallel()
	tr := newTracker(0)
	want := func(unsettled, spread int) {
		t.Helper()
		if tr.unsettled() != unsettled || tr.spread() != spread {
			t.Errorf("%d unsettled over %d events, want %d over %d", tr.unsettled(), tr.spread(), unsettled, spread)
		}
	}
	want(0, 0)
	for offset := range int64(4) {
		tr.begin(offset*10, 1, reservation{}, 0)
	}
	want(4, 4)
	tr.settle(10)
	tr.settle(20)
	want(2, 4)
	tr.settle(0)
	want(1, 1)
	tr.settle(30)
	want(0, 0)
}

func TestTracker_AnOffsetThatIsSettledGivesItsMemoryBackOnce(t *testing.T) {
	t.Parallel()
	room := semaphore.NewWeighted(60)
	if !room.TryAcquire(60) {
		t.Fatal("there is no room")
	}
	tr := newTracker(0)
	for offset := range int64(3) {
		tr.begin(offset, 1, reservation{room, 20}, 0)
	}
	free := func(want int64) {
		t.Helper()
		if !room.TryAcquire(want) || room.TryAcquire(1) {
			t.Fatalf("not exactly %d bytes were given back", want)
		}
		room.Release(want)
	}
	tr.settle(1)
	free(20)
	tr.give() // the partition ends: what is in progress, and not what was settled
	free(60)
	tr.settle(0)
	free(60)
}
