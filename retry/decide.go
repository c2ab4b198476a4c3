package retry

import "time"

// Why attempts ended. [GaveUpError.Reason] has them, and so do logs.
const (
	notRetryable  = "not retryable"
	attemptsSpent = "attempts spent"
	budgetSpent   = "budget spent"
	deadlineNear  = "deadline too near"
	contextEnded  = "context ended"
)

// forever stands for a context without a deadline.
const forever = time.Duration(1<<63 - 1)

// failure describes an attempt that has just failed.
type failure struct {
	attempt int           // the number of that attempt, 1 = the first
	err     error         // what it failed with
	elapsed time.Duration // since the first attempt began
	left    time.Duration // until the context's deadline, forever when it has none
	crowd   bool          // what err asks for was probably told to many clients
}

// decide returns how long to wait before the next attempt, or the reason why there is none. It is pure. p has no zero
// fields.
//
// It checks budget and deadline before the wait. A wait after which no attempt may begin helps nobody, and the caller
// can use the time. An attempt that could begin only at the very moment the budget or the deadline ends counts as too
// late.
func (p Policy) decide(f failure, random float64) (wait time.Duration, reason string) {
	if !Retryable(f.err) {
		return 0, notRetryable
	}
	if p.Last(f.attempt) {
		return 0, attemptsSpent
	}
	wait, asked := AfterOf(f.err)
	if !asked || f.crowd && wait == 0 { // "At once", told to a crowd, would have them all back at the same moment.
		wait, asked = p.Delay(f.attempt, random), false
	}
	// Differences, not sums: elapsed + wait may overflow.
	room := f.left - wait
	if p.Budget != noLimit {
		if wait >= p.Budget-f.elapsed {
			return 0, budgetSpent
		}
		room = min(room, p.Budget-f.elapsed-wait)
	}
	if wait >= f.left {
		return 0, deadlineNear
	}
	if asked && f.crowd {
		wait += late(wait, room, random)
	}
	return wait, ""
}

// late is how much longer than asked to wait: up to a quarter, and less than room. A server that tells a crowd of clients the
// same Retry-After would have them all at the same moment.
func late(wait, room time.Duration, random float64) time.Duration {
	most := min(wait/4, room-1)
	return min(time.Duration(random*float64(most)), most)
}
