package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/internal/kept"
	"github.com/holdfast-go/holdfast/idempotency/internal/lease"
	"github.com/holdfast-go/holdfast/idempotency/internal/pause"
	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/private"
)

// This file runs a handler under a lease (Route.Lease) and ends the lease.

// ErrLeaseLost says that another request has the key now. It is the cause with which a handler's context ends, and the
// error that Step returns. Nothing is written after it.
var ErrLeaseLost = errors.New("the lease of the idempotency key was lost")

// claimedKey is a request's claim on its key, which is renewed.
type claimedKey struct {
	*lease.Lease
	rt    *route
	key   store.Key
	fence int64
	tries int // runs by the completer, this one included; 0 for a client's request
	lose  context.CancelCauseFunc
}

// claimed renews a claim that began at begun, until its Stop. If it is lost, lose ends the handler's context.
func (rt *route) claimed(req *request, c store.Claimed, begun time.Time, tries int, lose context.CancelCauseFunc) *claimedKey {
	ck := &claimedKey{rt: rt, key: req.key(), fence: c.Fence, tries: tries, lose: lose}
	ck.Lease = lease.Keep(req.Context(), lease.Claim{
		Length: rt.o.Lease,
		Renew: func(ctx context.Context) (bool, error) {
			mine, err := rt.g.store.Renew(ctx, ck.key, ck.fence, rt.o.Lease)
			return mine, foreign.Error(err)
		},
		Lost: func(err error) { lose(errors.Join(ErrLeaseLost, err)) },
	}, begun)
	return ck
}

// underLease answers a request on a route with a lease. It returns false if another request has the key.
func (rt *route) underLease(w http.ResponseWriter, req *request) (answered bool) {
	begun := time.Now()
	if full, err := rt.full(req.Context(), rt.g.pool, req); full || err != nil {
		switch f := rt.known(w, req); {
		case f == foundPending:
			return false
		case f != foundNothing: // It is no new key, and answered.
		case err != nil:
			rt.unavailable(w, req, err)
		default:
			rt.refuse(w, req, tooManyKeys, Refused)
		}
		return true
	}
	c, err := rt.claimLease(req)
	if err == nil && !c.Mine && req.adopt(storedOf(c)) {
		c, err = rt.claimLease(req) // as the earlier build would have
	}
	switch {
	case errors.Is(err, store.ErrUnusable):
		rt.unusable(w, req, err)
		return true
	case errors.Is(err, errClaimInDoubt):
		req.err = err
		rt.refuse(w, req, unknownOutcome(true, false), Unknown)
		return true
	case err != nil:
		rt.unavailable(w, req, err)
		return true
	case !c.Mine:
		return rt.answerBy(w, req, storedOf(c)) != foundPending
	}
	req.expired = c.Expired
	rt.lead(w, req, c, begun, 0)
	return true
}

func (rt *route) claimLease(req *request) (store.Claimed, error) {
	if rt.o.Complete != nil {
		return rt.g.pg().claim(req.Context(), req.key(), req.fingerprint, rt.o.Lease, rt.o.TTL, rt.keep(req), rt.g.c.Completion.Base)
	}
	c, err := rt.g.store.Claim(req.Context(), req.key(), req.fingerprint, rt.o.Lease, rt.o.TTL)
	return c, foreign.Error(err)
}

// keep returns the stored form of a request, nil if Route.CompleteQuery does not allow it to be stored.
func (rt *route) keep(req *request) *kept.Request {
	if !kept.QueryNamed(req.URL.RawQuery, rt.o.CompleteQuery) {
		if suppressed, say := rt.unkept.Allow("", time.Minute, time.Now()); say {
			rt.g.c.Logger.Warn("request not stored, its client has to repeat it: Route.CompleteQuery does not name a parameter of its query", "operation", req.operationName(), "suppressed", suppressed)
		}
		return nil
	}
	return kept.Of(req.Request, req.info.Operation, req.info.Principal, req.body, rt.o.CompleteHeaders)
}

// lead runs the handler under a claim that began at begun, and answers.
func (rt *route) lead(w http.ResponseWriter, req *request, c store.Claimed, begun time.Time, tries int) {
	req.info.Attempt = c.Attempt
	ctx, cancel := context.WithTimeoutCause(req.Context(), rt.o.Timeout, errTimeout)
	defer cancel()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	ck := rt.claimed(req, c, begun, tries, lose)
	defer ck.Stop()
	settled := false
	rec := newRecorder(w, rt.g.c.MaxAnswer)
	defer func() { // if the handler, or a function of the route, panicked or called runtime.Goexit
		if !settled {
			rec.leave()
			ck.release(req, false)
			rt.notify(req, Outcome{Result: Forgotten})
		}
	}()
	hd := &handling{
		rt:          rt,
		info:        req.info,
		scope:       req.scope,
		fingerprint: req.fingerprint,
		lock:        req.lock,
		lease:       ck,
	}
	rt.handle(ctx, hd, rec, req)
	answer := rt.settleLease(ctx, ck, hd, rec, req)
	settled = true
	answer()
}

// handle runs the handler.
func (rt *route) handle(ctx context.Context, hd *handling, rec *recorder, req *request) {
	defer hd.over.Store(true)
	rt.next.ServeHTTP(rec, req.whole(context.WithValue(ctx, contextKey{}, hd)))
	if !rec.done() {
		hd.ended = context.Cause(ctx)
	}
}

// withoutKey runs a request without a key on a route with a lease. There is no key to claim.
func (rt *route) withoutKey(w http.ResponseWriter, req *request) {
	ctx, cancel := context.WithTimeoutCause(req.Context(), rt.o.Timeout, errTimeout)
	defer cancel()
	hd := &handling{
		rt:          rt,
		info:        req.info,
		scope:       req.scope,
		fingerprint: req.fingerprint,
		lock:        req.lock,
	}
	rec := newRecorder(w, rt.g.c.MaxAnswer)
	rt.handle(ctx, hd, rec, req)
	if rec.status == 0 {
		rt.forgotten(hd, rec, req)
		return
	}
	rt.notify(req, Outcome{Result: Bypassed, Status: rec.status})
	rec.send(nil)
}

// settleLease stores the answer or gives the key up. It returns the function that sends the answer.
func (rt *route) settleLease(ctx context.Context, ck *claimedKey, hd *handling, rec *recorder, req *request) (answer func()) {
	lost := func() {
		req.err = ErrLeaseLost
		rt.refuse(rec.to, req, inProgress, Lost)
	}
	if decide(answerFacts{
		status:        rec.status,
		doNotStore:    hd.doNotStore,
		commitOnError: hd.commitOnError,
	}, rt.o.Store) == keepNone {
		ck.release(req, rec.status != 0 && rec.status < 500)
		if errors.Is(context.Cause(ctx), ErrLeaseLost) {
			return lost
		}
		return func() { rt.forgotten(hd, rec, req) }
	}
	a := rt.kept(rec, hd)
	expires, mine, err := ck.finish(req, a)
	ck.Stop() // before the answer is sent, which takes as long as the client needs
	switch {
	case err != nil:
		return func() {
			req.err = fmt.Errorf("store answer: %w", err)
			rt.refuse(rec.to, req, unknownOutcome(req.info.Key != "", rt.g.pool == nil), Unknown)
		}
	case !mine:
		return lost
	}
	return func() {
		rt.notify(req, Outcome{Result: Created, Status: rec.status, Omitted: a.Omitted})
		rec.send(rt.ours(req, "stored", expires))
	}
}

// finish stores the answer, even if the client is gone. An error means that it is unknown whether the answer is stored.
func (ck *claimedKey) finish(req *request, a store.Answer) (expires time.Time, mine bool, err error) {
	keys, ttl := ck.rt.g.store, ck.rt.o.TTL
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), databaseTimeout)
	defer cancel()
	for try := 1; ; try++ {
		expires, mine, err = keys.Finish(ctx, ck.key, ck.fence, a, ttl)
		if err == nil || !pause.For(ctx, spread(try, ck.rt.g.random())) {
			return expires, mine, foreign.Error(err)
		}
	}
}

// release gives the key up. forget means that nothing was done under it, as far as the handler knows. If release fails,
// the lease runs out by itself.
func (ck *claimedKey) release(req *request, forget bool) {
	ck.Stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), databaseTimeout)
	defer cancel()
	var err error
	if g := ck.rt.g; g.pool != nil {
		due := g.c.Completion.Delay(req.info.Attempt, g.random())
		if ck.tries > 0 && g.c.Completion.Last(ck.tries) {
			due = 0 // It may run at once.
		}
		err = g.pg().release(ctx, ck.key, ck.fence, forget, due)
	} else {
		err = g.store.Release(ctx, ck.key, ck.fence)
	}
	if err != nil {
		ck.rt.g.c.Logger.Warn("idempotency key not released, in use until its lease runs out", "operation", req.operationName(), "key", req.keyHash(), "error", private.Text(err))
	}
}

// pg returns the Store of a Guard that has a pool.
func (g *Guard) pg() postgres { return postgres{g} }

// defaultLease is the default of Route.Lease for a Guard made by NewEphemeral.
const defaultLease = 30 * time.Second

// NewEphemeral makes a Guard whose keys are in s, without Postgres. Every route is in lease mode, for 30 s unless
// Route.Lease says otherwise. Each call of what Tx returns is an error, Step returns one, and Route.Complete is refused. It promises less
// than New: the handler's effect and the stored answer are two writes. After a crash between them the handler runs
// again, with the same DownstreamKey. If the store forgets a key, so does the Guard.
func NewEphemeral(s store.Store, c Config) (*Guard, error) {
	if s == nil {
		return nil, errors.New("idempotency config: store is nil: it must be one that keeps the keys, or make the guard with New")
	}
	g, err := newGuard(c)
	if err != nil {
		return nil, fmt.Errorf("idempotency config: %w", err)
	}
	g.store = byHash{s}
	return g, nil
}
