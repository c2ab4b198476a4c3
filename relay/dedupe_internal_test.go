package relay

import (
	"testing"
	"time"
)

func TestDedupe_ExpiredDedupeKeysAreRemovedAsFastAsTheyCome(t *testing.T) {
	for _, c := range []struct {
		gone       int
		took, want time.Duration
	}{
		{0, time.Millisecond, expireEvery},
		{expireMost - 1, time.Second, expireEvery},
		{expireMost, 10 * time.Millisecond, 20 * time.Millisecond},
		{expireMost, 10 * time.Second, expireRest},
	} {
		if got := restExpiring(c.gone, c.took); got != c.want {
			t.Errorf("after %d keys in %v it rests for %v, want %v", c.gone, c.took, got, c.want)
		}
	}
}
