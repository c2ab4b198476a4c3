package inbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// This file has the methods that take in one event.

// Receive takes an event in and handles it, in one transaction of its own. The event needs ID, Type and Topic; otherwise the error
// says which field breaks which rule. A duplicate, a failure that will be retried (Retrying) and a dead letter are outcomes,
// not errors. They are durable: the sender need not send the event again. An error means that nothing was decided: send the event
// again, unless it broke a rule or the error wraps ErrConfiguration. The error wraps ErrOutcomeUnknown when the event may have been
// handled, ErrFull when there is no room to store it, and ErrHungHandlers when only a new process helps.
//
// While a person has paused the consumer or the event's key, the event is Stored, and Run handles it afterwards.
//
// Events of one topic and key that are received one after the other are handled in that order, whatever fails. Later ones are
// Stored until the earlier one is settled. Many goroutines may call Receive at once.
func (in *Inbox) Receive(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveAlone(ctx, e, nil, false)
}

// ReceiveTx is Receive in the caller's transaction. Its outcome holds once that commits. The handler runs under a savepoint: its
// failure is recorded beside the caller's writes and undoes none of them. After ErrFull nothing of the event is written, and the
// transaction may commit; after any other error it can only be rolled back. Call it in READ COMMITTED: in a higher isolation level, two transactions with the same event end in a serialization
// error instead of a Duplicate. Only one goroutine at a time may use a tx.
func (in *Inbox) ReceiveTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	if tx == nil {
		return "", errNoTx
	}
	return in.receiver.receiveTx(ctx, tx, e)
}

// Store takes an event in, in a transaction of its own, and leaves its handler to Run. The outcome is durable. Config.UnknownType
// says what becomes of a type that no node handles. An inbox without handlers stores every type, for the nodes that have them.
func (in *Inbox) Store(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeAlone(ctx, e, nil, false, false)
}

// StoreTx stores an event in the caller's transaction, whatever Config.UnknownType says: the node need not have a handler for the type.
// The outcomes are Stored, Duplicate and Conflict, and hold once the transaction commits. After ErrFull nothing of the event is written, and
// the transaction may commit; after any other error it can only be rolled back. Only one goroutine at a time may use a tx.
func (in *Inbox) StoreTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	if tx == nil {
		return "", errNoTx
	}
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
	return in.receiver.storeAlone(ctx, e, nil, true, false)
}

var errNoTx = errors.New("tx is nil: it must be the transaction in which the event is taken in")
