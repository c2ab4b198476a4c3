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
	// minSecret is the fewest bytes of a secret that is used as it stands. Fewer can be guessed from one signed request.
	minSecret = 16

	// maxSecrets is how many secrets a verifier takes: each costs an HMAC over the body.
	maxSecrets = 16
)

// readSecrets reads every secret, or says of each that cannot be used which rule it breaks, and never what it is.
func readSecrets[K any](provider string, secrets []string, read func(string) (K, error)) ([]K, error) {
	var problems []error
	if n := len(secrets); n == 0 || n > maxSecrets {
		problems = append(problems, fmt.Errorf("there are %d secrets: give 1 to %d, the current one first", n, maxSecrets))
	}
	keys := make([]K, 0, len(secrets))
	for i, secret := range secrets {
		key, err := read(secret)
		switch {
		case secret == "":
			err = errors.New("it is empty: anyone could sign with it")
		case strings.TrimSpace(secret) != secret:
			err = errors.New("it has white space around it: as from a file that ends with a line break")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("secret %d of %d: %w", i+1, len(secrets), err))
		}
		keys = append(keys, key)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("webhook secrets of %s: %w", provider, err)
	}
	return keys, nil
}

// plainSecret is a secret that is used as it stands.
func plainSecret(secret string) ([]byte, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("it has %d bytes: it must have at least %d", len(secret), minSecret)
	}
	return []byte(secret), nil
}

// standardKey is a secret of Standard Webhooks: for v1 mac is set, for v1a public, and private where it can sign. An HMAC
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
		return k, errors.New("it is not base64, padded, behind whsec_, whpk_ or whsk_ (Stripe's whsec_ secrets are not: use Stripe)")
	}
	n := len(key)
	switch prefix {
	case "whsec":
		if n < 24 || n > 64 {
			return k, fmt.Errorf("it has %d bytes once decoded: Standard Webhooks has 24 to 64", n)
		}
		k.mac = key
	case "whpk":
		if n != ed25519.PublicKeySize {
			return k, fmt.Errorf("it has %d bytes once decoded: a public key of ed25519 has %d", n, ed25519.PublicKeySize)
		}
		k.public = key
	case "whsk":
		switch n {
		case ed25519.SeedSize:
			k.private = ed25519.NewKeyFromSeed(key)
		case ed25519.PrivateKeySize:
			k.private = key
		default:
			return k, fmt.Errorf("it has %d bytes once decoded: a private key of ed25519 has %d, or %d as a seed", n, ed25519.PrivateKeySize, ed25519.SeedSize)
		}
	default:
		return k, errors.New("its prefix is not whsec_, whpk_ or whsk_")
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
