package retry

import (
	"net/http"
	"time"
)

// Observer gets what a [Transport] does. Its functions may be nil; they are called in line, from the goroutine that
// sends the request, and should be quick.
type Observer struct {
	// OnAttempt is called after each attempt: when the headers of its answer are there, or when it has failed. It must
	// not change the request.
	OnAttempt func(Attempt)
}

// Attempt is one attempt at a request, as an [Observer] gets it.
type Attempt struct {
	Request *http.Request // as the Transport was given it, not as it was sent
	Key     string        // the Idempotency-Key it was sent with; "" when it has none
	Number  int           // 1 = the first
	Delay   time.Duration // how long was waited before it, as decided; 0 for the first
	Took    time.Duration // from its beginning until the headers were there, or until it failed
	Status  int           // of the answer; 0 when there was none
	Code    string        // of the problem that a 409 was answered with: "idempotency.in_progress"
	Err     error         // why there was no answer; nil when there was one, whatever it said
}
