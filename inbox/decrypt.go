package inbox

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
)

// This file decrypts payloads, just before a handler gets them. What is recorded, compared, stored and given up is what came.

// decrypting is a handler that gets its events in the clear, without the header that says how they were encrypted.
func (env *env) decrypting(h BatchHandler) BatchHandler {
	return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		if !slices.ContainsFunc(events, func(e holdfast.Event) bool { _, sealed := wire.Sealed(e); return sealed }) {
			return h(ctx, tx, events)
		}
		open := make([]holdfast.Event, 0, len(events))
		for _, e := range events {
			s, sealed := wire.Sealed(e)
			if !sealed {
				open = append(open, e)
				continue
			}
			payload, err := env.decrypt(ctx, e, s)
			if errors.Is(err, holdfast.ErrKeyErased) && env.c.ErasedKey == ErasedSkip {
				env.notifyErased(e)
				continue
			}
			if err != nil {
				return err
			}
			e.Payload, e.Headers = payload, maps.Clone(e.Headers)
			delete(e.Headers, wire.HeaderEncryption)
			open = append(open, e)
		}
		if len(open) == 0 {
			return nil
		}
		return h(ctx, tx, open)
	}
}

// decrypt returns the payload of an event. What no other attempt can change is a permanent failure.
func (env *env) decrypt(ctx context.Context, e holdfast.Event, s holdfast.Sealed) ([]byte, error) {
	if env.c.Decryptor == nil {
		return nil, failure.Ours("the payload is encrypted (%s, key %s): set inbox.Config.Decryptor", excerpt(s.Algorithm), excerpt(s.Key))
	}
	payload, err := env.c.Decryptor.Decrypt(ctx, e, s)
	switch err = foreign.Error(err); {
	case errors.Is(err, holdfast.ErrKeyErased), errors.Is(err, holdfast.ErrSealBroken):
		return nil, retry.Permanent(failure.OursOf(err, "decrypt the payload (key %s)", excerpt(s.Key)))
	case err != nil:
		return nil, failure.OursOf(err, "decrypt the payload (key %s)", excerpt(s.Key))
	case payload == nil:
		payload = []byte{} // nil is a tombstone, and this event is none
	}
	return payload, nil
}

// notifyErased reports an event that its handler does not get.
func (env *env) notifyErased(e holdfast.Event) {
	env.c.Logger.Info("event skipped: its key was erased", env.attrs(e)...)
	if env.c.Observer.OnErased != nil {
		env.c.Observer.OnErased(e)
	}
}
