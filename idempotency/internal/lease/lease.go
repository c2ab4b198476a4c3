// Package lease keeps a claim on a key while a handler runs under it, and says when it may be lost.
package lease

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/internal/pause"
)

// Claim is what a Lease keeps. All of it must be set.
type Claim struct {
	Length time.Duration

	// Renew makes the claim last for Length from now. It returns false if somebody else has the key. After an error nothing is
	// known. A Lease never calls it twice at once.
	Renew func(ctx context.Context) (mine bool, err error)

	// Lost is told that the claim is lost, or may be; err is that of the last renewal, nil if somebody else has the key. Nothing
	// renews it any more.
	Lost func(err error)
}

// Lease is a claim that is renewed until Stop.
//
// It is renewed every third of the time that is left, so that a failed renewal is soon repeated. Nobody else can claim the key before
// safe, by this process's clock: a renewal counts from when it began. If a renewal fails, the claim is not lost until safe has passed; from
// then on two requests might rely on it at once, so it counts as lost.
//
// A step (Lock) locks the key's row, which is stronger than the claim, and renews it with its commit (Extended). Meanwhile nothing is
// renewed: a renewal would wait for the row, and perhaps for the connection that the step waits for. One in progress is cancelled, and
// the step waits for its end. So at most one of the two talks to the database about the row.
//
// Many goroutines may use it at once.
type Lease struct {
	claim Claim
	stop  context.CancelFunc
	ended chan struct{} // closed after the last renewal

	mu     sync.Mutex
	safe   time.Time
	locked bool               // a step has the row
	giveUp context.CancelFunc // cancels the renewal in progress; nil if there is none

	renewing chan struct{} // has an element during a renewal, and while a step begins: one of them at a time
}

// Keep renews a claim that began at begun, until Stop. The end of ctx does not end it: a handler outlives its client.
func Keep(ctx context.Context, c Claim, begun time.Time) *Lease {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Lease{
		claim:    c,
		stop:     stop,
		ended:    make(chan struct{}),
		safe:     begun.Add(c.Length),
		renewing: make(chan struct{}, 1),
	}
	go func() {
		defer close(l.ended)
		for pause.For(ctx, l.rest()) {
			if lost, err := l.renew(ctx); lost && ctx.Err() == nil {
				c.Lost(err)
				return
			}
		}
	}()
	return l
}

// Stop ends the renewals, and waits for the last one.
func (l *Lease) Stop() {
	l.stop()
	<-l.ended
}

// Lock says that a step is about to lock the key's row. It waits for the end of a renewal in progress, which it cancels.
func (l *Lease) Lock() {
	l.mu.Lock()
	l.locked = true
	if l.giveUp != nil {
		l.giveUp()
	}
	l.mu.Unlock()
	l.renewing <- struct{}{}
	defer func() { <-l.renewing }()
}

// Unlock says that the step has ended.
func (l *Lease) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked = false
}

// Extended notes that the claim was renewed by what began at begun.
func (l *Lease) Extended(begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.safe = begun.Add(l.claim.Length)
}

// renew renews the claim once. err is why it is lost, if it is.
func (l *Lease) renew(ctx context.Context) (lost bool, err error) {
	l.renewing <- struct{}{}
	defer func() { <-l.renewing }()
	ctx, idle := l.renewal(ctx)
	if !idle {
		return false, nil
	}
	begun := time.Now()
	mine, err := l.claim.Renew(ctx)
	if err == nil && mine {
		l.Extended(begun)
	}
	if gaveUp := l.renewed(); gaveUp && err != nil {
		return false, nil // The step determines whose row it is.
	}
	return isLost(mine, err, l.mayHaveRunOut()), err
}

// renewal returns the context of a renewal. It ends no later than the claim, so that the handler does not outlive the claim while a
// renewal waits. It returns false if a step has the row: then there is nothing to do.
func (l *Lease) renewal(ctx context.Context) (context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locked {
		return nil, false
	}
	now := time.Now()
	until := now.Add(l.claim.Length / 3)
	if now.Before(l.safe) && l.safe.Before(until) { // After a step longer than the lease, l.safe is over already and bounds nothing.
		until = l.safe
	}
	ctx, l.giveUp = context.WithDeadline(ctx, until)
	return ctx, true
}

// renewed ends a renewal. gaveUp reports whether a step took its place.
func (l *Lease) renewed() (gaveUp bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giveUp()
	l.giveUp = nil
	return l.locked
}

// rest is how long to wait until the next renewal.
func (l *Lease) rest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.safe)/3, l.claim.Length/30)
}

func (l *Lease) mayHaveRunOut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.safe)
}

// isLost decides whether a claim is lost after the last attempt to renew it. One that may have run out counts as lost: otherwise two
// requests might rely on it at once.
func isLost(mine bool, err error, mayHaveRunOut bool) bool {
	if err != nil {
		return mayHaveRunOut
	}
	return !mine
}
