package quiet

import (
	"testing"
	"time"
)

// A line a minute of each kind, and one more for an outage that begins anew within it and has lasted for 5 s.
func TestQuiet_ALineComesOnceAMinuteAndForEachOutageThatLasts(t *testing.T) {
	var l Limiter
	start := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		what       string
		kind       string
		since, at  time.Duration // from start
		suppressed int
		ok         bool
	}{
		{"the first line", "a", 0, 0, 0, true},
		{"the same again", "a", 0, 6 * time.Second, 0, false},
		{"another kind", "b", 6 * time.Second, 6 * time.Second, 0, true},
		{"an outage that has just begun", "a", 10 * time.Second, 10 * time.Second, 0, false},
		{"and is short so far", "a", 10 * time.Second, 14999 * time.Millisecond, 0, false},
		{"and lasts", "a", 10 * time.Second, 15 * time.Second, 3, true},
		{"and goes on", "a", 10 * time.Second, 74999 * time.Millisecond, 0, false},
		{"for a minute", "a", 10 * time.Second, 75 * time.Second, 1, true},
		{"of no outage that is known", "a", 80 * time.Second, 80 * time.Second, 0, false},
	} {
		suppressed, ok := l.AllowSince(c.kind, time.Minute, start.Add(c.since), start.Add(c.at))
		if suppressed != c.suppressed || ok != c.ok {
			t.Errorf("%s: %d suppressed, %v; want %d, %v", c.what, suppressed, ok, c.suppressed, c.ok)
		}
	}
	if _, ok := l.Allow("a", time.Minute, start.Add(134*time.Second)); ok {
		t.Error("a line without an outage comes twice within a minute")
	}
	if suppressed, ok := l.Allow("a", time.Minute, start.Add(135*time.Second)); !ok || suppressed != 2 {
		t.Errorf("a minute later: %d suppressed, %v", suppressed, ok)
	}
}
