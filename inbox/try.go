package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/webhookdoor"
)

// This file is the way in for senders that wait for an answer and send again by themselves, as those of webhooks do. A
// second copy of an event whose first is being handled must not be acknowledged, because the first may yet fail; nor may
// it wait for the first with a connection of the pool, because a few of them would leave none for the handlers.

func init() {
	webhookdoor.TryReceive = func(ctx context.Context, in any, e holdfast.Event, hash []byte) (string, error) {
		out, err := in.(*Inbox).receiver.receiveAlone(ctx, e, hash, true)
		return string(out), err
	}
	webhookdoor.TryStore = func(ctx context.Context, in any, e holdfast.Event, hash []byte) (string, error) {
		out, err := in.(*Inbox).receiver.storeAlone(ctx, e, hash, true)
		return string(out), err
	}
}

// tryClass is "hftr" in ASCII, beside those in fence.go: an event that is being tried.
const tryClass = 0x68667472

// TryReceive is Receive for a sender that waits for the answer and sends again: where another TryReceive or TryStore has
// the same event in hand it returns ErrInFlight at once, whereas Receive waits for that one's end. It costs two round
// trips more. An event that Receive, ReceiveTx, Store, StoreTx or Consume has in hand is waited for all the same.
func (in *Inbox) TryReceive(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveAlone(ctx, e, nil, true)
}

// TryStore is Store for a sender that waits for the answer and sends again: where another TryReceive or TryStore has the
// same event in hand it returns ErrInFlight at once.
func (in *Inbox) TryStore(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeAlone(ctx, e, nil, true)
}

// storeAlone stores an event in a transaction of its own: as TryStore does, or as Store. hash is that of newDeliveryOf.
func (rec *receiver) storeAlone(ctx context.Context, e holdfast.Event, hash []byte, try bool) (Outcome, error) {
	rec.registry.start()
	if err := checkEvent(e); err != nil {
		return "", fmt.Errorf("store event: %w", err)
	}
	d := rec.newDeliveryOf(e, hash)
	d.try = try
	s := func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		return rec.queues.park(ctx, tx, d, past{}, nil, Stored)
	}
	if d.h == nil && len(rec.registry.types) > 0 {
		other, skip, err := rec.unhandled(ctx, rec.pool, d)
		if err != nil {
			return "", fmt.Errorf("store event: %w", err)
		}
		if skip {
			rec.report(d, Skipped, 0)
			return Skipped, nil
		}
		s = other
	}
	d.h = nil // No step of it runs the handler.
	if try {
		s = rec.trying(d, s)
	}
	out, err := rec.receive(ctx, rec.newIntake(d, rec.runner.within(s)), nil)
	if err != nil {
		return "", fmt.Errorf("store event: %w", err)
	}
	return out, nil
}

// trying is a step that is taken only by whoever has the event's lock. The lock goes with the transaction, once its
// commit can be seen: so the one who does not get it looks whether the event is known by now.
func (rec *receiver) trying(d *delivery, s step) step {
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		number := lane.Number(rec.c.Schema, rec.c.Consumer, d.e.Source, d.e.ID)
		var mine bool
		if err := tx.QueryRow(ctx, rec.sql.tryLock, int32(tryClass), number).Scan(&mine); err != nil {
			return "", fmt.Errorf("lock the event: %w", err)
		}
		if mine {
			return s(ctx, tx)
		}
		out, err := rec.ledger.known(ctx, tx, d)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", ErrInFlight
		}
		return out, err
	}
}
