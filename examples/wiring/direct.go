package wiring

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/direct"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// WithoutKafka delivers the events of one database to the inbox of another, which may be the same.
func WithoutKafka(ctx context.Context, producer *pgxpool.Pool, billing *inbox.Inbox) error {
	// snippet: direct
	publisher, err := direct.New(map[string][]direct.Store{"orders": {billing}}, direct.Config{})
	if err != nil {
		return err
	}
	r, err := relay.New(producer, publisher, relay.Config{})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return billing.Run(ctx) })
	return g.Wait()
	// end snippet
}
