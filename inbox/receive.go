package inbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// This file is the methods that take one event in.

// Receive takes an event in and handles it, in one transaction of its own. The event needs ID, Type and Topic; the
// error says which field breaks which rule otherwise. A duplicate, a failure that will be tried again (Retrying) and a
// dead letter are outcomes, not errors, and they are durable: the sender need not send it again. An error
// means that nothing was decided and the event should be sent again: the database cannot be reached, or ctx ended. The
// error wraps ErrOutcomeUnknown when the event may have been handled nevertheless.
//
// Events of one topic and key that are received one after the other are handled in that order, whatever fails: the later
// ones are Stored until the earlier one is settled. Receive may be called from many goroutines at once.
func (in *Inbox) Receive(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveAlone(ctx, e, nil, false)
}

// ReceiveTx is Receive in the caller's transaction: what it says holds once that commits. The handler runs under a
// savepoint, so that its failure is recorded beside the caller's writes and undoes none of them. An error leaves the
// transaction fit for nothing but a rollback. Call it in READ COMMITTED: in a higher isolation two transactions with
// the same event end in a serialization error instead of a Duplicate. Not for use with one tx by many goroutines.
func (in *Inbox) ReceiveTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveTx(ctx, tx, e)
}

// Store takes an event in, in a transaction of its own, and leaves its handler to Run: the row now, the work later. What it
// returns is durable. A type that neither this node nor another handles is dealt with as Config.UnknownType says; an inbox
// without any handler stores every type, for the nodes that have them.
func (in *Inbox) Store(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeAlone(ctx, e, nil, false)
}

// StoreTx stores an event in the caller's transaction. It works on nodes that have no handler for the type too. Stored,
// Duplicate and Conflict are its outcomes; they hold once the transaction commits.
func (in *Inbox) StoreTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeTx(ctx, tx, e)
}

// TryReceive is Receive for a sender that waits for the answer and sends again: where another TryReceive or TryStore has
// the same event in progress it returns ErrInFlight at once, whereas Receive waits for that one's end. It costs two round
// trips more. An event that Receive, ReceiveTx, Store, StoreTx or Consume has in progress is waited for all the same.
func (in *Inbox) TryReceive(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveAlone(ctx, e, nil, true)
}

// TryStore is Store for a sender that waits for the answer and sends again: where another TryReceive or TryStore has the
// same event in progress it returns ErrInFlight at once.
func (in *Inbox) TryStore(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeAlone(ctx, e, nil, true)
}
