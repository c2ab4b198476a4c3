package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/private"
)

// This file runs a handler under a lease (Route.Lease) and ends the lease.

// lease is a request's claim on its key.
type lease struct {
	rt    *route
	key   StoreKey
	fence int64
	tries int // runs by the completer, this one included; 0 for a client's request
	lose  context.CancelCauseFunc
	stop  func() // ends the renewals

	mu   sync.Mutex
	safe time.Time // until then nobody else can claim the key, by this process's clock

	stepping bool               // a step is open: its row lock is stronger than the lease, and it renews the lease at its end
	giveUp   context.CancelFunc // cancels the renewal in progress; nil if there is none

	renewing sync.Mutex // held by a renewal, and by a step while it begins
}

// step notes that a step locks the row from now on, or that it has ended. A renewal in progress is cancelled, because
// it may wait for the same connection as the step.
func (l *lease) step(open bool) {
	l.mu.Lock()
	l.stepping = open
	if open && l.giveUp != nil {
		l.giveUp()
	}
	l.mu.Unlock()
	if open { // wait until the renewal has ended
		l.renewing.Lock()
		defer l.renewing.Unlock()
	}
}

// renewal returns the context of a renewal. It ends no later than the lease, so that the handler does not outlive the
// lease while a renewal waits. It returns false if a step is open: then there is nothing to do.
func (l *lease) renewal(ctx context.Context) (context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stepping {
		return nil, false
	}
	now := time.Now()
	until := now.Add(l.rt.o.Lease / 3)
	if now.Before(l.safe) && l.safe.Before(until) { // After a step longer than the lease, l.safe is over already and bounds nothing.
		until = l.safe
	}
	ctx, l.giveUp = context.WithDeadline(ctx, until)
	return ctx, true
}

// renewed ends a renewal. gaveUp reports whether a step took its place.
func (l *lease) renewed() (gaveUp bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giveUp()
	l.giveUp = nil
	return l.stepping
}

// extended notes a successful renewal that began at begun.
func (l *lease) extended(begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.safe = begun.Add(l.rt.o.Lease)
}

// rest is how long to wait until the next renewal: a third of the time left, so that a failed one is soon repeated.
func (l *lease) rest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.safe)/3, l.rt.o.Lease/30)
}

func (l *lease) mayHaveRunOut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.safe)
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
	if err == nil && !c.Mine && req.adopt(c.stored()) {
		c, err = rt.claimLease(req) // as the earlier build would have
	}
	switch {
	case errors.Is(err, ErrUnusable):
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
		return rt.answerBy(w, req, c.stored()) != foundPending
	}
	req.expired = c.Expired
	rt.lead(w, req, c, begun, 0)
	return true
}

func (rt *route) claimLease(req *request) (Claimed, error) {
	if rt.o.Complete != nil {
		return rt.g.pg().claim(req.Context(), req.key(), req.fingerprint, rt.o.Lease, rt.o.TTL, rt.keep(req), rt.g.c.Completion.Base)
	}
	c, err := rt.g.store.Claim(req.Context(), req.key(), req.fingerprint, rt.o.Lease, rt.o.TTL)
	return c, foreign.Error(err)
}

// keep returns the stored form of a request, nil if Route.CompleteQuery does not allow it to be stored.
func (rt *route) keep(req *request) *keptRequest {
	if !queryNamed(req.URL.RawQuery, rt.o.CompleteQuery) {
		if suppressed, say := rt.unkept.Allow("", time.Minute, time.Now()); say {
			rt.g.c.Logger.Warn("request not stored, its client has to repeat it: Route.CompleteQuery does not name a parameter of its query", "operation", req.operationName(), "suppressed", suppressed)
		}
		return nil
	}
	return keep(req, rt.o.CompleteHeaders)
}

// lead runs the handler under a claim that began at begun, and answers.
func (rt *route) lead(w http.ResponseWriter, req *request, c Claimed, begun time.Time, tries int) {
	req.info.Attempt = c.Attempt
	ctx, cancel := context.WithTimeoutCause(req.Context(), rt.o.Timeout, errTimeout)
	defer cancel()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	l := &lease{rt: rt, key: req.key(), fence: c.Fence, tries: tries, lose: lose}
	l.extended(begun)
	l.stop = l.heartbeat(req.Context())
	defer l.stop()
	settled := false
	rec := newRecorder(w, rt.g.c.MaxAnswer)
	defer func() { // if the handler, or a function of the route, panicked or called runtime.Goexit
		if !settled {
			rec.leave()
			l.release(req, false)
			rt.notify(req, Outcome{Result: Forgotten})
		}
	}()
	hd := &handling{
		rt:          rt,
		info:        req.info,
		scope:       req.scope,
		fingerprint: req.fingerprint,
		lock:        req.lock,
		lease:       l,
		turn:        make(chan struct{}, 1),
	}
	rt.handle(ctx, hd, rec, req)
	answer := rt.settleLease(ctx, l, hd, rec, req)
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
		turn:        make(chan struct{}, 1),
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
func (rt *route) settleLease(ctx context.Context, l *lease, hd *handling, rec *recorder, req *request) (answer func()) {
	lost := func() {
		req.err = ErrLeaseLost
		rt.refuse(rec.to, req, inProgress, Lost)
	}
	if decide(answerFacts{
		status:        rec.status,
		doNotStore:    hd.doNotStore,
		commitOnError: hd.commitOnError,
	}, rt.o.Store) == keepNone {
		l.release(req, rec.status != 0 && rec.status < 500)
		if errors.Is(context.Cause(ctx), ErrLeaseLost) {
			return lost
		}
		return func() { rt.forgotten(hd, rec, req) }
	}
	a := rt.kept(rec, hd)
	expires, mine, err := l.finish(req, a)
	l.stop() // before the answer is sent, which takes as long as the client needs
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
func (l *lease) finish(req *request, a StoredAnswer) (expires time.Time, mine bool, err error) {
	store, ttl := l.rt.g.store, l.rt.o.TTL
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), databaseTimeout)
	defer cancel()
	for try := 1; ; try++ {
		expires, mine, err = store.Finish(ctx, l.key, l.fence, a, ttl)
		if err == nil || !pause(ctx, spread(try, l.rt.g.random())) {
			return expires, mine, foreign.Error(err)
		}
	}
}

// release gives the key up. forget means that nothing was done under it, as far as the handler knows. If release fails,
// the lease runs out by itself.
func (l *lease) release(req *request, forget bool) {
	l.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), databaseTimeout)
	defer cancel()
	var err error
	if g := l.rt.g; g.pool != nil {
		due := g.c.Completion.Delay(req.info.Attempt, g.random())
		if l.tries > 0 && g.c.Completion.Last(l.tries) {
			due = 0 // It may run at once.
		}
		err = g.pg().release(ctx, l.key, l.fence, forget, due)
	} else {
		err = g.store.Release(ctx, l.key, l.fence)
	}
	if err != nil {
		l.rt.g.c.Logger.Warn("idempotency key not released, in use until its lease runs out", "operation", req.operationName(), "key", req.keyHash(), "error", private.Text(err))
	}
}

// heartbeat renews the lease until stop is called. stop waits for the last renewal. If the lease is lost, the handler's
// context ends.
func (l *lease) heartbeat(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pause(ctx, l.rest()) {
			if err := l.renew(ctx); err != nil && ctx.Err() == nil {
				l.lose(err)
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// renew renews the lease once. An error means that the lease is lost, or may be.
func (l *lease) renew(ctx context.Context) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	ctx, idle := l.renewal(ctx)
	if !idle {
		return nil
	}
	begun := time.Now()
	mine, err := l.rt.g.store.Renew(ctx, l.key, l.fence, l.rt.o.Lease)
	if err = foreign.Error(err); err == nil && mine {
		l.extended(begun)
	}
	if gaveUp := l.renewed(); gaveUp && err != nil {
		return nil // The step determines whose row it is.
	}
	if leaseLost(mine, err, l.mayHaveRunOut()) {
		return errors.Join(ErrLeaseLost, err)
	}
	return nil
}

// pg returns the Store of a Guard that has a pool.
func (g *Guard) pg() postgres { return postgres{g} }

// defaultLease is the default of Route.Lease for a Guard made by NewEphemeral.
const defaultLease = 30 * time.Second

// NewEphemeral makes a Guard whose keys are in store, without Postgres. Every route is in lease mode, for 30 s unless
// Route.Lease says otherwise. Tx returns nil, Step returns an error, and Route.Complete is refused. It promises less
// than New: the handler's effect and the stored answer are two writes. After a crash between them the handler runs
// again, with the same DownstreamKey. If the store forgets a key, so does the Guard.
func NewEphemeral(store Store, c Config) (*Guard, error) {
	if store == nil {
		return nil, errors.New("idempotency config: store is nil: it must be one that keeps the keys, or make the guard with New")
	}
	g, err := newGuard(c)
	if err != nil {
		return nil, fmt.Errorf("idempotency config: %w", err)
	}
	g.store = store
	return g, nil
}
