package wiring

import (
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: by-hand
// Parts are those of a process; RunAll runs them.
type Parts struct {
	Relay *relay.Relay
	Inbox *inbox.Inbox
	Guard *idempotency.Guard
}

// Settings configure them.
type Settings struct {
	Relay relay.Config
	Inbox inbox.Config
	Guard idempotency.Config
}

// NewParts makes them. Its error has all that is wrong with the settings.
func NewParts(pool *pgxpool.Pool, publisher relay.Publisher, s Settings) (*Parts, error) {
	r, relayErr := relay.New(pool, publisher, s.Relay)
	in, inboxErr := inbox.New(pool, s.Inbox)
	guard, guardErr := idempotency.New(pool, s.Guard)
	if err := errors.Join(relayErr, inboxErr, guardErr); err != nil {
		return nil, err
	}
	return &Parts{r, in, guard}, nil
}

// end snippet
