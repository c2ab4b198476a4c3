package retry

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Permanent marks err as an error that no further attempt can fix, whatever its class. It returns nil for nil.
//
// The message stays err's, and errors.Is and errors.As still find err and its causes. Use it if your code knows better
// than the table of [Classify]: an order that doesn't exist, a payload of an unknown version.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err, or an error it wraps, was marked by [Permanent]. The mark of backoff.Permanent
// (cenkalti/backoff/v4) counts as well. It is false for nil.
func IsPermanent(err error) bool {
	var ours *permanentError
	var theirs *backoff.PermanentError
	err = foreign.Error(err)
	return errors.As(err, &ours) || errors.As(err, &theirs)
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return foreign.Text(e.err) }
func (e *permanentError) Unwrap() error { return e.err }

// After marks err as worth another attempt after d, but not sooner. A negative d counts as 0. It returns nil for nil.
//
// d replaces [Policy.Delay] and may be longer than [Policy.Cap], because the other side asked for it. It doesn't extend
// a budget: [Do] gives up at once if d doesn't fit. The message stays err's, and errors.Is and errors.As still find err
// and its causes.
func After(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &afterError{err, max(d, 0)}
}

// AfterOf returns the wait that [After] put on err or on an error it wraps; the outermost one wins. ok is false if
// there is none, and for nil.
func AfterOf(err error) (d time.Duration, ok bool) {
	var after *afterError
	if !errors.As(foreign.Error(err), &after) {
		return 0, false
	}
	return after.after, true
}

type afterError struct {
	err   error
	after time.Duration // Invariant: after >= 0.
}

func (e *afterError) Error() string { return foreign.Text(e.err) }
func (e *afterError) Unwrap() error { return e.err }

// Retryable reports whether another attempt may succeed after err. It is false for nil.
//
// The first of these that applies decides:
//
//  1. [Permanent] says no.
//  2. [After] says yes.
//  3. The class of err decides: see [Classify] and [Class.Retryable].
//
// It does not say whether the failed attempt had an effect. After a COMMIT whose answer was lost, err looks like any
// broken connection. Only the database knows (pg_xact_status, the idempotency row).
func Retryable(err error) bool {
	if err == nil || IsPermanent(err) {
		return false
	}
	if _, asked := AfterOf(err); asked {
		return true
	}
	return Classify(err).Retryable()
}
