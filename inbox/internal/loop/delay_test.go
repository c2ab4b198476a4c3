package loop

import (
	"testing"
	"time"
)

func TestDelay_ADelayDoublesUpToItsLimitWithHalfOfItByChance(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		attempt int
		random  float64
		want    time.Duration
	}{
		{-3, 0, 50}, {0, 0, 50}, {1, 0, 50}, {1, 0.5, 75}, {1, 0.98, 99},
		{2, 0, 100}, {3, 0, 200}, {4, 0, 400},
		{5, 0, 500}, {5, 0.5, 750}, // 1,600 would be more than the limit
		{33, 0, 500}, {64, 0, 500}, {1 << 30, 0, 500},
	} {
		if got := Spread(100*time.Millisecond, time.Second, row.attempt, row.random); got != row.want*time.Millisecond {
			t.Errorf("attempt %d, random %v: %v, want %vms", row.attempt, row.random, got, int64(row.want))
		}
	}
	// At the limit itself there is nothing left to double; and 32 doublings of a short base are not done.
	if got := Spread(100, 400, 3, 0); got != 200 {
		t.Errorf("it is %d at its limit, want 200", got)
	}
	if got := Spread(1, 1<<40, 32, 0); got != 1<<30 {
		t.Errorf("after 31 doublings it is %d, want %d", got, 1<<30)
	}
	if got := Spread(1, 1<<40, 33, 0); got != 1<<39 {
		t.Errorf("after 32 it is %d, want its limit's half, %d", got, 1<<39)
	}
}

// A wait that has begun when a database or a broker comes back has to end first. So it bounds the recovery.
func TestDelay_NoWaitForADependencyIsLongerThan2s(t *testing.T) {
	t.Parallel()
	for tries := range 1000 {
		if got := Spread(DatabaseBase, DatabaseCap, tries, 1); got > 2*time.Second {
			t.Fatalf("after %d tries it is %v", tries, got)
		}
	}
}

func TestDelay_OfManyEventsWithoutRoomOneIsTriedAtATime(t *testing.T) {
	for _, row := range []struct {
		tries, waiting int
		want           time.Duration
	}{
		{1, 1, FullBase},
		{3, 1, FullBase * 3},
		{1000, 1, FullCap / 4 * 3},
		{1000, 5, FullCap / 4 * 3 / 5},
		{1000, 1000, FullBase},
	} {
		if got := CapacityDelay(row.tries, row.waiting, 0.5); got != row.want {
			t.Errorf("after %d tries, while %d wait: %s, want %s", row.tries, row.waiting, got, row.want)
		}
	}
}

func TestDelay_ALoopRestsInProportionAndNeverForLong(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                      100 * time.Millisecond,
		5 * time.Millisecond:   100 * time.Millisecond,
		30 * time.Millisecond:  300 * time.Millisecond,
		200 * time.Millisecond: 2 * time.Second,
		30 * time.Second:       2 * time.Second,
	} {
		if got := Rest(took, 10, 100*time.Millisecond, 2*time.Second); got != want {
			t.Errorf("after %s it rests for %s, want %s", took, got, want)
		}
	}
}
