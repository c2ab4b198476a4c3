package retry

import (
	"io"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDecide_TheDecisionAfterAFailedAttempt(t *testing.T) {
	t.Parallel()
	second := time.Second
	policy := Policy{Attempts: 3, Base: second, Cap: 4 * second, Budget: 10 * second}
	endless := Policy{Attempts: -1, Base: second, Cap: 4 * second, Budget: -1}
	for _, row := range []struct {
		name   string
		policy Policy
		f      failure
		wait   time.Duration
		reason string
	}{
		{"waits half the ceiling", policy, failure{1, io.EOF, 0, forever, false}, second / 2, ""},
		{"waits longer after the second attempt", policy, failure{2, io.EOF, 0, forever, false}, second, ""},
		{"stops after the last attempt", policy, failure{3, io.EOF, 0, forever, false}, 0, attemptsSpent},
		{"goes on without a limit of attempts", endless, failure{1_000_000, io.EOF, 0, forever, false}, 2 * second, ""},
		{"stops at a permanent error", policy, failure{1, Permanent(io.EOF), 0, forever, false}, 0, notRetryable},
		{"stops at a class that isn't retryable", policy, failure{1, pg("23505"), 0, forever, false}, 0, notRetryable},
		{"says why rather than that attempts are spent", policy, failure{3, Permanent(io.EOF), 0, forever, false}, 0, notRetryable},
		{"waits as asked, past the cap", policy, failure{1, After(io.EOF, 9*second), 0, forever, false}, 9 * second, ""},
		{"waits longer than asked, past the cap", policy, failure{1, After(io.EOF, 4*second), 0, forever, true}, 4*second + second/2, ""},
		{"waits longer than asked, but within the budget", policy, failure{1, After(io.EOF, 8*second), second, forever, true}, 8*second + (second-1)/2, ""},
		{"waits longer than asked, but within the deadline", endless, failure{1, After(io.EOF, 8*second), 0, 9 * second, true}, 8*second + (second-1)/2, ""},
		{"waits as asked, less than by itself", policy, failure{1, After(io.EOF, 1), 0, forever, false}, 1, ""},
		{"doesn't wait when asked for nothing", policy, failure{1, After(io.EOF, 0), 0, forever, false}, 0, ""},
		{"waits as by itself when many were asked for nothing", policy, failure{2, After(io.EOF, 0), 0, forever, true}, second, ""},
		{"waits up to the budget", policy, failure{1, After(io.EOF, 2*second), 8*second - 1, forever, true}, 2 * second, ""}, // no room for more
		{"stops when the wait ends with the budget", policy, failure{1, After(io.EOF, 2*second), 8 * second, forever, false}, 0, budgetSpent},
		{"stops when the budget is spent without a wait", policy, failure{1, After(io.EOF, 0), 10 * second, forever, false}, 0, budgetSpent},
		{"stops at a wait too long for any budget", policy, failure{1, After(io.EOF, math.MaxInt64), second, forever, false}, 0, budgetSpent},
		{"goes on without a budget", endless, failure{1, io.EOF, 1000 * time.Hour, forever, false}, second / 2, ""},
		{"waits up to the deadline", endless, failure{1, After(io.EOF, second), 0, second + 1, false}, second, ""},
		{"stops when the wait ends with the deadline", endless, failure{1, After(io.EOF, second), 0, second, false}, 0, deadlineNear},
		{"stops past the deadline without a wait", endless, failure{1, After(io.EOF, 0), 0, -1, false}, 0, deadlineNear},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if wait, reason := row.policy.decide(row.f, 0.5); wait != row.wait || reason != row.reason {
				t.Errorf("decide(%+v) = %s, %q, want %s, %q", row.f, wait, reason, row.wait, row.reason)
			}
		})
	}
}

func TestDecide_AWaitAlwaysEndsBeforeTheBudgetAndTheDeadline(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		duration := rapid.Int64Range(0, math.MaxInt64)
		p := drawPolicy(t)
		p.Attempts = rapid.SampledFrom([]int{-1, 1, 2, 5}).Draw(t, "attempts")
		p.Budget = time.Duration(max(duration.Draw(t, "budget"), 1))
		f := failure{
			attempt: rapid.IntRange(1, 9).Draw(t, "attempt"),
			err:     io.EOF,
			elapsed: time.Duration(duration.Draw(t, "elapsed")),
			left:    time.Duration(duration.Draw(t, "left")),
			crowd:   rapid.Bool().Draw(t, "crowd"),
		}
		if rapid.Bool().Draw(t, "asked") {
			f.err = After(io.EOF, time.Duration(duration.Draw(t, "after")))
		}
		wait, reason := p.decide(f, rapid.Float64Range(0, almostOne).Draw(t, "random"))
		if reason != "" {
			return
		}
		if wait < 0 || wait >= f.left || f.elapsed > p.Budget || wait >= p.Budget-f.elapsed || p.Last(f.attempt) {
			t.Fatalf("%+v.decide(%+v) waits %s", p, f, wait)
		}
	})
}
