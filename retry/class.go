package retry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class says of what kind a failure is: whether another attempt can succeed, and what a caller gets.
//
// Each value is the part that error codes of its kind begin with: the code CONFLICT.idempotency.payload_mismatch is of
// class Conflict. The values are written to logs, metrics and dead letters; changing one is a breaking change.
type Class string

// The taxonomy: every class, and the caller's hint of each.
const (
	Validation  Class = "VALIDATION"             // the input is at fault: fix the input
	Auth        Class = "AUTH"                   // not known or not allowed: sign in again, or get the right
	Conflict    Class = "CONFLICT"               // clashes with what is stored: look at it, then decide
	RateLimit   Class = "RATE_LIMIT"             // too many requests: wait as told, then again
	Timeout     Class = "DEPENDENCY.timeout"     // no answer in time, the effect unknown: again, after a wait
	Unavailable Class = "DEPENDENCY.unavailable" // cannot be reached or cannot work now: again, after a wait
	Transient   Class = "TRANSIENT"              // a passing trouble, or one we don't know: again, after a wait
	Duplicate   Class = "PROVIDER.duplicate"     // already applied: show the result that exists
)

// retryableClasses holds every class, and whether its failures are worth another attempt.
var retryableClasses = map[Class]bool{
	Validation:  false,
	Auth:        false,
	Conflict:    false,
	RateLimit:   true,
	Timeout:     true,
	Unavailable: true,
	Transient:   true,
	Duplicate:   false,
}

// Retryable reports whether failures of this class are worth another attempt: those of RateLimit, Timeout, Unavailable
// and Transient are. It is false for anything that isn't one of the eight classes. Prefer the function [Retryable] where
// an error is at hand: an error may be marked [Permanent] whatever its class.
func (c Class) Retryable() bool { return retryableClasses[c] }

// Classify returns the class of err by the first row of its table that fits err or an error it wraps:
//
//  1. an error that says so itself, by a method RetryClass() Class;
//  2. a *pgconn.PgError: by SQLSTATE, see the table in sqlstate.go;
//  3. a time that ran out (context.DeadlineExceeded, net.Error with Timeout, os.ErrDeadlineExceeded): Timeout;
//  4. a configuration pgconn cannot read: Validation; a certificate that doesn't verify: Auth;
//  5. a connection refused, reset or closed, an unexpected end, a name that doesn't resolve: Unavailable;
//  6. an error marked [Permanent]: Validation;
//  7. an error marked [After]: RateLimit;
//  8. anything else, context.Canceled included: Transient, so that the unknown is tried again rather than given up.
//
// nil has no class: "". Classify is pure and may be called from many goroutines at once. It never asks
// pgconn.SafeToRetry, which from pgx v5.9.0 on answers true for a COMMIT that was carried out (see [Retryable]).
func Classify(err error) Class {
	if err == nil {
		return ""
	}
	for _, row := range classTable {
		if class, ok := row(err); ok {
			return class
		}
	}
	return Transient
}

// classTable is the one table of [Classify], in the order of its comment. A new case is a row here or in sqlStates,
// and a row in the table of class_test.go.
var classTable = []func(error) (Class, bool){
	func(err error) (Class, bool) {
		var own interface{ RetryClass() Class }
		if !errors.As(err, &own) {
			return "", false
		}
		class := own.RetryClass()
		_, known := retryableClasses[class]
		return class, known // an error that answers "" leaves it to the other rows
	},
	func(err error) (Class, bool) {
		var pg *pgconn.PgError
		if !errors.As(err, &pg) {
			return "", false
		}
		return classifySQLState(pg), true
	},
	is(Timeout, context.DeadlineExceeded, os.ErrDeadlineExceeded),
	func(err error) (Class, bool) {
		// Not net.Error: its deprecated Temporary would be asked for too, and many time-outs don't have it.
		var timed interface{ Timeout() bool }
		return Timeout, errors.As(err, &timed) && timed.Timeout()
	},
	as[*pgconn.ParseConfigError](Validation),
	as[*tls.CertificateVerificationError](Auth),
	is(Unavailable,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE,
		syscall.ENETUNREACH, syscall.EHOSTUNREACH,
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed),
	as[*pgconn.ConnectError](Unavailable),
	as[*net.OpError](Unavailable),
	as[*net.DNSError](Unavailable),
	func(err error) (Class, bool) { return Validation, IsPermanent(err) },
	func(err error) (Class, bool) {
		_, asked := AfterOf(err)
		return RateLimit, asked
	},
}

// is makes a row for errors that are, or wrap, one of targets.
func is(class Class, targets ...error) func(error) (Class, bool) {
	return func(err error) (Class, bool) {
		for _, target := range targets {
			if errors.Is(err, target) {
				return class, true
			}
		}
		return "", false
	}
}

// as makes a row for errors that are, or wrap, an E.
func as[E error](class Class) func(error) (Class, bool) {
	return func(err error) (Class, bool) {
		var target E
		return class, errors.As(err, &target)
	}
}

// classifyStatus returns the class of an HTTP status that says a request failed. It follows what the status means:
// RFC 9110, and RFC 6585 for 429.
func classifyStatus(status int) Class {
	switch {
	case status == http.StatusTooManyRequests:
		return RateLimit
	case status == http.StatusGatewayTimeout, status == http.StatusRequestTimeout:
		return Timeout
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Auth
	case status == http.StatusConflict, status == http.StatusPreconditionFailed:
		return Conflict
	case status >= 400 && status < 500:
		return Validation
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable:
		return Unavailable
	default:
		return Transient
	}
}
