package retry

import (
	"net/http"
	"strings"
	"time"
)

// codeHeader is the header in which holdfast's answers say their error_code, and in which the services that are called may
// say theirs.
const codeHeader = "Error-Code"

// taxonomy says what each error_code means: the first row whose code it is, or begins with before a dot, counts.
var taxonomy = []struct {
	code      string
	class     Class
	retryable bool
}{
	{"CONFLICT.idempotency.in_progress", Conflict, true}, // the one conflict that waiting resolves
	{string(Validation), Validation, false},
	{string(Auth), Auth, false},
	{string(Conflict), Conflict, false},
	{string(RateLimit), RateLimit, true}, // after the time that the answer says
	{string(Timeout), Timeout, true},
	{string(Unavailable), Unavailable, true},
	{string(Transient), Transient, true},
	{string(Duplicate), Duplicate, false}, // it is done: show its result
}

// classOf returns the class of an error_code such as "RATE_LIMIT.exceeded", and whether the same request is worth another
// attempt. The class is "" for a code of no class.
func classOf(code string) (class Class, retryable bool) {
	for _, row := range taxonomy {
		if code == row.code || strings.HasPrefix(code, row.code+".") {
			return row.class, row.retryable
		}
	}
	return "", false
}

// Retryable reports whether failures of this class are worth another attempt. That holds for RateLimit, Timeout,
// Unavailable and Transient, and for nothing that isn't one of the eight classes. If you have an error, use the
// function [Retryable]: an error may be marked [Permanent] whatever its class.
func (c Class) Retryable() bool {
	_, retryable := classOf(string(c))
	return retryable && c.known()
}

// known reports whether c is one of the eight classes.
func (c Class) known() bool {
	class, _ := classOf(string(c))
	return c != "" && class == c
}

// ErrorOf returns what an answer means as an error, for code that sends requests without a [Transport]. It is nil below
// 400. [Classify] knows its class: that of the error_code in the header Error-Code if the service sends one, else that of the status. A
// Retry-After is kept as by [After], unless it is 0 or in the past: then [Policy.Delay] spreads the attempts of all who were told so.
// ErrorOf does not read the body; the caller still has to close it.
func ErrorOf(resp *http.Response) error {
	if resp.StatusCode < http.StatusBadRequest {
		return nil
	}
	failed := &statusError{status: resp.StatusCode, errorCode: resp.Header.Get(codeHeader)}
	if wait, ok := retryAfter(resp.Header, time.Now()); ok && wait > 0 && failed.RetryClass().Retryable() {
		return After(failed, wait)
	}
	return failed
}
