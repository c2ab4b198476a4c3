package retry

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// KeyHeader is the request header that names an operation, so that a server does it once however often it is asked.
const KeyHeader = "Idempotency-Key"

// TimeoutHeader is the request header that says how long its sender will wait for the answer, in seconds: "9.25". A
// server that knows it, as package idempotency does, works no longer than that.
const TimeoutHeader = "X-Request-Timeout"

// Transport is an http.RoundTripper that repeats a request while its answer is worth another attempt, under one
// Idempotency-Key: what package idempotency is to a server, for its clients. [Client] makes an http.Client of it that
// needs nothing else.
//
//	client := &http.Client{Transport: &retry.Transport{Key: func(*http.Request) string { return uuid.NewString() }}}
//
// Repeated are the answers 429 and 5xx; 409 where a problem (RFC 9457) with the code "idempotency.in_progress" says that
// the same operation runs at this moment; and errors that are [Retryable]: time-outs, refused and reset connections, ones
// we don't know. Other answers, 4xx above all, are returned at once. 425 is one of them: it answers data that was sent
// before the handshake had ended (RFC 8470), which net/http never does. Retry-After is honoured in both its forms.
//
// A request is sent once only, if it has a body that cannot be had again (http.Request.GetBody is nil), or if a second
// arrival could do harm: its method is not idempotent by RFC 9110 (POST, PATCH, unknown ones) and it has no key.
//
// Each attempt says in TimeoutHeader how long it will be waited for. A request that has the header keeps its own; one
// that has it with a nil value is sent without.
//
// A redirect that http.Client follows belongs to the same operation: it goes on under the same key, unless it became a
// GET, and within the same budget. Base must set http.Response.Request for that, as http.Transport does.
//
// When there is no further attempt, the last response is returned as it came, body unread; if the last attempt brought
// none, the error is a [*GaveUpError]. Bodies of responses that are followed by another attempt are drained, within
// limits, and closed. The request given is not changed.
//
// The zero Transport is ready for use. It may be used from many goroutines at once; its fields must not be changed after
// the first use.
type Transport struct {
	// Base sends each attempt. Defaults to http.DefaultTransport.
	Base http.RoundTripper

	// Policy says how often and how long. Its Budget limits, from the first attempt on, the time in all until the headers
	// of an answer are there, and cuts an attempt short; reading the body isn't limited. A policy that doesn't pass
	// Policy.Validate makes every request fail. Zero fields default to those of Defaults: 5 attempts, 100 ms base, 2 s
	// cap, 10 s in all.
	Policy Policy

	// AttemptTimeout is how long one attempt may take until the headers of its answer are there; then it is a time-out,
	// and followed by another. It doesn't count for a request that is sent once. -1 means no limit but the budget.
	// Defaults to -1: an attempt that hangs uses up the budget.
	AttemptTimeout time.Duration

	// Key gives the Idempotency-Key of a request that doesn't bring the header along. It is called at most once for a
	// request, from the goroutine that sends it; all attempts carry what it returns. "" means no key. Defaults to no key.
	Key func(*http.Request) string

	// Observer gets every attempt.
	Observer Observer

	random func() float64 // in [0,1); nil means math/rand/v2. Set by tests.
}

// RoundTrip implements http.RoundTripper; see [Transport]. It always closes the request's body.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	policy := t.Policy.Or(Defaults())
	if err := t.validate(); err != nil {
		closeBody(req.Body)
		return nil, err
	}
	x := &exchange{base: t.base(), req: req, budget: policy.Budget, timeout: t.AttemptTimeout, observer: t.Observer}
	x.follow()
	if x.key == "" {
		x.key = t.key(req)
	}
	if !x.repeatable() {
		policy.Attempts = 1
	}
	if policy.Last(1) {
		x.timeout = noLimit // cut short, it would leave time for nothing
	}
	r := run{ctx: req.Context(), policy: policy, random: t.random, startAt: x.startAt}
	if r.random == nil {
		r.random = rand.Float64
	}
	err := r.do(x.try, x.discard)
	if x.resp != nil {
		return x.resp, nil // also after a failure: the last answer is the caller's to read
	}
	if r.attempt == 0 {
		closeBody(req.Body) // no attempt took it over
	}
	return nil, err
}

// CloseIdleConnections passes the call on to Base, for http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// validate reports every problem of t at once.
func (t *Transport) validate() error {
	problems := []error{t.Policy.Validate("retry.Transport.Policy")}
	if t.AttemptTimeout < 0 && t.AttemptTimeout != noLimit {
		problems = append(problems, fmt.Errorf("retry.Transport.AttemptTimeout is %s: must be positive, 0 for the default, or -1 for no limit",
			t.AttemptTimeout))
	}
	return errors.Join(problems...)
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) key(req *http.Request) string {
	if own := req.Header.Get(KeyHeader); own != "" || t.Key == nil {
		return own
	}
	return t.Key(req)
}

// closeBody closes a request's or a response's body; there may be none.
func closeBody(body io.Closer) {
	if body != nil {
		_ = body.Close()
	}
}
