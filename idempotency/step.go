package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/handlertx"
)

// Errors of Step.
var (
	errNoRequest   = errors.New("the context is not that of a request that a Guard guards, or its handler has returned")
	errNoDatabase  = errors.New("keys are not in Postgres here: make the Guard with New, not NewEphemeral")
	errNested      = errors.New("it stands inside of another step: put one after the other")
	errTwice       = errors.New("a step of this name was done before in this request: give each its own name")
	errStepsOwn    = errors.New("a step's transaction is ended by Step: return an error to undo it, or use a savepoint (tx.Begin)")
	errStepName    = errors.New("its name must have 1 to 128 bytes of UTF-8, without NUL")
	errUndone      = errors.New("the connection was lost, and what it wrote with it")
	errStepUnknown = errors.New("it is not known whether it was committed")
)

// maxStepName is how many bytes the name of a step may have.
const maxStepName = 128

// Step is one atomic phase of a handler (Route.Lease): what fn writes through tx, events of outbox.Write included, is
// committed together with the note that the step is done and with fn's result, as JSON. When the request runs again, in
// this process or another, a step that is done returns its result and fn does not run. So cut a handler where it calls
// the outside, and make such calls between two steps, with DownstreamKey:
//
//	order, err := idempotency.Step(ctx, "order", insertOrder)      // committed
//	charge, err := gateway.Charge(ctx, idempotency.DownstreamKey(ctx, "charge"), order.Cents)
//	paid, err := idempotency.Step(ctx, "paid", markPaid(order, charge))
//
// An error of fn undoes what it wrote and is returned. ErrLeaseLost: another request has the key by now; nothing was
// written, and nothing more will be. Steps run one at a time; a name is used once in a request, and the same step has to
// have the same name in each version of the handler. fn may run several times, after a serialization failure; the result
// is what JSON makes of it, the first time too, and at most Route.MaxResponse bytes of it. In transaction mode fn runs in
// Tx(ctx) under a savepoint, and is committed with the answer.
func Step[T any](ctx context.Context, name string, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (T, error) {
	var result T
	text, err := step(ctx, name, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		value, err := fn(ctx, tx)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(value)
		if err == nil { // What cannot be read again would be done, and of no use.
			err = json.Unmarshal(text, new(T))
		}
		return text, err
	})
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("step %q: %w", name, err)
	}
	return result, nil
}

type insideStep struct{}

// work is a step's function, its result as JSON.
type work func(ctx context.Context, tx pgx.Tx) ([]byte, error)

func step(ctx context.Context, name string, do work) (result []byte, err error) {
	h := handlingOf(ctx)
	switch {
	case h == nil || h.over.Load():
		return nil, errNoRequest
	case h.rt.g.pool == nil:
		return nil, errNoDatabase
	case name == "" || len(name) > maxStepName || !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return nil, errStepName
	case ctx.Value(insideStep{}) != nil:
		return nil, errNested
	}
	select {
	case h.turn <- struct{}{}: // The steps of one request run one at a time.
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if h.steps[name] {
		return nil, errTwice
	}
	inside := context.WithValue(ctx, insideStep{}, true)
	bounded := func(_ context.Context, tx pgx.Tx) ([]byte, error) {
		text, err := do(inside, tx)
		if most := h.rt.o.MaxResponse; err == nil && int64(len(text)) > most {
			err = fmt.Errorf("its result has %d bytes: it must have at most %d", len(text), most)
		}
		return text, err
	}
	switch {
	case h.tx != nil:
		result, err = underSavepoint(ctx, h.tx, bounded)
	default:
		result, err = h.committed(ctx, name, bounded)
	}
	if err != nil {
		return nil, err
	}
	if h.steps == nil {
		h.steps = map[string]bool{}
	}
	h.steps[name] = true
	return result, nil
}

// underSavepoint is a step in transaction mode.
func underSavepoint(ctx context.Context, tx pgx.Tx, do work) (result []byte, err error) {
	err = pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
		given := handlertx.Give(ctx, nested, errStepsOwn)
		defer given.TakeBack()
		var err error
		if result, err = do(ctx, given); err == nil && nested.Conn().PgConn().TxStatus() == 'E' {
			err = fmt.Errorf("%w: a statement failed, but it returned no error", errHandler)
		}
		return err
	})
	return result, err
}

// committed is a step in lease mode, in a transaction of its own.
func (h *handling) committed(ctx context.Context, name string, do work) (result []byte, err error) {
	for rerun := 0; ; rerun++ {
		result, err = h.tryStep(ctx, name, do)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01") && rerun < maxReruns && ctx.Err() == nil {
			continue
		}
		switch {
		case errors.Is(err, ErrLeaseLost) && h.lease != nil:
			h.lease.lose(ErrLeaseLost)
		case err != nil && errors.Is(context.Cause(ctx), ErrLeaseLost):
			err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		}
		return result, err
	}
}

// tryStep is one try of a step.
func (h *handling) tryStep(ctx context.Context, name string, do work) (result []byte, err error) {
	g := h.rt.g
	hold := &held{}
	if h.lease != nil {
		defer h.lease.step(false)
	}
	defer func() { g.rollback(hold) }() // whatever happens
	result, err = h.openStep(ctx, hold, name)
	if err != nil || result != nil {
		return result, err
	}
	given := handlertx.Give(ctx, hold.tx, errStepsOwn)
	defer given.TakeBack()
	if result, err = do(ctx, given); err != nil {
		return nil, err
	}
	given.TakeBack()
	if err := fit(hold, keepAll); err != nil {
		return nil, err
	}
	// From here on it is done, whatever becomes of the client.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), databaseTimeout)
	defer cancel()
	begun := time.Now()
	err = h.commitStep(ctx, hold, name, result)
	if errors.Is(err, errUnknown) {
		result, err = h.confirmStep(ctx, name)
	}
	if err == nil && h.lease != nil {
		h.lease.extended(begun)
	}
	return result, err
}

// openStep begins a step's transaction, locks the row of the request's fence, and looks whether the step is done: then
// its result is not nil.
func (h *handling) openStep(ctx context.Context, hold *held, name string) (result []byte, err error) {
	g, o := h.rt.g, h.rt.o
	waiting, cancel := context.WithTimeoutCause(ctx, g.c.AcquireTimeout, errPoolExhausted)
	hold.conn, err = g.pool.Acquire(waiting)
	err = caused(waiting, err)
	cancel()
	if err != nil {
		hold.conn = nil
		return nil, fmt.Errorf("acquire connection: %w", err)
	}
	if h.lease != nil {
		h.lease.step(true)
	}
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: o.Isolation})
	// Who is silent for longer than a lease inside of a step is taken for dead: meanwhile nobody can take the request over.
	b.Queue(g.sql.stepOpen, millis(min(o.Timeout, o.Lease)+idleMargin), millis(o.Timeout))
	if h.lease != nil {
		k := h.lease.key
		b.Queue(g.sql.stepLock, k.Scope, k.Operation, k.Key, h.lease.fence)
		b.Queue(g.sql.stepLook, k.Scope, k.Operation, k.Key, name)
	}
	br := hold.conn.SendBatch(ctx, b)
	hold.tx = br.Tx()
	mine := true
	if _, err = br.Exec(); err == nil {
		_, err = br.Exec()
	}
	if err == nil && h.lease != nil {
		var tag pgconn.CommandTag
		if tag, err = br.Exec(); err == nil {
			mine = tag.RowsAffected() == 1
			var text string
			if err = br.QueryRow().Scan(&text); err == nil {
				result = []byte(text)
			} else if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
		}
	}
	if closing := br.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("begin: %w", err)
	case !mine:
		return nil, ErrLeaseLost
	}
	return result, nil
}

// commitStep stores a step's result and commits. An error that wraps errUnknown: it may have been carried out.
func (h *handling) commitStep(ctx context.Context, hold *held, name string, result []byte) error {
	b := &pgx.Batch{}
	if h.lease != nil {
		k, o := h.lease.key, h.rt.o
		b.Queue(h.rt.g.sql.stepDone, k.Scope, k.Operation, k.Key, h.lease.fence, name, o.Lease.Microseconds(), max(o.TTL, h.rt.g.c.KeepUnfinished).Microseconds(), string(result))
	}
	var ended pgconn.CommandTag
	b.Queue(commitSQL).Exec(func(tag pgconn.CommandTag) error { ended = tag; return nil })
	err := hold.conn.SendBatch(ctx, b).Close()
	if err = uncommitted(ended.String(), err); err == nil {
		hold.release()
		return nil
	}
	h.rt.g.rollback(hold) // before confirmStep asks who has the row
	return fmt.Errorf("store result and commit: %w", err)
}

// confirmStep finds out whether a COMMIT without an answer was carried out. To lock the row is to wait for its end.
func (h *handling) confirmStep(ctx context.Context, name string) (result []byte, err error) {
	if h.lease == nil {
		return nil, errStepUnknown
	}
	for try := 1; ; try++ {
		hold := &held{}
		result, err = h.openStep(ctx, hold, name)
		h.rt.g.rollback(hold)
		switch {
		case err == nil && result != nil:
			return result, nil
		case err == nil:
			return nil, errUndone
		case errors.Is(err, ErrLeaseLost):
			return nil, err
		}
		if !pause(ctx, spread(try, h.rt.g.random())) {
			return nil, fmt.Errorf("%w: %w", errStepUnknown, err)
		}
	}
}
