package retry

import (
	"net/http"
	"time"

	"github.com/google/uuid"
)

// Client returns an http.Client that sends each request with an Idempotency-Key of its own. It repeats a request under
// that key while its answer is worth another attempt: see [Transport].
//
//	client := retry.Client(retry.Transport{})
//	resp, err := client.Post("https://payments.example/refunds", "application/json", body)
//
// Client fills in two fields of t if they are zero. Key makes a UUIDv7 for requests that may change something (all
// methods except GET, HEAD, OPTIONS and TRACE). AttemptTimeout is half the budget, so that an attempt that hangs leaves
// time for another. To repeat an operation in another request, for example after a restart, set the header yourself and
// store it.
//
// The client follows up to ten redirects, as http.Client does. Its Timeout isn't set, because that would include
// reading the body. The request's context ends everything.
func Client(t Transport) *http.Client {
	if t.Key == nil {
		t.Key = newKey
	}
	if t.AttemptTimeout == 0 {
		t.AttemptTimeout = attemptShare(t.Policy.Or(standard()).Budget)
	}
	return &http.Client{Transport: &t}
}

// attemptShare is the part of a budget that one attempt may use.
func attemptShare(budget time.Duration) time.Duration {
	if budget <= 0 {
		return noLimit
	}
	return max(budget/2, 1)
}

// newKey makes the key of a request: a UUIDv7, which sorts by time and so suits the server's index.
func newKey(req *http.Request) string {
	if !changes(req.Method) {
		return ""
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "" // no randomness available: without a key the request is sent once
	}
	return id.String()
}
