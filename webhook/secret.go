package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

const (
	// minSecret is the minimum length in bytes of a secret that is used as it is. A shorter one can be guessed from one
	// signed request.
	minSecret = 16

	// maxSecrets is the maximum number of secrets of a verifier: each costs an HMAC over the body.
	maxSecrets = 16
)

// readSecrets reads every secret. For each one that cannot be used, the error says which rule it breaks, but never
// shows it. An error of read begins with "is".
func readSecrets[K any](provider string, secrets []string, read func(string) (K, error)) ([]K, error) {
	var problems []error
	if n := len(secrets); n == 0 || n > maxSecrets {
		problems = append(problems, fmt.Errorf("number of secrets is %d: it must be 1 to %d, the current one first", n, maxSecrets))
	}
	keys := make([]K, 0, len(secrets))
	for i, secret := range secrets {
		key, err := read(secret)
		switch {
		case secret == "":
			err = errors.New("is empty: it must not be, or anyone could sign with it")
		case strings.TrimSpace(secret) != secret:
			err = errors.New("is surrounded by white space: it must not be; remove the line break that a file ends with")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("secret %d of %d %w", i+1, len(secrets), err))
		}
		keys = append(keys, key)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("webhook secrets of %s: %w", provider, err)
	}
	return keys, nil
}

// plainSecret is a secret that is used as it is.
func plainSecret(secret string) ([]byte, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("is %d bytes long: it must be at least %d", len(secret), minSecret)
	}
	return []byte(secret), nil
}

// standardKey is a secret of Standard Webhooks. mac is set for v1, public for v1a, and private if it can sign. An HMAC
// key is never tried on v1a, nor a public key on v1.
type standardKey struct {
	mac     []byte
	public  ed25519.PublicKey
	private ed25519.PrivateKey
}

func readStandardKey(secret string) (k standardKey, err error) {
	prefix, text, found := strings.Cut(secret, "_")
	if !found {
		prefix, text = "whsec", secret
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return k, errors.New("is not base64: it must be padded base64 after whsec_, whpk_ or whsk_ (Stripe's whsec_ secrets are not base64: use Stripe)")
	}
	n := len(key)
	switch prefix {
	case "whsec":
		if n < 24 || n > 64 {
			return k, fmt.Errorf("is %d bytes long once decoded: it must be 24 to 64 (Standard Webhooks)", n)
		}
		k.mac = key
	case "whpk":
		if n != ed25519.PublicKeySize {
			return k, fmt.Errorf("is %d bytes long once decoded: it must be %d, a public key of ed25519", n, ed25519.PublicKeySize)
		}
		k.public = key
	case "whsk":
		switch n {
		case ed25519.SeedSize:
			k.private = ed25519.NewKeyFromSeed(key)
		case ed25519.PrivateKeySize:
			k.private = key
		default:
			return k, fmt.Errorf("is %d bytes long once decoded: it must be %d, a private key of ed25519, or %d, its seed", n, ed25519.PrivateKeySize, ed25519.SeedSize)
		}
	default:
		return k, errors.New("is of an unknown kind: it must begin with whsec_, whpk_ or whsk_")
	}
	return k, nil
}

func hmacSHA256(key []byte, signed ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range signed {
		mac.Write(part)
	}
	return mac.Sum(nil)
}
