package retry

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

const almostOne = 1 - 1.0/(1<<53) // the largest float64 below 1

func TestPolicy_ADelayIsAFractionOfACeilingThatDoublesUpToTheCap(t *testing.T) {
	t.Parallel()
	standard := Policy{Base: 100 * time.Millisecond, Cap: 2 * time.Second}
	for _, row := range []struct {
		name    string
		policy  Policy
		attempt int
		random  float64
		want    time.Duration
	}{
		{"nothing at the low end of random", standard, 1, 0, 0},
		{"half the base after the first attempt", standard, 1, 0.5, 50 * time.Millisecond},
		{"half of twice the base after the second", standard, 2, 0.5, 100 * time.Millisecond},
		{"half of four times the base after the third", standard, 3, 0.5, 200 * time.Millisecond},
		{"half of sixteen times the base, still below the cap", standard, 5, 0.5, 800 * time.Millisecond},
		{"half of the cap once doubling has passed it", standard, 6, 0.5, time.Second},
		{"jitter goes on below the cap for ever", standard, 1_000_000, 0.25, 500 * time.Millisecond},
		{"the largest attempt doesn't overflow", standard, math.MaxInt, 0.5, time.Second},
		{"doubling past 63 bits stays at the longest cap", Policy{Base: 1, Cap: math.MaxInt64}, 64, 0.5, math.MaxInt64/2 + 1},
		{"the largest random stays inside the longest cap", Policy{Base: math.MaxInt64, Cap: math.MaxInt64}, 9, 2, math.MaxInt64},
		{"an attempt of 0 counts as the first", standard, 0, 0.5, 50 * time.Millisecond},
		{"the smallest attempt counts as the first", standard, math.MinInt, 0.5, 50 * time.Millisecond},
		{"a random above its range counts as its end", standard, 1, 7, 100 * time.Millisecond},
		{"a random below its range counts as its start", standard, 1, -7, 0},
		{"a random that is no number counts as its start", standard, 1, math.NaN(), 0},
		{"a base at the cap never doubles", Policy{Base: time.Hour, Cap: time.Hour}, 2, 0.5, 30 * time.Minute},
		{"a base above the cap is cut to it", Policy{Base: time.Hour, Cap: time.Minute}, 1, 0.5, 30 * time.Second},
		{"a negative base waits for nothing", Policy{Base: -time.Hour, Cap: time.Hour}, 3, 0.5, 0},
		{"a negative cap waits for nothing", Policy{Base: time.Hour, Cap: -time.Hour}, 3, 0.5, 0},
		{"the zero policy waits as the defaults do", Policy{}, 1, 0.5, 50 * time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := row.policy.Delay(row.attempt, row.random); got != row.want {
				t.Errorf("Delay(%d, %v) = %s, want %s", row.attempt, row.random, got, row.want)
			}
		})
	}
}

// slowCeiling is the ceiling computed by doubling step by step, in floating point, which cannot overflow here.
func slowCeiling(p Policy, attempt int) time.Duration {
	ceiling := float64(p.Base)
	for range attempt - 1 {
		ceiling *= 2
	}
	if ceiling > float64(p.Cap) {
		return p.Cap
	}
	return time.Duration(ceiling)
}

func drawPolicy(t *rapid.T) Policy {
	limit := rapid.Int64Range(1, int64(48*time.Hour)).Draw(t, "cap")
	return Policy{Base: time.Duration(rapid.Int64Range(1, limit).Draw(t, "base")), Cap: time.Duration(limit)}
}

func TestPolicy_ADelayIsNeverNegativeNorAboveTheCapWhateverIsAsked(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			Base: time.Duration(rapid.Int64Min(1).Draw(t, "base")),
			Cap:  time.Duration(rapid.Int64Min(1).Draw(t, "cap")),
		}
		attempt, random := rapid.Int().Draw(t, "attempt"), rapid.Float64().Draw(t, "random")
		if got := p.Delay(attempt, random); got < 0 || got > p.Cap {
			t.Fatalf("%+v.Delay(%d, %v) = %s", p, attempt, random, got)
		}
	})
}

func TestPolicy_ADelayAgreesWithDoublingStepByStep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, attempt := drawPolicy(t), rapid.IntRange(1, 200).Draw(t, "attempt")
		random := rapid.Float64Range(0, almostOne).Draw(t, "random")
		ceiling := slowCeiling(p, attempt)
		want := time.Duration(random * float64(ceiling))
		if got := p.Delay(attempt, random); got != want {
			t.Fatalf("%+v.Delay(%d, %v) = %d, want %d", p, attempt, random, got, want)
		}
	})
}

func TestPolicy_DelaysCoverTheWholeRangeFromNothingToTheCeiling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, attempt := drawPolicy(t), rapid.IntRange(1, 200).Draw(t, "attempt")
		ceiling := slowCeiling(p, attempt)
		low, high := p.Delay(attempt, 0), p.Delay(attempt, almostOne)
		if low != 0 || high < ceiling-1 {
			t.Fatalf("%+v, attempt %d: delays from %s to %s, want 0 to %s", p, attempt, low, high, ceiling)
		}
	})
}

func TestPolicy_ALargerRandomOrALaterAttemptNeverShortensADelay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, attempt := drawPolicy(t), rapid.IntRange(1, 200).Draw(t, "attempt")
		less := rapid.Float64Range(0, almostOne).Draw(t, "less")
		more := rapid.Float64Range(less, almostOne).Draw(t, "more")
		if p.Delay(attempt, less) > p.Delay(attempt, more) {
			t.Fatalf("%+v: attempt %d waits longer for %v than for %v", p, attempt, less, more)
		}
		if p.Delay(attempt, less) > p.Delay(attempt+1, less) {
			t.Fatalf("%+v: attempt %d waits longer than the next", p, attempt)
		}
	})
}

func TestPolicy_OrFillsZeroFieldsOnlyAndDefaultsGiveWay(t *testing.T) {
	t.Parallel()
	place := Policy{Attempts: 7, Base: time.Second, Cap: time.Minute, Budget: time.Hour}
	for _, row := range []struct {
		name         string
		policy, want Policy
	}{
		{"the zero policy becomes the defaults", Policy{}, place},
		{"what is stated stays", Policy{1, 2, 3, 4}, Policy{1, 2, 3, 4}},
		{"no limit is stated, too", Policy{Attempts: -1, Budget: -1}, Policy{-1, time.Second, time.Minute, -1}},
		{"a default cap is raised to a stated base", Policy{Base: time.Hour}, Policy{7, time.Hour, time.Hour, time.Hour}},
		{"a default base is lowered to a stated cap", Policy{Cap: time.Millisecond},
			Policy{7, time.Millisecond, time.Millisecond, time.Hour}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(row.want, row.policy.Or(place)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPolicy_APolicyThatPassesStillPassesOnceFilled(t *testing.T) {
	t.Parallel()
	passing := rapid.Custom(func(t *rapid.T) Policy {
		return Policy{
			Attempts: rapid.IntRange(-1, 9).Draw(t, "attempts"),
			Base:     time.Duration(rapid.Int64Range(0, 9).Draw(t, "base")),
			Cap:      time.Duration(rapid.Int64Range(0, 9).Draw(t, "cap")),
			Budget:   time.Duration(rapid.Int64Range(-1, 9).Draw(t, "budget")),
		}
	}).Filter(func(p Policy) bool { return p.Validate("p") == nil })
	rapid.Check(t, func(t *rapid.T) {
		p, defaults := passing.Draw(t, "policy"), passing.Draw(t, "defaults")
		filled := p.Or(defaults)
		if err := filled.Validate("filled"); err != nil {
			t.Fatalf("%+v or %+v: %v", p, defaults, err)
		}
		if filled.Or(standard()).Or(defaults) != filled.Or(standard()) {
			t.Fatalf("a filled policy changed: %+v", filled)
		}
	})
}

func TestPolicy_ValidateNamesEveryFieldValueAndRule(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		policy Policy
		want   string // "" = passes
	}{
		{"the zero policy passes", Policy{}, ""},
		{"the defaults pass", standard(), ""},
		{"no limits pass", Policy{Attempts: -1, Budget: -1}, ""},
		{"attempts below no limit", Policy{Attempts: -2},
			"retry attempts is -2: it must be 1 or more, 0 for the default, or -1 for no limit"},
		{"a negative budget that isn't no limit", Policy{Budget: -time.Second},
			"retry budget is -1s: it must be positive, 0 for the default, or -1 for no limit"},
		{"a base longer than the cap", Policy{Base: 3 * time.Second, Cap: time.Second},
			"retry base is 3s: it must be at most the cap, 1s"},
		{"all problems at once", Policy{Attempts: -5, Base: -1, Cap: -1, Budget: -5}, strings.Join([]string{
			"retry attempts is -5: it must be 1 or more, 0 for the default, or -1 for no limit",
			"retry base is -1ns: it must be positive, or 0 for the default",
			"retry cap is -1ns: it must be positive, or 0 for the default",
			"retry budget is -5ns: it must be positive, 0 for the default, or -1 for no limit"}, "\n")},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := row.policy.Validate("retry"); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPolicy_TheLastAttemptIsTheOneAttemptsNames(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		attempts int
		attempt  int
		want     bool
	}{
		{"the first of three isn't the last", 3, 1, false},
		{"the second of three isn't the last", 3, 2, false},
		{"the third of three is the last", 3, 3, true},
		{"one past the limit counts as the last", 3, 4, true},
		{"a single attempt is the last", 1, 1, true},
		{"no limit has no last attempt", -1, math.MaxInt, false},
		{"zero counts as the default of five", 0, 4, false},
		{"the fifth is the last by default", 0, 5, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := (Policy{Attempts: row.attempts}).Last(row.attempt); got != row.want {
				t.Errorf("Policy{Attempts: %d}.Last(%d) = %t", row.attempts, row.attempt, got)
			}
		})
	}
}
