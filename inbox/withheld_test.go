package inbox

import (
	"testing"
	"time"
)

func TestWhenAnOpenTransactionIsSaid(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	w, now := withheld{}, began
	see := func(after time.Duration, next, n int64) bool {
		now = now.Add(after)
		var say bool
		w, say = w.after(&Page{Next: next, Withheld: n}, 7, now)
		return say
	}
	for _, c := range []struct {
		what  string
		after time.Duration
		next  int64
		n     int64
		say   bool
	}{
		{"it begins", time.Hour, 7, 3, false},
		{"a moment later", time.Second, 7, 3, false},
		{"nearly a minute", 58 * time.Second, 7, 3, false},
		{"a minute", time.Second, 7, 4, true},
		{"again", time.Second, 7, 4, false},
		{"nearly ten minutes after it was said", 9*time.Minute + 58*time.Second, 7, 4, false},
		{"ten", time.Second, 7, 4, true},
		{"the transaction ended", time.Second, 7, 0, false},
		{"another one", 20 * time.Minute, 7, 1, false},
		{"for a minute", time.Minute, 7, 1, true},
		{"reading has gone on meanwhile", time.Hour, 8, 1, false},
		{"and stands again", time.Second, 7, 1, false},
		{"but not for a minute", 59 * time.Second, 7, 1, false},
		{"and then it does", time.Second, 7, 1, true},
	} {
		if say := see(c.after, c.next, c.n); say != c.say {
			t.Errorf("%s: said %t, want %t", c.what, say, c.say)
		}
	}
}
