package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/idempotency/internal/kept"
	"github.com/holdfast-go/holdfast/idempotency/internal/pause"
	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// This file runs a handler in a request's transaction and ends the transaction.

var errNotTheHandlers = errors.New("the middleware ends the request's transaction: answer 400 or more to undo it, or use a savepoint (tx.Begin)")

// maxReruns is how often a handler runs again after a serialization failure.
const maxReruns = 3

// run runs the handler in a transaction that has the key, and answers. It returns false if another request has the key.
func (rt *route) run(w http.ResponseWriter, req *request) (answered bool) {
	req.info.Attempt = 1
	for rerun := 0; ; rerun++ {
		err := rt.try(w, req)
		var pg *pgconn.PgError
		switch {
		case err == nil:
			return true
		case errors.Is(err, errBusy):
			req.taken = true
			return false
		case errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01") && rerun < maxReruns && req.Context().Err() == nil:
			continue
		}
		rt.failed(w, req, err)
		return true
	}
}

// try runs the handler once. Either it answers, or its error says why nothing was kept or why that is unknown.
func (rt *route) try(w http.ResponseWriter, req *request) error {
	kt := &keyTx{}
	defer rt.g.rollback(kt) // does nothing after a commit
	if err := rt.claim(kt, req); err != nil {
		return err
	}
	if foundOf(kt.row, req.fingerprint) != foundNothing {
		rt.g.rollback(kt) // An answer takes as long as the client needs to read it.
	}
	switch rt.answerBy(w, req, kt.row) {
	case foundNothing:
		req.taken = false
	case foundPending: // A node where the route has a lease claimed the key between the look and the lock.
		return errBusy
	default: // The answer was stored between the look and the lock.
		return nil
	}
	full, err := rt.full(req.Context(), kt.tx, req)
	if err != nil {
		return err
	}
	if full {
		rt.g.rollback(kt)
		rt.refuse(w, req, tooManyKeys, Refused)
		return nil
	}
	rec := newRecorder(w, rt.g.c.MaxAnswer)
	return rt.settle(kt, rt.call(kt, rec, req), rec, req)
}

// call runs the handler. If it ends by a panic or by runtime.Goexit, call rolls the transaction back, and the panic
// continues.
func (rt *route) call(kt *keyTx, rec *recorder, req *request) *handling {
	ctx, cancel := context.WithTimeoutCause(req.Context(), rt.o.Timeout, errTimeout)
	defer cancel()
	kt.ran = true
	given := handlertx.Give(ctx, kt.tx, errNotTheHandlers)
	hd := &handling{
		rt:          rt,
		tx:          given,
		info:        req.info,
		scope:       req.scope,
		fingerprint: req.fingerprint,
		lock:        req.lock,
	}
	returned := false
	defer func() {
		given.TakeBack()
		if !returned {
			rec.leave()
			rt.g.rollback(kt)
			rt.notify(req, Outcome{Result: Forgotten})
		}
	}()
	rt.handle(ctx, hd, rec, req)
	returned = true
	return hd
}

// Errors of settle.
var (
	errHandler = errors.New("the handler left its transaction in a state that cannot be committed")
	errUnknown = errors.New("the answer to COMMIT was lost")

	errTimeout  = errors.New("the handler's time is over")
	errNoAnswer = errors.New("the handler returned and wrote no answer: write one, such as w.WriteHeader(http.StatusNoContent); " +
		"if it returned an error that code around the guard writes, put that code inside the guard")
)

// settle stores the answer, commits, and sends the answer. The error says why it did not.
func (rt *route) settle(kt *keyTx, hd *handling, rec *recorder, req *request) error {
	f := decide(answerFacts{
		status:        rec.status,
		doNotStore:    hd.doNotStore,
		commitOnError: hd.commitOnError,
	}, rt.o.Store)
	if f == keepNone {
		rt.g.rollback(kt)
		rt.forgotten(hd, rec, req)
		return nil
	}
	if err := fit(kt, f); err != nil {
		return err
	}
	// From here on the request is carried out even if the client is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), databaseTimeout)
	defer cancel()
	if kt.tx.Conn().PgConn().TxStatus() == 'E' || req.expired {
		if err := rt.clear(ctx, kt, f, req); err != nil {
			return err
		}
		if f == keepAnswer {
			f = keepAll // The handler's writes are undone already.
		}
	}
	stored, owner, expires, err := rt.commit(ctx, kt, f, hd, rec, req)
	if errors.Is(err, errUnknown) {
		expires, err = rt.confirm(ctx, req, owner, err)
	}
	if err != nil {
		return err
	}
	if req.info.Key == "" {
		rt.notify(req, Outcome{Result: Bypassed, Status: rec.status})
		rec.send(nil)
		return nil
	}
	rt.notify(req, Outcome{Result: Created, Status: rec.status, Omitted: stored == stateOmitted})
	rec.send(rt.ours(req, "stored", expires))
	return nil
}

// forgotten answers a request of which nothing is kept.
func (rt *route) forgotten(hd *handling, rec *recorder, req *request) {
	if rec.status != 0 {
		rt.notify(req, Outcome{Result: Forgotten, Status: rec.status})
		rec.send(nil)
		return
	}
	switch {
	case rec.tooLong:
		req.err = fmt.Errorf("the answer is longer than max answer, %d bytes", rt.g.c.MaxAnswer)
		rt.refuse(rec.to, req, handlerFault.with("Its answer would have been too long."), Forgotten)
		return
	case hd.ended == nil:
		req.err = errNoAnswer
	case errors.Is(hd.ended, errTimeout):
		req.err = fmt.Errorf("%w: it wrote no answer within %s", errTimeout, rt.o.Timeout)
	}
	rt.refuse(rec.to, req, unanswered(hd.ended != nil, req.info.Key != "", hd.tx != nil), Forgotten)
}

// fit returns an error if a handler's transaction cannot be committed.
func fit(kt *keyTx, f disposition) error {
	pg := kt.tx.Conn().PgConn()
	switch {
	case pg.IsClosed():
		return errors.New("the connection was lost before the commit")
	case pg.IsBusy():
		return fmt.Errorf("%w: rows or batch results are open: close them before the handler returns", errHandler)
	case pg.TxStatus() == 'I':
		return fmt.Errorf("%w: a statement of the handler ended it: its writes may be committed without the key", errHandler)
	case pg.TxStatus() == 'E' && f == keepAll:
		return fmt.Errorf("%w: a statement failed, but the answer reports success", errHandler)
	}
	return nil
}

// clear does what cannot share a round trip with the store: it undoes failed statements and removes an expired row.
func (rt *route) clear(ctx context.Context, kt *keyTx, f disposition, req *request) error {
	if f == keepAnswer {
		// One text: where a statement has failed, Postgres parses no other before the first is carried out.
		if _, err := kt.tx.Exec(ctx, undoSQL+"; "+handlertx.Unlock); err != nil {
			return fmt.Errorf("undo what the handler wrote: %w", err)
		}
	}
	if req.expired {
		if _, err := kt.tx.Exec(ctx, rt.g.sql.expire, req.scope, req.operation, req.info.Key, rt.g.c.KeepExpired.Microseconds()); err != nil {
			return fmt.Errorf("remove expired answer: %w", err)
		}
	}
	return nil
}

// commit stores the answer and commits in one round trip. An error that wraps errUnknown means that the commit may have
// happened.
func (rt *route) commit(ctx context.Context, kt *keyTx, f disposition, hd *handling, rec *recorder, req *request) (state string, owner uuid.UUID, expires time.Time, err error) {
	b := &pgx.Batch{}
	if f == keepAnswer {
		b.Queue(undoSQL)
		b.Queue(handlertx.Unlock)
	}
	if req.info.Key != "" {
		a := rt.kept(rec, hd)
		state = stateComplete
		if a.Omitted {
			state = stateOmitted
		}
		headers, err := kept.HeadersText(a.Header)
		if err != nil {
			return "", owner, expires, fmt.Errorf("store answer: %w", err)
		}
		owner = uuid.New()
		b.Queue(rt.g.sql.store, req.scope, req.operation, req.info.Key, req.fingerprint[1:], int16(req.fingerprint[0]), state, int16(a.Status), headers,
			a.Body, a.BodyHash, a.ResultRef, owner.String(), rt.o.TTL.Microseconds()).QueryRow(func(row pgx.Row) error { return row.Scan((*plain.Micros)(&expires)) })
	}
	var ended pgconn.CommandTag
	b.Queue(commitSQL).Exec(func(tag pgconn.CommandTag) error { ended = tag; return nil })
	err = kt.conn.SendBatch(ctx, b).Close()
	if err = uncommitted(ended.String(), err); err == nil {
		kt.release()
		return state, owner, expires, nil
	}
	rt.g.rollback(kt) // before confirm looks who has the key
	return state, owner, expires, fmt.Errorf("store answer and commit: %w", err)
}

// kept returns what is stored of an answer.
func (rt *route) kept(rec *recorder, hd *handling) store.Answer {
	a := rec.answer(rt.o.ReplayHeaders)
	if rt.o.Redact != nil {
		rt.o.Redact(&a)
	}
	if a.Omitted = int64(len(a.Body)) > rt.o.MaxResponse; a.Omitted {
		a.Body = nil
	}
	a.BodyHash, a.ResultRef = hashOf(a.Body), reference(cmp.Or(hd.resultRef, a.Header.Get("Location")))
	return a
}

// confirm determines whether a COMMIT without an answer was carried out. It was if the row has our owner id. It was not
// if the key is free and has no row.
func (rt *route) confirm(ctx context.Context, req *request, owner uuid.UUID, lost error) (expires time.Time, err error) {
	if req.info.Key == "" {
		return expires, lost
	}
	for try := 1; ; try++ {
		s, err := rt.g.lookup(ctx, rt.g.pool, req.key())
		if err == nil && s != nil && s.Owner == owner {
			return s.ExpiresAt, nil
		}
		if err == nil {
			var ended bool
			err = rt.g.pool.QueryRow(ctx, rt.g.sql.open, "0", "0", req.lock).Scan(nil, nil, &ended)
			if err == nil && ended { // Its transaction is over, so the row is final.
				if s, err = rt.g.lookup(ctx, rt.g.pool, req.key()); err == nil {
					if s != nil && s.Owner == owner {
						return s.ExpiresAt, nil
					}
					return expires, errors.New("the connection was lost, and the transaction with it")
				}
			}
		}
		if !pause.For(ctx, spread(try, rt.g.random())) {
			return expires, lost
		}
	}
}

// failed answers a request whose handler could not run, or whose result was not kept or is unknown.
func (rt *route) failed(w http.ResponseWriter, req *request, err error) {
	req.err = err
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, errNotBegun):
		rt.unavailable(w, req, err)
	case errors.Is(err, errUnknown):
		rt.refuse(w, req, unknownOutcome(req.info.Key != "", rt.g.pool == nil), Unknown)
	case errors.As(err, &pg) && pg.ConstraintName == "idempotency_pkey": // Another request has the key without the lock; the row is visible now.
		req.err = nil
		switch rt.known(w, req) {
		case foundNothing:
			rt.refuse(w, req, storeUnavailable, Unavailable)
		case foundPending:
			rt.inUse(w, req)
		}
	case errors.Is(err, errHandler), errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &pg):
		rt.refuse(w, req, handlerFault, Forgotten)
	default:
		rt.unavailable(w, req, err)
	}
}
