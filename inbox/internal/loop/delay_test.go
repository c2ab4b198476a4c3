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
