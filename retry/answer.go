package retry

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// What answers mean, and how long they are waited for: without clock, context or connection.

// codeInProgress is the code of package idempotency's 409 to a repeat of what runs at this moment. It is the one 409
// that time fixes: a mismatch, and whatever else an API says by 409, stays.
const codeInProgress = "idempotency.in_progress"

// worthRepeating says after which answers another attempt can help: 429 and 5xx, no other 4xx; and the 409 that asks for it.
func worthRepeating(status int, code string) bool {
	return status == http.StatusTooManyRequests || status >= 500 && status <= 599 ||
		status == http.StatusConflict && code == codeInProgress
}

// limitOf is how long the next attempt may take: an attempt's own time-out or what is left of the budget, whichever is
// less, and which that is. -1, and 0 for the time-out, mean no limit; forever says that there is none.
func limitOf(attempt, budget, elapsed time.Duration) (limit time.Duration, why string) {
	limit = forever
	if budget != noLimit {
		limit, why = budget-elapsed, "the budget of "+budget.String()
	}
	if attempt > 0 && attempt < limit {
		limit, why = attempt, "an attempt's "+attempt.String()
	}
	return limit, why
}

// seconds writes a time-out for TimeoutHeader: whole milliseconds, rounded down, since the answer has to travel, too.
func seconds(d time.Duration) string {
	millis := max(d.Milliseconds(), 1)
	return strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64)
}

// statusError is an answer that counts as a failed attempt.
type statusError struct {
	status int
	code   string // of the problem, where it was read
}

func (e *statusError) Error() string {
	if e.code != "" {
		return fmt.Sprintf("server answered %d %s, %s", e.status, http.StatusText(e.status), e.code)
	}
	return fmt.Sprintf("server answered %d %s", e.status, http.StatusText(e.status))
}

// RetryClass makes the status known to Classify. A 409 that is repeated is a conflict that passes.
func (e *statusError) RetryClass() Class {
	if e.code == codeInProgress {
		return Unavailable
	}
	return classifyStatus(e.status)
}
