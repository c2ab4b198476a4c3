// Package testdoor is the door through which package holdfasttest runs a handler of an Inbox and is given its error,
// which nobody else is to have: Receive and ReceiveTx turn it into an outcome.
package testdoor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// Handle records e and runs its handler in tx, under a savepoint. in is an *inbox.Inbox, which this package cannot
// name, and outcome an inbox.Outcome. Where the handler failed, failure is what it returned, outcome what Receive would
// make of that, and nothing of it is left in tx. err is anything else that went wrong. Package inbox sets it.
var Handle func(ctx context.Context, in any, tx pgx.Tx, e holdfast.Event) (outcome string, failure, err error)
