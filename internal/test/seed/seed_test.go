package seed_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/seed"
)

func TestSeed_ASeedIsFixedOrTheOneThatIsAskedFor(t *testing.T) {
	t.Setenv("HOLDFAST_TEST_SEED", "")
	if one, other := seed.New(t), seed.New(t); one != other {
		t.Errorf("two tests have the seeds %d and %d, though no seed is to be drawn", one, other)
	}
	t.Setenv("HOLDFAST_TEST_SEED", "new")
	if one, other := seed.New(t), seed.New(t); one == other {
		t.Errorf("two tests have the seed %d, though each is to draw one", one)
	}
	t.Setenv("HOLDFAST_TEST_SEED", "18446744073709551615")
	if got := seed.New(t); got != 1<<64-1 {
		t.Errorf("the seed is %d", got)
	}
	t.Setenv("HOLDFAST_TEST_SEED", "seven")
	want := `HOLDFAST_TEST_SEED is "seven": it must be a number from 0 to 2^64-1, or "new"`
	if v := ending.Of(t, func(t testing.TB) { seed.New(t) }); v.Failed != want {
		t.Errorf("it says %q, want %q", v.Failed, want)
	}
}
