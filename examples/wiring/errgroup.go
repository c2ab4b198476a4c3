// Package wiring runs the parts of holdfast in an errgroup, and in an application of Fx.
package wiring

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// RunAll runs a relay, a consumer and a guard until ctx ends, or until one of them fails, and returns after all have ended.
func RunAll(ctx context.Context, r *relay.Relay, in *inbox.Inbox, source inbox.Source, guard *idempotency.Guard) error {
	// snippet: errgroup
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return in.Consume(ctx, source) })
	g.Go(func() error { return guard.Run(ctx) })
	return g.Wait() // nil after ctx has ended
	// end snippet
}
