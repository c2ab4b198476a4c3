// Package seed gives random tests their seeds, and says how to run one again.
//
// A run draws nothing of its own: the same code gets the same answer. HOLDFAST_TEST_SEED=new makes each test draw a seed,
// as .ci/nightly does; what it finds becomes a named test.
package seed

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// variable is the seed of a run, a number, or "new" for one that each test draws.
const variable = "HOLDFAST_TEST_SEED"

// fixed is the seed where nothing else is asked for.
const fixed = 1

// New returns the seed of a test, and logs the command that repeats it. A test that runs goroutines repeats what they
// choose, though not their order.
func New(t testing.TB) uint64 {
	t.Helper()
	seed, err := chosen(os.Getenv(variable))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("again: %s=%d go test -count=1 -run '^%s$' .", variable, seed, strings.ReplaceAll(t.Name(), "/", "$/^"))
	return seed
}

func chosen(text string) (uint64, error) {
	switch text {
	case "":
		return fixed, nil
	case "new":
		return rand.Uint64(), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, invalid(text)
	}
	return seed, nil
}

type invalid string

func (i invalid) Error() string {
	return variable + " is " + strconv.Quote(string(i)) + `: it must be a number from 0 to 2^64-1, or "new"`
}

// Properties does for rapid, which draws a seed of its own by default, what New does for a test. A package's tests call it
// in the declaration of a variable, which comes after rapid has declared its flags and before they are read: a flag given
// to go test goes first.
func Properties() bool {
	seed, err := chosen(os.Getenv(variable))
	f := flag.Lookup("rapid.seed")
	switch {
	case f == nil:
		panic("seed.Properties is for tests that use rapid")
	case err != nil:
		panic(err)
	}
	// rapid takes 0 for a seed of its own choice.
	if err := f.Value.Set(strconv.FormatUint(max(seed, 1), 10)); err != nil {
		panic(err)
	}
	return true
}
