package relay

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestTiming_CallsThatEndLateWithoutAnAnswerGetSmaller(t *testing.T) {
	trouble, well := summary{trouble: answer{fault: publish.FaultPartition}}, summary{answers: true}
	for _, c := range []struct {
		most, sent int
		took       time.Duration
		said       summary
		want       int
	}{
		{0, 200, slowAfter, trouble, 100}, {100, 100, slowAfter, trouble, 50}, {1, 1, slowAfter, trouble, 1}, {0, 3, slowAfter, trouble, 1},
		{0, 200, slowAfter - 1, trouble, 0}, {50, 50, slowAfter - 1, trouble, 50}, // refused at once, not for its size
		{0, 200, slowAfter, well, 0}, {50, 50, slowAfter, well, 63},
		{0, 200, 0, well, 0}, {1, 1, 0, well, 2}, {50, 50, 0, well, 63}, {159, 3, 0, well, 199}, {160, 3, 0, well, 0},
	} {
		if got := nextMost(c.most, c.sent, 200, c.took, c.said); got != c.want {
			t.Errorf("after %d of %d in %v, %+v: %d, want %d", c.sent, c.most, c.took, c.said, got, c.want)
		}
	}
}
