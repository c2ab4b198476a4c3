package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/hook"
)

// This file is what other packages of this module need of an Inbox. Programs cannot use it.

// Hooks is for packages webhook, direct and holdfasttest of this module. Programs cannot name the type that it returns.
func (in *Inbox) Hooks() hook.Inbox[Outcome] {
	return hook.Inbox[Outcome]{
		TryReceive: func(ctx context.Context, e holdfast.Event, hash []byte) (Outcome, error) {
			return in.receiver.receiveAlone(ctx, e, hash, true)
		},
		TryStore: func(ctx context.Context, e holdfast.Event, hash []byte) (Outcome, error) {
			return in.receiver.storeAlone(ctx, e, hash, true, false)
		},
		StoreKept: func(ctx context.Context, e holdfast.Event) (Outcome, error) {
			return in.receiver.storeAlone(ctx, e, nil, false, true)
		},
		SkipAsked: in.skipAsked,

		Handle:  in.receiver.tryTx,
		Timeout: func(eventType string) time.Duration { return in.of(eventType).Timeout },
	}
}

// tryTx is ReceiveTx for package holdfasttest. It returns the handler's error and does not write it down.
func (rec *receiver) tryTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (out Outcome, failed, err error) {
	if err := rec.registry.start(); err != nil {
		return "", nil, err
	}
	if err := rec.c.checkEvent(e); err != nil {
		return "", nil, err
	}
	d := rec.registry.newDelivery(e)
	d.manner = mannerCallers
	if d.h == nil {
		return "", nil, fmt.Errorf("the type %q has no handler: consumer %s handles %q", e.Type, rec.c.Consumer, rec.registry.types)
	}
	out, f, err := rec.underSavepoint(ctx, tx, func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.admission.admit(ctx, tx, d, 1) })
	var h *failure.HandlerError
	if errors.As(err, &h) { // The handler hangs and may still write: the transaction is lost.
		return Retrying, h.Err, nil
	}
	if err != nil || f == nil {
		return out, nil, err
	}
	out = Retrying
	if f.Fault == failure.FaultEvent {
		if _, v := (failure.History{}).After(rec.of(e.Type).Retry, *f, time.Now(), rec.random()); v.Do == failure.ActDead {
			out = Dead
		}
	}
	errors.As(f.Err, &h) // A failure under the savepoint is always the handler's.
	return out, h.Err, nil
}
