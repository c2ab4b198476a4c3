package quickstart

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// The code of docs/guides/middleware.md.

// snippet: middleware-inbox

// Timed logs how long each handler took.
func Timed(next inbox.Handler) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		begun := time.Now()
		err := next(ctx, tx, e)
		inbox.LoggerFrom(ctx).Info("handled", "took", time.Since(begun), "ok", err == nil)
		return err
	}
}

// ForTenant settles the events of other tenants without their handlers.
func ForTenant(tenant string) func(next inbox.Handler) inbox.Handler {
	return func(next inbox.Handler) inbox.Handler {
		return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			if e.Headers["tenant"] != tenant {
				return inbox.ErrSettle
			}
			return next(ctx, tx, e)
		}
	}
}

// end snippet

// UseMiddleware puts both around all handlers.
func UseMiddleware(in *inbox.Inbox) {
	// snippet: middleware-use
	in.Use(Timed, ForTenant("acme")) // Timed is outermost
	// end snippet
}

// snippet: middleware-outbox

// Tagged gives each event that is written the tenant of its request.
func Tagged(tenantOf func(context.Context) string) (*outbox.Outbox, error) {
	return outbox.New(outbox.Config{Use: []func(outbox.WriteFunc) outbox.WriteFunc{
		func(next outbox.WriteFunc) outbox.WriteFunc {
			return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
				tagged := make([]holdfast.Event, len(events))
				for i, e := range events {
					headers := maps.Clone(e.Headers) // the event keeps its own
					if headers == nil {
						headers = map[string]string{}
					}
					headers["tenant"] = tenantOf(ctx)
					e.Headers = headers
					tagged[i] = e
				}
				return next(ctx, tx, tagged)
			}
		},
	}})
}

// end snippet

// snippet: middleware-relay

// Paced publishes at most so many calls at a time.
func Paced(p relay.Publisher, calls int) relay.Publisher {
	slots := make(chan struct{}, calls)
	return publish.Wrap(p, func(next publish.Func) publish.Func {
		return func(ctx context.Context, events []holdfast.Event) []error {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				return next(ctx, events)
			case <-ctx.Done():
				errs := make([]error, len(events))
				for i := range errs {
					errs[i] = errors.New("no slot was free")
				}
				return errs
			}
		}
	})
}

// end snippet
