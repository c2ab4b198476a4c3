package retry

import (
	"net/http"
	"time"

	"github.com/google/uuid"
)

// Client returns an http.Client that sends each request with an Idempotency-Key of its own and repeats it, under that
// key, while its answer is worth another attempt: see [Transport].
//
//	client := retry.Client(retry.Transport{})
//	resp, err := client.Post("https://payments.example/refunds", "application/json", body)
//
// What t leaves open is filled in: Key makes a UUIDv7 for requests that may change something (all methods but GET, HEAD,
// OPTIONS and TRACE), and AttemptTimeout is half the budget, so that an attempt that hangs leaves time for another.
// To repeat an operation in another request, after a restart say, set the header yourself and keep it.
//
// The client follows up to ten redirects, as http.Client does. Its Timeout isn't set, since that would count the reading
// of the body; the request's context ends all of it.
func Client(t Transport) *http.Client {
	if t.Key == nil {
		t.Key = newKey
	}
	if t.AttemptTimeout == 0 {
		t.AttemptTimeout = attemptShare(t.Policy.Or(Defaults()).Budget)
	}
	return &http.Client{Transport: &t}
}

// attemptShare is how much of a budget one attempt may use.
func attemptShare(budget time.Duration) time.Duration {
	if budget <= 0 {
		return noLimit
	}
	return max(budget/2, 1)
}

// newKey makes the key of a request: UUIDs of version 7 sort by time, which suits the server's index.
func newKey(req *http.Request) string {
	if !changes(req.Method) {
		return ""
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "" // no randomness to be had: without a key the request is sent once
	}
	return id.String()
}
