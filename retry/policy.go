package retry

import (
	"errors"
	"fmt"
	"time"
)

// Policy says how often to try and how long to wait in between. It is a plain value without state: copy it, compare it,
// use it from many goroutines at once.
//
// A zero field means the default of the place that uses the policy, which fills it in with [Policy.Or]. Places differ
// on purpose: an HTTP call gives up after seconds, the inbox after minutes.
type Policy struct {
	// Attempts is the total number of attempts, the first included; 1 means no retry. -1 means no limit. Defaults to
	// the value of the place that uses the policy.
	Attempts int

	// Base is the longest wait after the first attempt; each further attempt doubles it. Invariant: 0 < Base <= Cap.
	// Defaults to the value of the place that uses the policy.
	Base time.Duration

	// Cap is the longest wait between two attempts, jitter included. Only a wait that [After] or a Retry-After header
	// asks for may be longer. Defaults to the value of the place that uses the policy.
	Cap time.Duration

	// Budget is the time from the first attempt (in an inbox, its first failure) within which another attempt may begin, waits included. -1 means no
	// limit. Defaults to the value of the place that uses the policy.
	Budget time.Duration
}

// standard is the policy that [Do] and [Transport] use for zero fields.
//
// A schedule that is often recommended waits 100–200, 200–400, 400–800 and 800–1600 ms, the upper half of full jitter
// from 200 ms. Full jitter spreads a crowd of clients best; the other schedule only adds waiting time. Policy{Base: 200
// * time.Millisecond} waits, on average, as long as the lower bounds of that schedule.
func standard() Policy {
	return Policy{
		Attempts: 5,
		Base:     100 * time.Millisecond,
		Cap:      2 * time.Second,
		Budget:   10 * time.Second,
	}
}

// Or returns p with its zero fields taken from defaults, which should have none. It is for a place of your own that takes a Policy.
//
// A default yields to a stated value: a default Cap below a stated Base is raised to it, and a default Base above a
// stated Cap is lowered to it. So Policy{Base: time.Minute} waits up to a minute, and doesn't contradict a Cap that its
// author never saw.
func (p Policy) Or(defaults Policy) Policy {
	if p.Attempts == 0 {
		p.Attempts = defaults.Attempts
	}
	if p.Budget == 0 {
		p.Budget = defaults.Budget
	}
	switch {
	case p.Base == 0 && p.Cap == 0:
		p.Base, p.Cap = defaults.Base, defaults.Cap
	case p.Base == 0:
		p.Base = min(defaults.Base, p.Cap)
	case p.Cap == 0:
		p.Cap = max(defaults.Cap, p.Base)
	}
	return p
}

// Validate returns nil, or one error that joins all problems of p. Each names the field after the caller's name for the
// policy, its value and the rule: "retry cap is -1s: it must be …". Zero fields pass, because they stand for defaults.
// A policy that passes still passes after [Policy.Or] with defaults that pass.
func (p Policy) Validate(field string) error {
	var problems []error
	if p.Attempts < -1 {
		problems = append(problems, fmt.Errorf("%s attempts is %d: it must be 1 or more, 0 for the default, or -1 for no limit",
			field, p.Attempts))
	}
	if p.Base < 0 {
		problems = append(problems, fmt.Errorf("%s base is %s: it must be positive, or 0 for the default", field, p.Base))
	}
	if p.Cap < 0 {
		problems = append(problems, fmt.Errorf("%s cap is %s: it must be positive, or 0 for the default", field, p.Cap))
	}
	if p.Base > 0 && p.Cap > 0 && p.Base > p.Cap {
		problems = append(problems, fmt.Errorf("%s base is %s: it must be at most the cap, %s", field, p.Base, p.Cap))
	}
	if p.Budget < 0 && p.Budget != noLimit {
		problems = append(problems, fmt.Errorf("%s budget is %s: it must be positive, 0 for the default, or -1 for no limit",
			field, p.Budget))
	}
	return errors.Join(problems...)
}

// noLimit is the value of Attempts and Budget that means no limit.
const noLimit = -1

// Delay returns how long to wait after attempt number attempt (1 = the first) has failed. random is in [0,1). It
// chooses a point between zero and Base * 2^(attempt-1), which is at most Cap. This is full jitter: it spreads a crowd
// of clients best, also once Cap is reached.
//
// The result is never negative and never above Cap, for any attempt and any random. An attempt below 1 counts as 1, a
// random outside its range as the nearest end, and doubling never overflows. Delay is pure: equal arguments give equal
// delays, so one process may compute a delay and another may wait for it. Zero Base and Cap count as 100 ms
// and 2 s, the defaults of [Do], so that a forgotten policy doesn't spin.
func (p Policy) Delay(attempt int, random float64) time.Duration {
	p = p.Or(standard())
	ceiling := p.ceiling(attempt)
	if !(random > 0) { // true for NaN, too
		return 0
	}
	// Compare as floating point: float64(math.MaxInt64) doesn't fit an int64.
	delay := random * float64(ceiling)
	if delay >= float64(ceiling) {
		return ceiling
	}
	return time.Duration(delay)
}

// ceiling is min(Cap, Base * 2^(attempt-1)), and 0 if either is negative. It shifts Cap down rather than Base up,
// because that can't overflow: Base * 2^n > Cap exactly when Base > floor(Cap / 2^n).
func (p Policy) ceiling(attempt int) time.Duration {
	if p.Base <= 0 || p.Cap <= 0 {
		return 0
	}
	doublings := uint(max(attempt, 1) - 1)
	if p.Base > p.Cap>>doublings {
		return p.Cap
	}
	return p.Base << doublings
}

// Last reports whether p allows no attempt after attempt number attempt (1 = the first). It uses only Attempts, where
// zero counts as 5, the default of [Do]. With -1 no attempt is the last.
func (p Policy) Last(attempt int) bool {
	limit := p.Or(standard()).Attempts
	return limit >= 0 && attempt >= limit
}
