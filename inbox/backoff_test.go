package inbox

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// A wait that has begun when a database or a broker comes back has to end first. So it bounds the recovery.
func TestBackoff_NoWaitForADependencyIsLongerThan2s(t *testing.T) {
	t.Parallel()
	for tries := range 1000 {
		if got := loop.Spread(databaseBase, databaseCap, tries, 1); got > 2*time.Second {
			t.Fatalf("after %d tries it is %v", tries, got)
		}
	}
}
