// Package seed draws the seeds of random tests, and says how to run one again.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// variable repeats the run of a seed.
const variable = "HOLDFAST_TEST_SEED"

// New returns a new seed, or the one that HOLDFAST_TEST_SEED names, and logs the command that repeats it. A test that runs
// goroutines repeats what they choose, though not their order.
func New(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(variable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s is %q: it must be a number from 0 to 2^64-1", variable, text)
		}
	}
	t.Logf("again: %s=%d go test -count=1 -run '^%s$' .", variable, seed, strings.ReplaceAll(t.Name(), "/", "$/^"))
	return seed
}
