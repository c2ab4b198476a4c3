// Package hook is what packages webhook and holdfasttest need of an Inbox, and nobody else is to have. An Inbox gives it by its
// method Hooks.
package hook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// Inbox is functions of an inbox.Inbox. Outcome is inbox.Outcome, which this package cannot name.
type Inbox[Outcome any] struct {
	// TryReceive and TryStore are those of the Inbox, for an event that is told from another payload under its id by something
	// else than the SHA-256 of its payload: a provider may count its own tries in what it signs. hash is of what the event is
	// in each of its deliveries; nil means the SHA-256 of the payload.
	TryReceive func(ctx context.Context, e holdfast.Event, hash []byte) (Outcome, error)
	TryStore   func(ctx context.Context, e holdfast.Event, hash []byte) (Outcome, error)

	// Handle records an event and runs its handler in tx, under a savepoint. Where the handler failed, failure is what it
	// returned, outcome what Receive would make of that, and nothing of it is left in tx. err is anything else that went wrong.
	Handle func(ctx context.Context, tx pgx.Tx, e holdfast.Event) (outcome Outcome, failure, err error)
}
