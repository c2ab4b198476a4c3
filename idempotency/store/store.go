// Package store is where an idempotency.Guard without Postgres keeps its keys: implement Store to keep them elsewhere than in Redis, which
// contrib/redis does, and give it to idempotency.NewEphemeral.
//
// The author of a handler needs nothing of this, except for Answer in idempotency.Route.Redact.
package store

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// ErrUnusable is returned by a Store, alone or wrapped, that cannot read what it has stored for a key. The request is neither run nor
// answered from it: its answer is 503. Any other error means that the Store could not be asked.
var ErrUnusable = errors.New("the stored data of the idempotency key cannot be used")

// Store keeps keys for handlers that run outside a transaction (idempotency.Route.Lease). Its own clock decides: callers pass durations,
// and it returns times. Many goroutines and many processes may call it at once.
//
// Every successful Claim has a fence of its own. It is larger than any earlier fence of that key, also after a Release
// and after the key expired. So a late caller is recognised by its old fence. The next caller sees what was written.
// After an error, the write may or may not have happened. Fingerprints are opaque and have at most 64 bytes, all of
// which a Store compares.
type Store interface {
	// Claim gives the key to the caller for the duration of lease, unless the key is in use or answered. It is in use
	// while its lease lives. Once the lease has run out or was released, only a request with the same fingerprint gets
	// the key. For another fingerprint it is reported as in use, with the fingerprint that has it, until ttl has passed
	// since the last claim. Claim does not wait for another claim. It returns ErrUnusable if the stored data cannot be
	// read.
	Claim(ctx context.Context, k Key, fingerprint []byte, lease, ttl time.Duration) (Claimed, error)

	// Renew makes the lease last for lease from now. It also renews a lease that ran out if nobody else has claimed the
	// key since. It returns false if somebody else has the key or the lease was released.
	Renew(ctx context.Context, k Key, fence int64, lease time.Duration) (bool, error)

	// Finish stores the answer for ttl and ends the lease. It also works with a lease that ran out if nobody else has
	// claimed the key since. It returns false if somebody else has the key, and otherwise until when the answer is kept, which
	// idempotency.Config.ShowExpiry tells the client. After an error it is called again: under a fence that has finished already it
	// changes nothing, and returns true and that time.
	Finish(ctx context.Context, k Key, fence int64, a Answer, ttl time.Duration) (expiresAt time.Time, mine bool, err error)

	// Release gives the key up without an answer, and the next request runs the handler. It does nothing if somebody
	// else has the key or it is finished.
	Release(ctx context.Context, k Key, fence int64) error
}

// Key is one key within a Scope and an Operation. Both of these may be "".
type Key struct{ Scope, Operation, Key string }

// Answer is an answer as a Store keeps it.
type Answer struct {
	Status    int
	Header    http.Header // values may have bytes that are not UTF-8
	Body      []byte      // nil when Omitted
	Omitted   bool        // the body was too long to keep
	BodyHash  []byte      // SHA-256 of Body; a body that does not match is never sent
	ResultRef string      // from idempotency.SetResult
}

// Claimed is the result of a Claim.
type Claimed struct {
	Mine        bool      // the caller has the key, under Fence
	Fence       int64     // when Mine
	Attempt     int       // when Mine: 1 for the first start of the handler under this key
	Fingerprint []byte    // when not Mine: of the request that has the key
	Answer      *Answer   // when not Mine; nil if the key is in use
	ExpiresAt   time.Time // when Answer expires
	Expired     bool      // when Mine: an earlier use of the key had expired
}
