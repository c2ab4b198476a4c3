package webhook

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox"
)

// InOrder reports whether an event is at least as new as every other event of its entity that the inbox's consumer has
// seen, and remembers it. Providers promise no order. A handler that writes an entity's state calls InOrder first, and
// returns nil if the answer is no.
//
//	ok, err := webhook.InOrder(ctx, tx, in, "subscription/"+s.ID, e.Time)
//	if err != nil || !ok {
//		return err // stale: the table has the state of a later event
//	}
//
// Events of the same moment all count as in order, because Stripe counts in seconds. The last one to arrive wins, or
// the handler asks the provider for the current state. at is the time in the body, when the event happened. Do not use
// Delivery.Timestamp, which is later with each retry. e.Time is the time in the body if the provider sends one (Stripe,
// Slack, Standard Webhooks with a timestamp in the body). If an entity has a version, use Inbox.Watermark instead.
//
// It locks and fails like Inbox.Watermark, and has the same rules for concurrent use.
func InOrder(ctx context.Context, tx pgx.Tx, in *inbox.Inbox, entity string, at time.Time) (bool, error) {
	return in.WatermarkTies(ctx, tx, entity, at.UnixMicro())
}
