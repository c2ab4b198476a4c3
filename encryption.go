package holdfast

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Encryptor encrypts the payloads of events before outbox.Config.Encryptor's outbox writes them, so that they are nowhere in
// the clear: not in the log, in Kafka, or among what is parked, stored or given up. Many goroutines may call it at once.
type Encryptor interface {
	// Encrypt returns the payload of an event as it is written. The event is complete: it has its ID and Source. A Sealed without
	// an Algorithm leaves the payload in the clear, for events that are about nobody. An error keeps the event from being
	// written, and must not quote the payload.
	Encrypt(ctx context.Context, e Event) (Sealed, error)
}

// Decryptor decrypts what an Encryptor has encrypted, before inbox.Config.Decryptor's inbox calls a handler. Many goroutines may
// call it at once.
type Decryptor interface {
	// Decrypt returns the payload of an event. Its Payload is still encrypted, as s.Payload is. The error wraps ErrKeyErased if
	// the key was deleted on purpose, and ErrSealBroken if the payload is not that of this event. Any other error is temporary.
	Decrypt(ctx context.Context, e Event, s Sealed) ([]byte, error)
}

// Sealed is an encrypted payload. Algorithm and Key travel in the clear, in the header "holdfast-encryption".
type Sealed struct {
	Algorithm string // 1 to 64 visible ASCII characters
	Key       string // the key's id, 1 to 255 visible ASCII characters. Everybody can read it: it should be a random id, and no name
	Payload   []byte
}

// ErrKeyErased says that a key was deleted on purpose, and what it encrypted with it.
var ErrKeyErased = errors.New("the key was erased")

// ErrSealBroken says that an encrypted payload was changed, belongs to another event, or was encrypted with another key.
var ErrSealBroken = errors.New("the payload is not the one that was encrypted for this event")

// KeyStore keeps the keys of AESGCM: usually a table of wrapped keys, one for each person or tenant, and a key management service
// that unwraps them. It should cache keys for minutes at most, because an erased key is used until then. Many goroutines may
// call it at once.
type KeyStore interface {
	// KeyOf returns the key for an event that is written, and makes one if there is none. The id "" leaves the event in the clear.
	// A key has 32 random bytes. Once erased, an id must never get a key again.
	KeyOf(ctx context.Context, e Event) (id string, key []byte, err error)

	// Key returns the key of an id. The error wraps ErrKeyErased if it was erased, and does so only then.
	Key(ctx context.Context, id string) ([]byte, error)
}

// AESGCM is an Encryptor and a Decryptor with AES-256-GCM. Source, ID, Topic and Type of the event are authenticated with its payload, so
// that the ciphertext of one event is refused in another. The nonce is made of these and the payload: an event that is written twice
// has the same bytes, and consumers recognise the duplicate. A ciphertext is 28 bytes longer than its payload. Many
// goroutines may use it at once.
type AESGCM struct{ keys KeyStore }

// NewAESGCM makes an AESGCM on keys.
func NewAESGCM(keys KeyStore) *AESGCM { return &AESGCM{keys} }

// aesGCM is Sealed.Algorithm of AESGCM. Another construction needs another name.
const aesGCM = "aes-256-gcm"

// Encrypt implements Encryptor.
func (a *AESGCM) Encrypt(ctx context.Context, e Event) (Sealed, error) {
	id, key, err := a.keys.KeyOf(ctx, e)
	if err != nil {
		return Sealed{}, fmt.Errorf("get the key of an event of type %q: %w", e.Type, foreign.Error(err))
	}
	if id == "" {
		return Sealed{}, nil
	}
	seal, macKey, err := ciphers(key)
	if err != nil {
		return Sealed{}, fmt.Errorf("key %q: %w", id, err)
	}
	about := associated(e)
	mac := hmac.New(sha256.New, macKey)
	mac.Write(about)
	mac.Write(e.Payload)
	nonce := mac.Sum(nil)[:seal.NonceSize()]
	return Sealed{
		Algorithm: aesGCM,
		Key:       id,
		Payload:   seal.Seal(nonce, nonce, e.Payload, about),
	}, nil
}

// Decrypt implements Decryptor.
func (a *AESGCM) Decrypt(ctx context.Context, e Event, s Sealed) ([]byte, error) {
	if s.Algorithm != aesGCM {
		return nil, fmt.Errorf("%w: the algorithm is %q, and this is %q", ErrSealBroken, s.Algorithm, aesGCM)
	}
	key, err := a.keys.Key(ctx, s.Key)
	if err != nil {
		return nil, fmt.Errorf("get the key %q: %w", s.Key, foreign.Error(err))
	}
	seal, _, err := ciphers(key)
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", s.Key, err)
	}
	if len(s.Payload) < seal.NonceSize() {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrSealBroken, len(s.Payload))
	}
	nonce, ciphertext := s.Payload[:seal.NonceSize()], s.Payload[seal.NonceSize():]
	payload, err := seal.Open([]byte{}, nonce, ciphertext, associated(e)) // never nil: that would be a tombstone
	if err != nil {
		return nil, ErrSealBroken
	}
	return payload, nil
}

// ciphers makes the cipher of a key, and the key from which nonces are made: two keys of one, so that neither says anything
// about the other.
func ciphers(key []byte) (cipher.AEAD, []byte, error) {
	if len(key) != 32 {
		return nil, nil, fmt.Errorf("it has %d bytes: it must have 32", len(key))
	}
	both, err := hkdf.Key(sha256.New, key, nil, "holdfast "+aesGCM, 64)
	if err != nil {
		return nil, nil, err
	}
	block, err := aes.NewCipher(both[:32])
	if err != nil {
		return nil, nil, err
	}
	seal, err := cipher.NewGCM(block)
	return seal, both[32:], err
}

// associated is what a payload belongs to. Lengths come first, so that no two events have the same bytes.
func associated(e Event) (b []byte) {
	for _, text := range []string{e.Source, e.ID, e.Topic, e.Type} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}
