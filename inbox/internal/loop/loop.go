// Package loop runs the loops of an inbox: side by side until one fails, with rests and delays between their turns.
package loop

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// Patience bounds a turn of a loop, and each of its statements, so that a lost answer cannot end the loop silently.
const Patience = 30 * time.Second

// Sleep waits for d. It returns an error early when the context ends.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		runtime.Gosched()
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WithGrace is a context that ends d after ctx does: work in progress may finish.
func WithGrace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if Sleep(longer, d) == nil {
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}

// Group runs functions until one fails or the context ends, and waits for all.
type Group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

// NewGroup returns a Group whose functions get a context that ends with ctx, and when one of them fails.
func NewGroup(ctx context.Context) *Group {
	ctx, cancel := context.WithCancel(ctx)
	return &Group{ctx: ctx, cancel: cancel}
}

// Context is that of its functions.
func (g *Group) Context() context.Context { return g.ctx }

// Run starts a function, which ends the others if it fails.
func (g *Group) Run(f func(ctx context.Context) error) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		if err := f(g.ctx); err != nil {
			g.mu.Lock()
			g.errs = append(g.errs, err)
			g.mu.Unlock()
			g.cancel()
		}
	}()
}

// Wait returns when all have ended, with all their errors.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel()
	return errors.Join(g.errs...)
}

// Offer gives an error that ends Run. The first is enough: nobody takes the others, and a worker must not wait for that.
func Offer(finished chan<- error, err error) {
	select {
	case finished <- err:
	default:
	}
}
