package idempotency

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Store keeps keys for handlers that run outside of a transaction (Route.Lease). Its clock rules: spans go in, moments
// come out. All of it may be called by many goroutines, and many processes, at once.
//
// Every Claim that is the caller's has a fence of its own, larger than any before it of that key, also after a Release
// and after the key had expired: so a late caller with an old fence is found out. What is written is there for
// the next caller; errors mean that it may have been written or not. Fingerprints are opaque, of at most 64 bytes.
type Store interface {
	// Claim gives the key to the caller until lease has passed, unless it is in use or answered. It is in use while its
	// lease lives. Once that has run out, or was released, the key is given to a request of the same fingerprint only;
	// with another it is reported as in use, under the fingerprint that has it, until ttl has passed since the last
	// claim. It does not wait for another's claim. ErrUnusable: what is stored cannot be read.
	Claim(ctx context.Context, k StoreKey, fingerprint []byte, lease, ttl time.Duration) (Claimed, error)

	// Renew extends the lease, to lease from now; also one that ran out, where nobody else has claimed the key since.
	// False: it is somebody else's by now, or was released.
	Renew(ctx context.Context, k StoreKey, fence int64, lease time.Duration) (bool, error)

	// Finish stores the answer for ttl and ends the lease; also one that ran out, where nobody else has claimed the key
	// since. False: it is somebody else's by now. After an error it is called again: under a fence that has finished
	// already it changes nothing, and is true.
	Finish(ctx context.Context, k StoreKey, fence int64, a StoredAnswer, ttl time.Duration) (bool, error)

	// Release gives the key up without an answer: the next request runs the handler. It does nothing when the key is
	// somebody else's by now, or finished.
	Release(ctx context.Context, k StoreKey, fence int64) error
}

// ExpiryStore is a Store that also tells until when it keeps an answer, for Config.ShowExpiry. With another the process's
// clock says so in the first answer, and the store's in the others.
type ExpiryStore interface {
	Store

	// FinishUntil is Finish, and tells, where that is true, until when the answer is kept.
	FinishUntil(ctx context.Context, k StoreKey, fence int64, a StoredAnswer, ttl time.Duration) (expiresAt time.Time, mine bool, err error)
}

// StoreKey is one key: within Scope and Operation, either of which may be "".
type StoreKey struct{ Scope, Operation, Key string }

// StoredAnswer is an answer as a Store keeps it.
type StoredAnswer struct {
	Status    int
	Header    http.Header // values may have bytes that are not UTF-8
	Body      []byte      // nil when Omitted
	Omitted   bool        // the body was too long to keep
	BodyHash  []byte      // SHA-256 of Body; what does not match it is never sent
	ResultRef string      // of SetResult
}

// Claimed is what became of a Claim.
type Claimed struct {
	Mine        bool          // the caller has it, under Fence
	Fence       int64         // when Mine
	Attempt     int           // when Mine: 1 for the first start of the handler under this key
	Fingerprint []byte        // of the request that has the key, when not Mine
	Answer      *StoredAnswer // when not Mine; nil: it is in use
	ExpiresAt   time.Time     // of Answer
	Expired     bool          // when Mine: an earlier use of the key had expired
}

var (
	// ErrLeaseLost says that another request has the key by now: it is the cause for which a handler's context ends, and
	// what Step returns. Nothing is written after it.
	ErrLeaseLost = errors.New("the lease of the idempotency key was lost")

	// ErrUnusable is returned by a Store that has something for a key which it cannot read: the request is neither run
	// nor answered.
	ErrUnusable = errors.New("what is stored for the idempotency key cannot be used")
)
