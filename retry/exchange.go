package retry

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// exchange is one request and its attempts.
type exchange struct {
	base     http.RoundTripper
	req      *http.Request // as the caller gave it; never changed
	key      string        // "" = none
	budget   time.Duration // until the headers of an answer arrive, -1 = no limit
	timeout  time.Duration // of one attempt, -1 = no limit but the budget
	observer Observer

	startAt time.Time     // when the first attempt began, counting a request that was redirected here; zero before
	attempt int           // attempts begun
	delay   time.Duration // the wait before the attempt, as decided

	// The last attempt's response with its body open, and the function that ends that attempt's context; nil if there
	// is none.
	resp   *http.Response
	cancel context.CancelFunc
}

// exchangeKey is the key under which a request's context holds its exchange, for a redirect to find.
type exchangeKey struct{}

// follow takes over the key and the start time of the request whose answer redirected to this one. http.Client builds
// the new request from the caller's, which lacks what we added, but it points to the answer.
func (e *exchange) follow() {
	if e.req.Response == nil || e.req.Response.Request == nil {
		return
	}
	from, ok := e.req.Response.Request.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return
	}
	e.startAt = from.startAt
	if own := e.req.Header.Get(keyHeader); own == "" && changes(e.req.Method) {
		e.key = from.key
	}
}

// repeatable reports whether sending the request twice is both possible and harmless.
func (e *exchange) repeatable() bool {
	if e.hasBody() && e.req.GetBody == nil {
		return false
	}
	if e.key != "" || !changes(e.req.Method) {
		return true
	}
	return e.req.Method == http.MethodPut || e.req.Method == http.MethodDelete
}

// changes reports whether a method may change something: it isn't safe in the sense of RFC 9110, section 9.2.1.
func changes(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return false
	}
	return true
}

func (e *exchange) hasBody() bool { return e.req.Body != nil && e.req.Body != http.NoBody }

// try makes one attempt. It leaves any response in x.resp, also if the response is a failure.
func (e *exchange) try() error {
	first := e.attempt == 0
	if e.attempt++; e.startAt.IsZero() {
		e.startAt = time.Now()
	}
	beganAt := time.Now()
	code, err := e.send(first)
	if e.observer.OnAttempt != nil {
		a := Attempt{
			Request: e.req,
			Key:     e.key,
			Number:  e.attempt,
			Delay:   e.delay,
			Took:    time.Since(beganAt),
			Code:    code,
			Err:     err,
		}
		if e.resp != nil {
			a.Status, a.Err = e.resp.StatusCode, nil
		}
		e.observer.OnAttempt(a)
	}
	return err
}

// send sends an attempt. It returns the code of the problem in the answer, if that decided, and the failure.
func (e *exchange) send(first bool) (code string, failed error) {
	// 1. Make a request of our own, with the key, a fresh body and a context that ends when the attempt must.
	limit, why := limitOf(e.timeout, e.budget, time.Since(e.startAt))
	if limit <= 0 { // a redirect arrived after the budget was spent
		if first {
			closeBody(e.req.Body)
		}
		return "", Permanent(overdueError(why))
	}
	ctx, cancel := context.WithCancel(context.WithValue(e.req.Context(), exchangeKey{}, e))
	out, err := e.outgoing(ctx, first, limit)
	if err != nil {
		cancel()
		return "", Permanent(err)
	}
	overdue := func() bool { return false }
	if limit != forever {
		timer := time.AfterFunc(limit, cancel)
		overdue = func() bool { return !timer.Stop() }
	}

	// 2. Send it. Once the headers have arrived, and the body if it decides about a 409, the limit no longer applies:
	//    overdue stops its timer.
	resp, err := e.base.RoundTrip(out)
	if err = foreign.Error(err); err == nil {
		code, err = problemCode(resp)
	}
	if late := overdue(); late && e.req.Context().Err() == nil {
		err = overdueError(why)
	}
	if err != nil {
		cancel()
		if resp != nil {
			closeBody(resp.Body)
		}
		return "", err
	}

	// 3. Keep the response. The attempt's context lives until the body is closed.
	if resp.Request == nil {
		resp.Request = out
	}
	resp.Body = withCancel(resp.Body, cancel)
	e.resp, e.cancel = resp, cancel
	errorCode := resp.Header.Get(codeHeader)
	if !worthRepeating(resp.StatusCode, code, errorCode) {
		return code, nil
	}
	failed = &statusError{status: resp.StatusCode, code: code}
	if class, _ := classOf(errorCode); class.Retryable() { // The status says that it is worth it, so its class must, too.
		failed = &statusError{status: resp.StatusCode, code: code, errorCode: errorCode}
	}
	if wait, ok := retryAfter(resp.Header, time.Now()); ok {
		failed = After(failed, wait)
	}
	return code, failed
}

// overdueError says that an attempt was cut short by the limit named why.
func overdueError(why string) error {
	return fmt.Errorf("no answer within %s: %w", why, context.DeadlineExceeded)
}

// outgoing returns a copy of the request, because http.RoundTripper must not change the one it gets.
func (e *exchange) outgoing(ctx context.Context, first bool, limit time.Duration) (*http.Request, error) {
	out := e.req.Clone(ctx)
	if out.Header == nil {
		out.Header = make(http.Header)
	}
	if e.key != "" {
		out.Header.Set(keyHeader, e.key)
	}
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	if _, own := out.Header[timeoutHeader]; !own && limit != forever {
		out.Header.Set(timeoutHeader, seconds(limit))
	}
	if !first && e.hasBody() {
		body, err := e.req.GetBody()
		if err != nil {
			return nil, fmt.Errorf("get request body again: %w", err)
		}
		out.Body = body
	}
	return out, nil
}

// discard drops the response of an attempt; another attempt follows after wait.
func (e *exchange) discard(wait time.Duration) {
	e.delay = wait
	if e.resp == nil {
		return
	}
	drain(e.resp.Body, e.cancel)
	e.resp, e.cancel = nil, nil
}
