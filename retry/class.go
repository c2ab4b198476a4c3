package retry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Class is the kind of a failure. It says whether another attempt can succeed, and what a caller is answered.
//
// Each value is an error_code, or begins those of its kind: CONFLICT.idempotency.payload_mismatch has the class Conflict. A server says
// RATE_LIMIT.exceeded to a client that it limits. The answers of holdfast say theirs in the header Error-Code.
// Logs, metrics and dead letters contain the values; changing one is a breaking change.
type Class string

// The taxonomy: every class, and what its caller should do.
const (
	Validation  Class = "VALIDATION"             // the input is invalid: fix it
	Auth        Class = "AUTH"                   // not authenticated or not authorised: sign in again, or get permission
	Conflict    Class = "CONFLICT"               // conflicts with stored data: compare, then decide
	RateLimit   Class = "RATE_LIMIT"             // too many requests: wait as long as the answer says, then retry
	Timeout     Class = "DEPENDENCY.timeout"     // no answer in time, effect unknown: wait, then retry
	Unavailable Class = "DEPENDENCY.unavailable" // unreachable or out of service: wait, then retry
	Transient   Class = "TRANSIENT"              // a temporary failure, or an unknown one: wait, then retry
	Duplicate   Class = "PROVIDER.duplicate"     // already applied: show the existing result
)

// Classify returns the class of err: the first row that fits err or an error it wraps.
//
//  1. An error with a method RetryClass() Class: what that returns.
//  2. A *pgconn.PgError: by SQLSTATE, see the table in sqlstate.go.
//  3. A timeout (context.DeadlineExceeded, net.Error with Timeout, os.ErrDeadlineExceeded): Timeout.
//  4. A configuration that pgconn cannot read: Validation. A certificate that doesn't verify: Auth.
//  5. A connection refused, reset or closed, an unexpected EOF, a name that doesn't resolve: Unavailable.
//  6. A broker's error of kafka-go that says that it is not temporary: Auth if it is about rights or signing in, else Validation.
//  7. An error marked [Permanent]: Validation.
//  8. An error marked [After]: RateLimit.
//  9. Anything else, including context.Canceled: Transient, so that unknown failures are retried rather than given up.
//
// nil has the class "". Classify is pure, and many goroutines may call it at once. It never uses pgconn.SafeToRetry,
// which from pgx v5.9.0 on answers true for a COMMIT that was carried out (see [Retryable]).
func Classify(err error) Class {
	if err == nil {
		return ""
	}
	err = foreign.Error(err)
	for _, row := range classTable {
		if class, ok := row(err); ok {
			return class
		}
	}
	return Transient
}

// classTable is the table of [Classify], in the order of its comment. A new case is a row here or in sqlStates, and a
// row in the table of class_test.go.
var classTable = []func(error) (Class, bool){
	func(err error) (Class, bool) {
		var own interface{ RetryClass() Class }
		if !errors.As(err, &own) {
			return "", false
		}
		class, _ := foreign.Try(own.RetryClass)
		return class, class.known() // an error that answers "" leaves it to the other rows
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
		// Not net.Error: that also requires the deprecated Temporary, which many timeouts lack.
		var timed interface{ Timeout() bool }
		if !errors.As(err, &timed) {
			return "", false
		}
		is, _ := foreign.Try(timed.Timeout)
		return Timeout, is
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
	classifyBroker,
	func(err error) (Class, bool) { return Validation, IsPermanent(err) },
	func(err error) (Class, bool) {
		_, asked := AfterOf(err)
		return RateLimit, asked
	},
}

// classifyBroker is the row for kafka.Error, which this package does not import. Its Temporary is Kafka's table of errors that are
// worth another try (https://kafka.apache.org/protocol#protocol_error_codes). Three that are not there say nothing about
// the request.
func classifyBroker(err error) (Class, bool) {
	var broker interface {
		Temporary() bool
		Title() string
		Description() string
	}
	if !errors.As(err, &broker) {
		return "", false
	}
	title, ok := foreign.Try(func() string {
		if broker.Temporary() {
			return ""
		}
		return strings.ToLower(broker.Title())
	})
	switch {
	case !ok:
		return "", false
	case title == "", title == "unknown", title == "broker not available", title == "rebalance in progress":
		return "", false
	case strings.Contains(title, "authoriz"), strings.Contains(title, "authentication"), strings.Contains(title, "sasl"):
		return Auth, true
	}
	return Validation, true
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

// classifyStatus returns the class of an HTTP status of a failed request, as RFC 9110 and, for 429, RFC 6585 define it.
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
