// Package webhookdoor is the door through which package webhook gives an Inbox an event that is told from another payload
// under its id by something else than the SHA-256 of its payload: a provider may count its own tries in what it signs.
package webhookdoor

import (
	"context"

	"github.com/holdfast-go/holdfast"
)

// TryReceive and TryStore are those of an *inbox.Inbox, which this package cannot name, and outcome is an inbox.Outcome.
// hash is of what the event is in each of its deliveries; nil means the SHA-256 of the payload. Package inbox sets them.
var (
	TryReceive func(ctx context.Context, in any, e holdfast.Event, hash []byte) (outcome string, err error)
	TryStore   func(ctx context.Context, in any, e holdfast.Event, hash []byte) (outcome string, err error)
)
