package idempotency

import (
	"context"
	"time"
)

// Result says what became of a request.
type Result string

// The results. Created, Forgotten, Lost, Bypassed and Unknown are requests whose handler ran; the others never reached it.
const (
	Created     Result = "created"     // the handler ran, its answer is stored
	Replayed    Result = "replayed"    // the stored answer was sent
	Conflict    Result = "conflict"    // the key is another request's
	InProgress  Result = "in_progress" // another request with the key runs
	Forgotten   Result = "forgotten"   // the handler ran, and its answer was not kept, nor what it wrote but for steps: 5xx, a panic, …
	Lost        Result = "lost"        // the handler ran, but lost its lease: another request has the key
	Bypassed    Result = "bypassed"    // no key on a route where it is optional: the handler ran
	Refused     Result = "refused"     // no key, an invalid one, no principal, too large
	Unavailable Result = "unavailable" // the database could not be asked: nothing was done
	Unknown     Result = "unknown"     // the answer to COMMIT was lost, and could not be found out
	Unusable    Result = "unusable"    // the stored answer cannot be read or trusted: look at it
)

// Outcome is what an Observer gets of a request.
type Outcome struct {
	Result    Result
	Operation string // as the key's scope has it
	Route     string // the operation where a route or a router names it, else "": fit for metric labels
	KeyHash   string // of key and scope: fit for logs and spans, not for metric labels
	Status    int    // that was answered; 0 where a panic goes on its way
	Code      string // of the problem that was answered, "" for a handler's own answer
	Omitted   bool   // the body was too long to be stored
	Expired   bool   // the key was used before, and its answer had expired
	Attempt   int    // of the handler under this key, 1 for its first start; 0: it did not run
	Completed bool   // it was run by Guard.Run (Route.Complete), so that nobody waits for the answer
	Took      time.Duration
}

// Abandoned is a request that was begun, has no answer, and is not run again by itself.
type Abandoned struct {
	Operation string
	KeyHash   string
	Attempts  int // starts of the handler
	Steps     int // that are done
	CreatedAt time.Time
}

// Observer gets what a Guard does. Any field may be nil. The functions are called in line, from many goroutines, and
// must be quick.
type Observer struct {
	// OnOutcome is called once for each guarded request, when its answer has been decided on. The context is the
	// request's, with its span.
	OnOutcome func(context.Context, Outcome)

	// OnAbandoned is called once for each request that Run has given up to complete (Config.Completion), by the node that
	// did. It stays, and is completed when its client sends it again.
	OnAbandoned func(Abandoned)

	// OnCleaned is called after each turn of Run that removed expired keys.
	OnCleaned func(keys int, took time.Duration)
}
