package relay

import (
	"testing"
	"time"
)

func TestPins_APinnedSegmentIsNeverTried(t *testing.T) {
	t.Parallel()
	type look struct {
		after   time.Duration // since the look before
		holders []string
		try     bool
	}
	for _, c := range []struct {
		name  string
		looks []look
	}{
		{"nobody holds it", []look{{0, nil, true}}},
		{"readers come and go", []look{{0, []string{"a"}, false}, {lookAgainAfter, []string{"b", "c"}, true}, {tryAgainAfter, []string{"d"}, true}}},
		{"a transaction stays", []look{{0, []string{"a", "long"}, false}, {lookAgainAfter, []string{"long"}, false}, {tryAgainAfter, []string{"b", "long"}, false},
			{tryAgainAfter, []string{"c"}, true}}},
		{"one comes after a try", []look{{0, nil, true}, {tryAgainAfter, []string{"long"}, true}, {tryAgainAfter, []string{"long"}, false}, {tryAgainAfter, nil, true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pins
			now := time.Unix(100, 0)
			for i, l := range c.looks {
				if i > 0 && p.look(2, now.Add(l.after-1)) {
					t.Fatalf("look %d comes too early", i)
				}
				now = now.Add(l.after)
				if !p.look(2, now) {
					t.Fatalf("look %d does not come in time", i)
				}
				if try := p.found(2, l.holders, now); try != l.try {
					t.Fatalf("look %d finds %q: tried %v, want %v", i, l.holders, try, l.try)
				}
			}
			p.emptied(2)
			if !p.look(2, now) || p.found(2, []string{"a"}, now) {
				t.Error("a segment that was emptied is not looked at anew")
			}
		})
	}
}

// Rule 15: each try makes all readers wait for as long as it waits for its lock, and each look makes the lock manager list all
// locks of the server.
func TestPins_ASegmentIsTriedEveryFewSecondsAndWaitsBriefly(t *testing.T) {
	t.Parallel()
	if tryAgainAfter < 2*time.Second || tryAgainAfter > 10*time.Second || lookAgainAfter < 100*time.Millisecond {
		t.Errorf("it is tried again after %v, and looked at again after %v", tryAgainAfter, lookAgainAfter)
	}
	if lockWaitMs < 20 || lockWaitMs > 100 {
		t.Errorf("a try waits for %d ms: below 20 it is never granted beside eight readers, above 100 readers notice", lockWaitMs)
	}
}
