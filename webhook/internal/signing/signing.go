// Package signing has what those who verify webhooks and those who sign them share: the names of the providers' headers, the rules of
// their secrets, and the HMAC.
package signing

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// The headers of the providers' signatures, and of ids, types and times.
const (
	GitHubHeader    = "X-Hub-Signature-256"
	GitHubID        = "X-GitHub-Delivery"
	GitHubType      = "X-GitHub-Event"
	ShopifyHeader   = "X-Shopify-Hmac-Sha256"
	ShopifyID       = "X-Shopify-Event-Id"
	ShopifyType     = "X-Shopify-Topic"
	SlackHeader     = "X-Slack-Signature"
	SlackTimeHeader = "X-Slack-Request-Timestamp"
	StripeHeader    = "Stripe-Signature"
)

const (
	// MaxSecrets is the maximum number of secrets of a verifier: each costs an HMAC over the body.
	MaxSecrets = 16

	// MaxID is the maximum length of an id from a header in bytes.
	MaxID = 128

	// minSecret is the minimum length in bytes of a secret that is used as it is. A shorter one can be guessed from one
	// signed request.
	minSecret = 16
)

// Secrets reads every secret. For each one that cannot be used, the error says which rule it breaks, but never
// shows it. An error of read begins with "is".
func Secrets[K any](provider string, secrets []string, read func(string) (K, error)) ([]K, error) {
	var problems []error
	if n := len(secrets); n == 0 || n > MaxSecrets {
		problems = append(problems, fmt.Errorf("number of secrets is %d: it must be 1 to %d, the current one first", n, MaxSecrets))
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

// PlainSecret is a secret that is used as it is.
func PlainSecret(secret string) ([]byte, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("is %d bytes long: it must be at least %d", len(secret), minSecret)
	}
	return []byte(secret), nil
}

// Key is a secret of Standard Webhooks. MAC is set for v1, Public for v1a, and Private if it can sign. An HMAC
// key is never tried on v1a, nor a public key on v1.
type Key struct {
	MAC     []byte
	Public  ed25519.PublicKey
	Private ed25519.PrivateKey
}

// StandardSecret reads a secret of Standard Webhooks.
func StandardSecret(secret string) (k Key, err error) {
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
		k.MAC = key
	case "whpk":
		if n != ed25519.PublicKeySize {
			return k, fmt.Errorf("is %d bytes long once decoded: it must be %d, a public key of ed25519", n, ed25519.PublicKeySize)
		}
		k.Public = key
	case "whsk":
		switch n {
		case ed25519.SeedSize:
			k.Private = ed25519.NewKeyFromSeed(key)
		case ed25519.PrivateKeySize:
			k.Private = key
		default:
			return k, fmt.Errorf("is %d bytes long once decoded: it must be %d, a private key of ed25519, or %d, its seed", n, ed25519.PrivateKeySize, ed25519.SeedSize)
		}
	default:
		return k, errors.New("is of an unknown kind: it must begin with whsec_, whpk_ or whsk_")
	}
	return k, nil
}

// Printable says whether an id has only printable ASCII characters, and neither space nor one of without.
func Printable(id, without string) bool {
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || strings.IndexByte(without, c) >= 0 {
			return false
		}
	}
	return true
}

// HMAC is the HMAC-SHA256 of the parts of what is signed, one after the other.
func HMAC(key []byte, signed ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range signed {
		mac.Write(part)
	}
	return mac.Sum(nil)
}
