package idempotency

import (
	"context"
	"net/http"
	"time"
)

// Result is the outcome of a request.
type Result string

// The results. For Created, Lost and Bypassed the handler ran. For Forgotten and Unknown it did, unless Outcome.Attempt is 0. For the
// others it did not.
const (
	Created     Result = "created"     // the handler ran, its answer is stored
	Replayed    Result = "replayed"    // the stored answer was sent
	Conflict    Result = "conflict"    // a different request used the key
	InProgress  Result = "in_progress" // another request with the key is running
	Forgotten   Result = "forgotten"   // the handler ran; its answer and its writes were not kept, except for steps: 5xx, a panic, …
	Lost        Result = "lost"        // the handler ran but lost its lease: another request has the key
	Bypassed    Result = "bypassed"    // no key on a route where keys are optional: the handler ran
	Refused     Result = "refused"     // no key, an invalid key, no principal, a body that is too large or ended early, or too many keys
	Unavailable Result = "unavailable" // the database, or what Config.Principal asks, could not be reached: nothing was done
	Unknown     Result = "unknown"     // the answer to COMMIT or to the claim of a lease was lost, and the result could not be determined
	Unusable    Result = "unusable"    // the stored answer cannot be read or trusted: investigate
)

// Outcome describes one request to an Observer.
type Outcome struct {
	Result    Result
	Operation string // as in the key's scope: where Route is "", the path that the client chose, which may have a token in it
	Route     string // the operation if a route or a router names it, else "": safe as a metric label, and in logs
	KeyHash   string // hash of key and scope: for logs and spans, not for metric labels
	Status    int    // status of the answer; 0 if a panic continues
	Code      string // code of the problem answer, one of docs/reference/http.md; "" for a handler's own answer
	ErrorCode string // its error_code: the class, a dot, and Code
	Omitted   bool   // the body was too long to be stored
	Expired   bool   // the key was used before and its answer had expired
	Attempt   int    // starts of the handler under this key, this one included; 0 if it did not run
	Completed bool   // Guard.Run ran it (Route.Complete): no client waits for the answer
	Took      time.Duration
}

// Abandoned is a request that was begun, has no answer, and will not be run again automatically.
type Abandoned struct {
	Operation string
	KeyHash   string
	Attempts  int // starts of the handler
	Steps     int // finished steps
	CreatedAt time.Time
}

// Observer receives what a Guard does. Any field may be nil. The functions are called inline, from many goroutines at
// once, and must be quick.
type Observer struct {
	// OnRequest is called for each guarded request when it arrives, with its context, before anything of it is checked. route is as
	// Outcome.Route. completed says that Run completes the request (Route.Complete, which made it): no client waits for the answer.
	// The request goes on with the context that OnRequest returns, which must be made from the given one: the handler and OnOutcome
	// get it. ended is called once, when the answer is written or a panic continues.
	OnRequest func(ctx context.Context, r *http.Request, route string, completed bool) (requests context.Context, ended func())

	// OnOutcome is called once for each guarded request, when its answer is decided. The context is the request's, with
	// its span.
	OnOutcome func(context.Context, Outcome)

	// OnAbandoned is called once for each request that Run gave up completing (Config.Completion), on the node that
	// gave it up. The request stays stored. It is completed if its client sends it again.
	OnAbandoned func(Abandoned)

	// OnCleaned is called after each round of Run that removed expired keys.
	OnCleaned func(keys int, took time.Duration)
}
