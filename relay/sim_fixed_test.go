package relay

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The mutation run asks this test (docs/project/mutation.md): what it finds must not depend on the day, and each mutant costs its time.
func TestSimFixed_TheFirstSchedulesKeepThePromises(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	for seed := range uint64(100) {
		if v, steps := runPlan(newPlan(seed+1, simBug{})); v != nil {
			t.Fatalf("seed %d, %d steps: %v", seed+1, steps, v)
		}
	}
}
