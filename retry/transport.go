package retry

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// keyHeader is the request header that names an operation. The server carries the operation out once, however often it
// receives the request.
const keyHeader = "Idempotency-Key"

// timeoutHeader is the request header that says how many seconds its sender will wait for the answer: "9.25". A server
// that knows it, as package idempotency does, works no longer than that.
const timeoutHeader = "X-Request-Timeout"

// Transport is an http.RoundTripper that repeats a request under one Idempotency-Key while its answer is worth another
// attempt. It is the client's counterpart to package idempotency. [Client] makes a complete http.Client of it.
//
//	client := &http.Client{Transport: &retry.Transport{Key: func(*http.Request) string { return uuid.NewString() }}}
//
// Transport repeats a request after the answers 429 and 5xx. It repeats it after a 409 whose problem (RFC 9457) has
// the code "idempotency.in_progress": the same operation is still running. It also repeats it after [Retryable]
// errors: timeouts, refused and reset connections, unknown errors. It returns other answers at once, in particular
// other 4xx. One of them is 425, which concerns data sent before the handshake ended (RFC 8470); net/http never does
// that. Both forms of Retry-After are honoured; Transport waits up to a quarter longer, at random, because many
// clients may have been told the same moment. One of 0, or in the past, is waited for as if there were none.
//
// A request is sent only once if its body cannot be read again (http.Request.GetBody is nil). The same goes for a
// request that could do harm if it arrived twice: one without a key whose method is not idempotent by RFC 9110 (POST,
// PATCH, unknown ones).
//
// Each attempt says in the header X-Request-Timeout how many seconds its sender will wait for the answer: "9.25". A server that knows the
// header, as package idempotency does, works no longer than that. A request that has the header keeps its own. A
// request that has it with a nil value is sent without it.
//
// A redirect that http.Client follows belongs to the same operation. It keeps the key, unless it becomes a GET, and the
// budget. For that, Base must set http.Response.Request, as http.Transport does. That holds for a redirect to another host
// too: the body goes there as well, and without the key a service that has moved would carry out each attempt. A key alone
// opens nothing: http.Client withholds Authorization and cookies from other hosts, and answers belong to a principal.
//
// After the last attempt its response is returned unchanged, with its body unread. If the last attempt brought no
// response, the error is a [*GaveUpError]. Bodies of earlier responses are drained, within limits, and closed. The
// given request is not changed.
//
// The zero Transport is ready for use. Many goroutines may use it at once; don't change its fields after the first use.
type Transport struct {
	// Base sends each attempt. Defaults to http.DefaultTransport.
	Base http.RoundTripper

	// Policy says how often to try and how long. Its Budget limits the total time from the first attempt until the
	// headers of an answer arrive, and cuts an attempt short. It doesn't limit reading the body. A policy that doesn't
	// pass Policy.Validate makes every request fail. Zero fields default to those of Do: 5 attempts, 100 ms base,
	// 2 s cap, 10 s in all.
	Policy Policy

	// AttemptTimeout is how long one attempt may take until the headers of its answer arrive. After that it counts as a
	// timeout, and another attempt follows. It doesn't apply to a request that is sent only once. -1 means no limit but
	// the budget. Defaults to -1: an attempt that hangs uses up the budget.
	AttemptTimeout time.Duration

	// Key returns the Idempotency-Key for a request without the header. It is called at most once for a request, from
	// the goroutine that sends it. All attempts carry the key. "" means no key. Defaults to no key.
	Key func(*http.Request) string

	// Observer receives every attempt.
	Observer Observer

	random func() float64 // in [0,1); nil means math/rand/v2. Set by tests.
}

// RoundTrip implements http.RoundTripper; see [Transport]. It always closes the request's body.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	policy := t.Policy.Or(standard())
	if err := t.validate(); err != nil {
		closeBody(req.Body)
		return nil, err
	}
	x := &exchange{
		base:     t.base(),
		req:      req,
		budget:   policy.Budget,
		timeout:  t.AttemptTimeout,
		observer: t.Observer,
	}
	x.follow()
	if x.key == "" {
		x.key = t.key(req)
	}
	if !x.repeatable() {
		policy.Attempts = 1
	}
	if policy.Last(1) {
		x.timeout = noLimit // there is no second attempt to save time for
	}
	r := run{ctx: req.Context(), policy: policy, random: t.random, startAt: x.startAt, crowd: true}
	if r.random == nil {
		r.random = rand.Float64
	}
	err := r.do(x.try, x.discard)
	if x.resp != nil {
		return x.resp, nil // also after a failure: the caller reads the last answer
	}
	if r.attempt == 0 {
		closeBody(req.Body) // no attempt closed it
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
	problems := []error{t.Policy.Validate("policy")}
	if t.AttemptTimeout < 0 && t.AttemptTimeout != noLimit {
		problems = append(problems, fmt.Errorf("attempt timeout is %s: it must be positive, 0 for the default, or -1 for no limit",
			t.AttemptTimeout))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("retry.Transport config: %w", err)
	}
	return nil
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) key(req *http.Request) string {
	if own := req.Header.Get(keyHeader); own != "" || t.Key == nil {
		return own
	}
	return t.Key(req)
}

// closeBody closes the body of a request or a response, if there is one.
func closeBody(body io.Closer) {
	if body != nil {
		_ = body.Close()
	}
}
