package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestNotices_AProcessSpeaksOfAPartitionOnceAMinute(t *testing.T) {
	t.Parallel()
	var n notices
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := spot{"orders", 3}
	var said []string
	note := func(what string, second int, w scope, say bool) {
		if say {
			said = append(said, fmt.Sprintf("%d: %s for %v, %d lanes, %d events", second, what, w.waited, w.lanes, w.events))
		}
	}
	for second := range 130 { // three lanes try again each second
		for lane := range 3 {
			w, say := n.waits(at, lane, 10*lane, false, start.Add(time.Duration(second)*time.Second))
			note("waits", second, w, say)
			if second == 5 {
				w, say := n.held(at, lane, 10*lane, start.Add(5*time.Second))
				note("held", second, w, say)
			}
		}
	}
	for lane := range 3 {
		w, say := n.flows(at, lane, start.Add(130*time.Second))
		note("flows", 130, w, say)
		w, say = n.flows(at, lane, start.Add(131*time.Second))
		note("flows", 131, w, say)
	}
	// Trouble that comes and goes is no reason to say more often; nor does it flow again for those who never heard of it.
	for second := 132; second < 168; second += 2 {
		w, say := n.waits(at, 0, 1, false, start.Add(time.Duration(second)*time.Second))
		note("waits", second, w, say)
		w, say = n.flows(at, 0, start.Add(time.Duration(second+1)*time.Second))
		note("flows", second+1, w, say)
	}
	// Unless it lasts.
	for second := 169; second < 179; second++ {
		w, say := n.waits(at, 0, 1, false, start.Add(time.Duration(second)*time.Second))
		note("waits", second, w, say)
		if second >= 177 {
			w, say = n.held(at, 0, 1, start.Add(time.Duration(second)*time.Second))
			note("held", second, w, say)
		}
	}
	w, say := n.flows(at, 0, start.Add(180*time.Second))
	note("flows", 180, w, say)
	// Lanes that end take their part of it with them.
	n.waits(at, 1, 7, false, start.Add(200*time.Second))
	n.leave(1)
	w, say = n.waits(at, 2, 5, false, start.Add(300*time.Second))
	note("waits", 300, w, say)
	// A lane that ends and begins again waits for what was said to wait. That it is over is said too.
	n.leave(2)
	w, say = n.waits(at, 2, 5, false, start.Add(320*time.Second))
	note("waits", 320, w, say)
	w, say = n.flows(at, 2, start.Add(330*time.Second))
	note("flows", 330, w, say)
	want := []string{
		"0: waits for 0s, 1 lanes, 0 events",
		"5: held for 5s, 3 lanes, 30 events",
		"65: waits for 1m5s, 3 lanes, 30 events",
		"125: waits for 2m5s, 3 lanes, 30 events",
		"130: flows for 2m10s, 0 lanes, 0 events",
		"174: waits for 5s, 1 lanes, 1 events",
		"177: held for 8s, 1 lanes, 1 events",
		"180: flows for 11s, 0 lanes, 0 events",
		"300: waits for 0s, 1 lanes, 5 events",
		"330: flows for 10s, 0 lanes, 0 events",
	}
	if !slices.Equal(said, want) {
		t.Errorf("it said\n%q, want\n%q", said, want)
	}
}

// A partition that gives no answer is spoken of before anybody knows why: because the broker refuses our password, say.
func TestNotices_TheCauseIsSaidAsSoonAsItIsKnown(t *testing.T) {
	t.Parallel()
	var n notices
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := spot{"orders", 3}
	for _, row := range []struct {
		second      int
		unexplained bool
		want        bool
	}{
		{0, true, true}, {1, true, false}, {2, false, true}, {3, false, false}, {4, true, false}, {5, false, false},
		{62, true, true}, {63, false, true}, {64, true, false},
	} {
		if _, say := n.waits(at, 0, 1, row.unexplained, start.Add(time.Duration(row.second)*time.Second)); say != row.want {
			t.Errorf("second %d, without a cause %t: it speaks is %t", row.second, row.unexplained, say)
		}
	}
	n.flows(at, 0, start.Add(65*time.Second))
	if _, say := n.waits(at, 0, 1, false, start.Add(66*time.Second)); say {
		t.Error("trouble that comes again is spoken of at once, because the last line of the time before had no cause")
	}
}
