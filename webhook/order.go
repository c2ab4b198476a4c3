package webhook

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox"
)

// InOrder says whether an event is no older than every other of its entity that the inbox's consumer has seen, and
// remembers that. Providers promise no order: a handler that writes the state that an event tells asks first, and returns
// nil where the answer is no.
//
//	ok, err := webhook.InOrder(ctx, tx, in, "subscription/"+s.ID, e.Time)
//	if err != nil || !ok {
//		return err // stale: what a later event told is in the table already
//	}
//
// Events of the same moment are all in order, because Stripe counts in seconds: of those the one that comes last stays,
// or the handler asks the provider for the present state. Take for at when it happened as the body says, not
// Delivery.Timestamp, which is later with each retry: e.Time is the first where the provider tells it (Stripe, Slack,
// Standard Webhooks with a timestamp in the body). Where an entity has a version, Inbox.Watermark is better.
//
// It locks, fails and may be called as Inbox.Watermark.
func InOrder(ctx context.Context, tx pgx.Tx, in *inbox.Inbox, entity string, at time.Time) (bool, error) {
	return in.WatermarkTies(ctx, tx, entity, at.UnixMicro())
}
