package retry

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// This file decides what answers mean and how long to wait for them, without clock, context or connection.

// codeInProgress is the code of package idempotency's 409 for a repeat of a request that is still running. It is the
// only 409 that waiting resolves. A mismatch, or any other 409 of an API, stays.
const codeInProgress = "idempotency.in_progress"

// worthRepeating reports whether another attempt may help after this answer: 429, 5xx, and the one 409 that asks for
// it. No other 4xx does, and nothing that the service calls done already.
func worthRepeating(status int, code, errorCode string) bool {
	if class, _ := classOf(errorCode); class == Duplicate {
		return false
	}
	return status == http.StatusTooManyRequests || status >= 500 && status <= 599 ||
		status == http.StatusConflict && code == codeInProgress
}

// limitOf returns how long the next attempt may take, and which limit that is: the attempt's own timeout or the rest of
// the budget, whichever is shorter. A budget of -1 and a timeout of -1 or 0 mean no limit. forever means that there is
// no limit at all.
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

// seconds writes a timeout for timeoutHeader in whole milliseconds. It rounds down, because the answer has to travel
// too.
func seconds(d time.Duration) string {
	millis := max(d.Milliseconds(), 1)
	return strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64)
}

// statusError is an answer that counts as a failed attempt.
type statusError struct {
	status    int
	code      string // of the problem, if it was read
	errorCode string // of the header; "" if there is none
}

func (e *statusError) Error() string {
	if code := cmp.Or(e.code, e.errorCode); code != "" {
		return fmt.Sprintf("server answered %d %s, %s", e.status, http.StatusText(e.status), code)
	}
	return fmt.Sprintf("server answered %d %s", e.status, http.StatusText(e.status))
}

// RetryClass tells Classify the class of the error code, else of the status. A 409 that is worth repeating is Unavailable.
func (e *statusError) RetryClass() Class {
	class, retryable := classOf(e.errorCode)
	switch {
	case e.code == codeInProgress, class == Conflict && retryable:
		return Unavailable
	case class != "":
		return class
	}
	return classifyStatus(e.status)
}
