package retry

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// KeyHeader is the request header that names an operation, so that a server does it once however often it is asked.
const KeyHeader = "Idempotency-Key"

// Transport is an http.RoundTripper that repeats a request while its answer is worth another attempt, under one
// Idempotency-Key: the client half of the idempotency and retry playbook (requirements/004).
//
//	client := &http.Client{Transport: &retry.Transport{Key: func(*http.Request) string { return uuid.NewString() }}}
//
// Repeated are the answers 429 and 5xx, and errors that are [Retryable]: time-outs, refused and reset connections, ones
// we don't know. Other answers, 4xx above all, are returned at once. Retry-After is honoured in both its forms.
//
// A request is sent once only, if it has a body that cannot be had again (http.Request.GetBody is nil), or if a second
// arrival could do harm: its method is not idempotent by RFC 9110 (POST, PATCH, unknown ones) and it has no key.
//
// When there is no further attempt, the last response is returned as it came, body unread; if the last attempt brought
// none, the error is a [*GaveUpError]. Bodies of responses that are followed by another attempt are drained, within
// limits, and closed. The request given is not changed.
//
// The zero Transport is ready for use. It may be used from many goroutines at once; its fields must not be changed after
// the first use.
type Transport struct {
	// Base sends each attempt. One attempt that hangs uses up the budget, so let Base have a time-out of its own
	// (http.Transport.ResponseHeaderTimeout). Defaults to http.DefaultTransport.
	Base http.RoundTripper

	// Policy says how often and how long. Its Budget limits, from the first attempt on, the time in all until the headers
	// of an answer are there, and cuts an attempt short; reading the body isn't limited. A policy that doesn't pass
	// Policy.Validate makes every request fail. Zero fields default to those of Defaults: 5 attempts, 100 ms base, 2 s
	// cap, 10 s in all.
	Policy Policy

	// Key gives the Idempotency-Key of a request that doesn't bring the header along. It is called at most once for a
	// request, from the goroutine that sends it; all attempts carry what it returns. "" means no key. Defaults to no key.
	Key func(*http.Request) string

	random func() float64 // in [0,1); nil means math/rand/v2. Set by tests.
}

// RoundTrip implements http.RoundTripper; see [Transport]. It always closes the request's body.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	policy := t.Policy.Or(Defaults())
	if err := policy.Validate("retry.Transport.Policy"); err != nil {
		closeBody(req.Body)
		return nil, err
	}
	x := &exchange{base: t.base(), req: req, key: t.key(req), budget: policy.Budget}
	if !x.repeatable() {
		policy.Attempts = 1
	}
	r := run{ctx: req.Context(), policy: policy, random: t.random}
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

// exchange is one request and the attempts at it.
type exchange struct {
	base   http.RoundTripper
	req    *http.Request // as the caller gave it; never changed
	key    string        // "" = none
	budget time.Duration // until the headers of an answer are there, -1 = no limit

	startAt time.Time // when the first attempt began; zero before

	// The last attempt's response with its body open, and what ends that attempt's context; nil when there is none.
	resp   *http.Response
	cancel context.CancelFunc
}

// repeatable reports whether a second arrival of the request is both possible and harmless.
func (x *exchange) repeatable() bool {
	if x.hasBody() && x.req.GetBody == nil {
		return false
	}
	if x.key != "" {
		return true
	}
	switch x.req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

func (x *exchange) hasBody() bool { return x.req.Body != nil && x.req.Body != http.NoBody }

// try makes one attempt. It leaves in x.resp whatever response came, also when that is a failure.
func (x *exchange) try() error {
	// 1. A request of its own, with the key, a fresh body and a context that ends with the budget.
	first := x.startAt.IsZero()
	if first {
		x.startAt = time.Now()
	}
	ctx, cancel := context.WithCancel(x.req.Context())
	out, err := x.outgoing(ctx, first)
	if err != nil {
		cancel()
		return Permanent(err)
	}
	overdue := func() bool { return false }
	if x.budget != noLimit {
		timer := time.AfterFunc(x.budget-time.Since(x.startAt), cancel)
		overdue = func() bool { return !timer.Stop() }
	}

	// 2. Send it. Once the headers are there, the budget doesn't count any more: overdue stops its timer.
	resp, err := x.base.RoundTrip(out)
	if overdue() && x.req.Context().Err() == nil {
		cancel() // already done by the timer
		if resp != nil {
			closeBody(resp.Body)
		}
		return fmt.Errorf("no answer within the budget of %s: %w", x.budget, context.DeadlineExceeded)
	}
	if err != nil {
		cancel()
		return err
	}

	// 3. Keep the response; the attempt's context lives until its body is closed.
	resp.Body = withCancel(resp.Body, cancel)
	x.resp, x.cancel = resp, cancel
	if !worthRepeating(resp.StatusCode) {
		return nil
	}
	failed := error(&statusError{resp.StatusCode})
	if wait, ok := retryAfter(resp.Header, time.Now()); ok {
		failed = After(failed, wait)
	}
	return failed
}

// outgoing returns a copy of the request, as http.RoundTripper mustn't change the one it is given.
func (x *exchange) outgoing(ctx context.Context, first bool) (*http.Request, error) {
	out := x.req.Clone(ctx)
	if x.key != "" {
		if out.Header == nil {
			out.Header = make(http.Header)
		}
		out.Header.Set(KeyHeader, x.key)
	}
	if !first && x.hasBody() {
		body, err := x.req.GetBody()
		if err != nil {
			return nil, fmt.Errorf("get request body again: %w", err)
		}
		out.Body = body
	}
	return out, nil
}

// discard gives up the response of an attempt that is followed by another.
func (x *exchange) discard() {
	if x.resp == nil {
		return
	}
	drain(x.resp.Body, x.cancel)
	x.resp, x.cancel = nil, nil
}

// worthRepeating is the playbook's "when to retry" for answers: 429 and 5xx, no other 4xx.
func worthRepeating(status int) bool {
	return status == http.StatusTooManyRequests || status >= 500 && status <= 599
}

// statusError is an answer that counts as a failed attempt.
type statusError struct{ status int }

func (e *statusError) Error() string {
	return fmt.Sprintf("server answered %d %s", e.status, http.StatusText(e.status))
}

// RetryClass makes the status known to Classify.
func (e *statusError) RetryClass() Class { return classifyStatus(e.status) }

// closeBody closes a request's or a response's body; there may be none.
func closeBody(body io.Closer) {
	if body != nil {
		_ = body.Close()
	}
}
