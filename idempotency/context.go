package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/steps"
)

type contextKey struct{}

// handling is the handler's view of a request.
type handling struct {
	rt            *route
	tx            pgx.Tx      // nil in lease mode
	lease         *claimedKey // nil in transaction mode and without a key
	info          Info
	scope         string
	fingerprint   []byte
	lock          int64 // the key's
	doNotStore    bool
	commitOnError bool
	resultRef     string

	over  atomic.Bool // the handler has returned
	ended error       // why its context had ended when it returned without an answer; nil if it had not
	steps steps.Turns
}

func handlingOf(ctx context.Context) *handling {
	h, _ := ctx.Value(contextKey{}).(*handling)
	return h
}

// Tx returns the transaction of the request. What you write through it is committed together with the answer, or not at
// all. The handler cannot end it, but may use savepoints (Begin). If no middleware of this package guards the request or its method,
// which InfoOf says, and in lease mode, where Step has the transactions, it is never nil either: each call of it returns an error that says
// so, and its Conn is nil. Do not use it from several goroutines at once, nor after the handler has returned.
func Tx(ctx context.Context) pgx.Tx {
	switch h := handlingOf(ctx); {
	case h == nil:
		return unguarded
	case h.tx == nil:
		return inLeaseMode
	default:
		return h.tx
	}
}

// unguarded and inLeaseMode stand for the transaction that a request does not have.
var (
	unguarded   = noTx{closedTx(), errors.New("idempotency.Tx: no Guard has this request in its context: wrap its route, pass on the request's context, and mind that only Route.Methods are guarded")}
	inLeaseMode = noTx{closedTx(), errors.New("idempotency.Tx: a request in lease mode has no transaction: write in idempotency.Step")}
)

// noTx is a transaction of which every call returns err.
type noTx struct {
	pgx.Tx // closed: for LargeObjects
	err    error
}

func closedTx() pgx.Tx {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(b, pgx.ErrTxClosed).Tx()
}

func (t noTx) Begin(context.Context) (pgx.Tx, error) { return nil, t.err }
func (t noTx) Commit(context.Context) error          { return t.err }
func (t noTx) Rollback(context.Context) error        { return t.err }
func (t noTx) Conn() *pgx.Conn                       { return nil }

func (t noTx) CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error) {
	return 0, t.err
}

func (t noTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, t.err
}

func (t noTx) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, t.err
}

func (t noTx) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	b := &pgx.Batch{}
	b.Queue(sql)
	return pgx.FailedBatchResults(b, t.err).Query()
}

func (t noTx) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	b := &pgx.Batch{}
	b.Queue(sql)
	return pgx.FailedBatchResults(b, t.err).QueryRow()
}

func (t noTx) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	return pgx.FailedBatchResults(b, t.err)
}

// Info describes a guarded request.
type Info struct {
	Key       string // "" if the route's key is optional and the request has none
	Principal string
	Operation string
	Attempt   int // 1 for the first known start of the handler under this key; always 1 in transaction mode
}

// InfoOf returns the Info of a request. It returns false if no middleware of this package guards the request.
func InfoOf(ctx context.Context) (Info, bool) {
	if h := handlingOf(ctx); h != nil {
		return h.info, true
	}
	return Info{}, false
}

// DoNotStore leaves the key free if the answer is 400 or more, for example because the request was not even valid. An
// answer below 400 is always stored, because it tells the client that the operation is done.
func DoNotStore(ctx context.Context) {
	if h := handlingOf(ctx); h != nil {
		h.doNotStore = true
	}
}

// CommitOnError commits what the handler wrote although the answer is 4xx, for example the record of a declined
// payment, and stores the answer, whatever Route.Store says. Without it such writes are undone. In lease mode what a step
// wrote is kept anyway.
func CommitOnError(ctx context.Context) {
	if h := handlingOf(ctx); h != nil {
		h.commitOnError = true
	}
}

// SetResult stores a reference to the operation's result, such as a payment's id, with the answer. It goes to the
// column result_ref, which outlives the answer's body if Config.KeepExpired is set. The first 1,024 bytes are kept;
// characters that are not text become a question mark. Defaults to the answer's Location.
func SetResult(ctx context.Context, ref string) {
	if h := handlingOf(ctx); h != nil {
		h.resultRef = ref
	}
}

// DownstreamKey makes the key for a call from the handler to another service. It is the same for every attempt of this
// request. It differs for each name and each request, even if another account uses the same key, or the same client uses
// it again for another amount after a failure that left it free. It has 64 hexadecimal digits, or is "" for a request
// without a key.
func DownstreamKey(ctx context.Context, name string) string {
	h := handlingOf(ctx)
	if h == nil || h.info.Key == "" {
		return ""
	}
	sum := sha256.New()
	part(sum, "holdfast/idempotency/downstream", h.scope, h.info.Operation, h.info.Key, string(comparedOf(h.fingerprint[1:])), name)
	if !strings.HasPrefix(h.scope, principalScope) { // In a wider scope, another principal may use the key once it is free.
		part(sum, h.info.Principal)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
