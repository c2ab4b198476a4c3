package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// encrypt returns the events as they are written: with encrypted payloads, if the configuration asks for it. The caller's events stay
// as they are. Ids and sources come first, because a ciphertext belongs to them. Tombstones have nothing to encrypt.
func (o *Outbox) encrypt(ctx context.Context, events []holdfast.Event) ([]holdfast.Event, error) {
	if o.encryptor == nil {
		return events, nil
	}
	sealed := make([]holdfast.Event, len(events))
	var problems []error
	for i, e := range events {
		if e.Source == "" {
			e.Source = o.source
		}
		if e.ID == "" {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, fmt.Errorf("make an id: %w", err)
			}
			e.ID = id.String()
		}
		if e.Payload != nil {
			if err := o.seal(ctx, &e); err != nil {
				return nil, fmt.Errorf("event %d: %w", i, err)
			}
			for _, p := range limitSealed(&e, o.maxPayload) {
				p.Index = i
				problems = append(problems, p)
			}
		}
		sealed[i] = e
	}
	return sealed, errors.Join(problems...)
}

// seal encrypts the payload of one event.
func (o *Outbox) seal(ctx context.Context, e *holdfast.Event) error {
	s, err := o.encryptor.Encrypt(ctx, *e)
	if err != nil {
		return fmt.Errorf("encrypt the payload: %w", foreign.Error(err))
	}
	if s.Algorithm == "" {
		return nil
	}
	header, err := wire.EncryptionHeader(s)
	if err != nil {
		return err
	}
	if s.Payload == nil {
		return errors.New("encryption: the encrypted payload is nil: it must not be, because that is a tombstone")
	}
	headers := maps.Clone(e.Headers)
	if headers == nil {
		headers = map[string]string{}
	}
	headers[wire.HeaderEncryption] = header
	e.Headers, e.Payload = headers, s.Payload
	return nil
}
