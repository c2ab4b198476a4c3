package inbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// This file has the methods that take in one event.

// Receive takes an event in and handles it, in one transaction of its own. The event needs ID, Type and Topic; otherwise the error
// says which field breaks which rule. A duplicate, a failure that will be retried (Retrying) and a dead letter are outcomes,
// not errors. They are durable: the sender need not send the event again. An error means that nothing was decided, because the
// database cannot be reached or ctx ended: send the event again. The error wraps ErrOutcomeUnknown when the event may have
// been handled.
//
// Events of one topic and key that are received one after the other are handled in that order, whatever fails. Later ones are
// Stored until the earlier one is settled. Many goroutines may call Receive at once.
func (in *Inbox) Receive(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveAlone(ctx, e, nil, false)
}

// ReceiveTx is Receive in the caller's transaction. Its outcome holds once that commits. The handler runs under a savepoint: its
// failure is recorded beside the caller's writes and undoes none of them. After an error the transaction can only be rolled
// back. Call it in READ COMMITTED: in a higher isolation level, two transactions with the same event end in a serialization
// error instead of a Duplicate. Only one goroutine at a time may use a tx.
func (in *Inbox) ReceiveTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveTx(ctx, tx, e)
}

// Store takes an event in, in a transaction of its own, and leaves its handler to Run. The outcome is durable. Config.UnknownType
// says what becomes of a type that no node handles. An inbox without handlers stores every type, for the nodes that have them.
func (in *Inbox) Store(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeAlone(ctx, e, nil, false)
}

// StoreTx stores an event in the caller's transaction. The node need not have a handler for the type. The outcomes are Stored,
// Duplicate and Conflict, and hold once the transaction commits.
func (in *Inbox) StoreTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeTx(ctx, tx, e)
}

// TryReceive is Receive for a sender that waits for the answer and sends again. While another TryReceive or TryStore has the same
// event in progress, it returns ErrInFlight at once; Receive would wait for that one to end. It costs two more round trips. It
// does wait for an event that Receive, ReceiveTx, Store, StoreTx or Consume has in progress.
func (in *Inbox) TryReceive(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveAlone(ctx, e, nil, true)
}

// TryStore is Store for a sender that waits for the answer and sends again. While another TryReceive or TryStore has the same event
// in progress, it returns ErrInFlight at once.
func (in *Inbox) TryStore(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeAlone(ctx, e, nil, true)
}
