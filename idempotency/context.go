package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

type contextKey struct{}

// handling is a handler's side of a request.
type handling struct {
	rt            *route
	tx            pgx.Tx // nil in lease mode
	lease         *lease // nil in transaction mode, and without a key
	info          Info
	scope         string
	lock          int64 // of its key
	doNotStore    bool
	commitOnError bool
	resultRef     string

	over  atomic.Bool     // The handler has returned.
	turn  chan struct{}   // of one step: the goroutine that has put something in has it
	steps map[string]bool // that are done
}

func handlingOf(ctx context.Context) *handling {
	h, _ := ctx.Value(contextKey{}).(*handling)
	return h
}

// Tx is the transaction of the request: what is written through it is committed with the answer, or not at all. It
// cannot be ended by the handler; savepoints (Begin) can. nil where no middleware of ours guards the request, or its
// method, and in lease mode: Step has the transactions there. Not for use by several goroutines at once, nor after the handler has returned.
func Tx(ctx context.Context) pgx.Tx {
	if h := handlingOf(ctx); h != nil {
		return h.tx
	}
	return nil
}

// Info is what is known of a request that is guarded.
type Info struct {
	Key       string // "" on a route where it is optional
	Principal string
	Operation string
	Attempt   int // 1 for the first start of the handler under this key, as far as that is known; always 1 in transaction mode
}

// InfoOf says what is known of a request. False where no middleware of ours guards it.
func InfoOf(ctx context.Context) (Info, bool) {
	if h := handlingOf(ctx); h != nil {
		return h.info, true
	}
	return Info{}, false
}

// DoNotStore leaves the key free when the answer is 400 or more, say because the request was not even valid. An answer
// below 400 is stored in any case: the client hears that it is done.
func DoNotStore(ctx context.Context) {
	if h := handlingOf(ctx); h != nil {
		h.doNotStore = true
	}
}

// CommitOnError keeps what the handler has written though it answers 4xx, say the record of a declined payment. Without
// it such writes are undone, and only the answer is kept. In lease mode it says nothing: what a step wrote is kept.
func CommitOnError(ctx context.Context) {
	if h := handlingOf(ctx); h != nil {
		h.commitOnError = true
	}
}

// SetResult notes what the operation brought about, say a payment's id, beside the stored answer: in the column
// result_ref, which outlives the answer's body where Config.KeepExpired is set. Its first 1,024 bytes are kept; what is no
// text becomes a question mark. Defaults to the answer's Location.
func SetResult(ctx context.Context, ref string) {
	if h := handlingOf(ctx); h != nil {
		h.resultRef = ref
	}
}

// DownstreamKey makes the key for a call that the handler makes to another service: the same for every try of this
// request, another for each name and each request, even if another account uses the same key. 64 hexadecimal digits; "" for a request
// without a key.
func DownstreamKey(ctx context.Context, name string) string {
	h := handlingOf(ctx)
	if h == nil || h.info.Key == "" {
		return ""
	}
	sum := sha256.New()
	part(sum, "holdfast/idempotency/downstream", h.scope, h.info.Operation, h.info.Key, name)
	if !strings.HasPrefix(h.scope, principalScope) { // A free key of a wide scope may be anybody's next.
		part(sum, h.info.Principal)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
