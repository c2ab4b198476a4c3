package retry

import (
	"net/http"
	"time"
)

// Observer receives what a [Transport] does. Its functions may be nil. They are called inline, from the goroutine that
// sends the request, and should be quick.
type Observer struct {
	// OnAttempt is called after each attempt: when the headers of the answer have arrived, or when the attempt has
	// failed. It must not change the request.
	OnAttempt func(Attempt)
}

// Attempt is one attempt at a request, as an [Observer] receives it.
type Attempt struct {
	Request *http.Request // as the Transport received it, not as it was sent
	Key     string        // the Idempotency-Key; "" if it has none
	Number  int           // 1 = the first
	Delay   time.Duration // the wait before it, as decided; 0 for the first
	Took    time.Duration // from its start until the headers arrived, or until it failed
	Status  int           // of the answer; 0 if there was none
	Code    string        // of the problem in a 409: "idempotency.in_progress"
	Err     error         // why there was no answer; nil if there was one, whatever it said
}
