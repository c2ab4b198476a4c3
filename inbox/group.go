package inbox

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// This file runs loops until their context ends.

// pause waits for d. It returns an error early when the context ends.
func pause(ctx context.Context, d time.Duration) error {
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

// withGrace is a context that ends d after ctx does: work in progress may finish.
func withGrace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if pause(longer, d) == nil {
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}

// group runs functions until one fails or the context ends, and waits for all.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel}
}

func (g *group) run(f func(ctx context.Context) error) {
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

func (g *group) wait() error {
	g.wg.Wait()
	g.cancel()
	return errors.Join(g.errs...)
}

// offer gives an error that ends Run. The first is enough: nobody takes the others, and a worker must not wait for that.
func offer(finished chan<- error, err error) {
	select {
	case finished <- err:
	default:
	}
}
