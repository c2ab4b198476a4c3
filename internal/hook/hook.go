// Package hook is what packages webhook, direct and holdfasttest need of an Inbox, and no other package gets. The method Hooks of
// an Inbox returns it.
package hook

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// Inbox is functions of an inbox.Inbox. Outcome is inbox.Outcome, which this package cannot name.
type Inbox[Outcome any] struct {
	// TryReceive and TryStore are those of the Inbox, for events that cannot be compared by the SHA-256 of their payload: a
	// provider may count its own tries in what it signs. hash is of what is the same in every delivery of the event; nil
	// means the SHA-256 of the payload. Bytes after the first 32 name a version in which the event is written: the same id in
	// another version is the same event, whatever its content.
	TryReceive func(ctx context.Context, e holdfast.Event, hash []byte) (Outcome, error)
	TryStore   func(ctx context.Context, e holdfast.Event, hash []byte) (Outcome, error)

	// StoreKept is Store for a sender that keeps an event whose outcome is skipped: it is neither counted nor reported.
	StoreKept func(ctx context.Context, e holdfast.Event) (Outcome, error)

	// SkipAsked says that Config.UnknownType was set to UnknownSkip, and not by default.
	SkipAsked bool

	// Handle records an event and runs its handler in tx, under a savepoint. If the handler failed, failure is what it
	// returned, outcome is what Receive would make of that, and tx keeps none of its writes. err is any other error.
	Handle func(ctx context.Context, tx pgx.Tx, e holdfast.Event) (outcome Outcome, failure, err error)

	// Timeout is how long a handler of the type may run.
	Timeout func(eventType string) time.Duration
}
