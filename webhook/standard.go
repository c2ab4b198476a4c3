package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
)

// Standard verifies Standard Webhooks 1.0.0 (https://www.standardwebhooks.com): the headers webhook-id,
// webhook-timestamp and webhook-signature, or their older names svix-id and so on. The signature covers the id, the
// timestamp and the body.
//
// A secret for HMAC-SHA256 (v1) is "whsec_" and base64, or the base64 alone, of 24 to 64 bytes. A public key for
// ed25519 (v1a) is "whpk_" and base64. Give several secrets while you replace one. Each is tried only on signatures of
// its kind; signatures of other versions are skipped. An id must keep the signed text unambiguous: 1 to 128 printable
// ASCII characters without '.' and space.
//
// Type and OccurredAt come from "type" and "timestamp" of a JSON body, as the specification recommends. The error says
// for each unusable secret which rule it breaks.
func Standard(secrets ...string) (Verifier, error) {
	keys, err := signing.Secrets("Standard Webhooks", secrets, func(secret string) (signing.Key, error) {
		k, err := signing.StandardSecret(secret)
		if err == nil && k.Private != nil {
			err = errors.New("is a private key (whsk_): it must be a public key (whpk_); the private one stays with the sender")
		}
		return k, err
	})
	if err != nil {
		return nil, err
	}
	return standard(keys), nil
}

type standard []signing.Key

func (keys standard) secrets() int { return len(keys) }

func (keys standard) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	// 1. Read the headers, all under one family of names: they were signed together.
	name := "webhook-"
	if len(h.Values(name+"id")) == 0 && len(h.Values("svix-id")) > 0 {
		name = "svix-"
	}
	id, err := header(h, name+"id")
	if err != nil {
		return Delivery{}, err
	}
	timestamp, err := header(h, name+"timestamp")
	if err != nil {
		return Delivery{}, err
	}
	signatures, err := header(h, name+"signature")
	if err != nil {
		return Delivery{}, err
	}
	if err := checkID(name+"id", id, "."); err != nil {
		return Delivery{}, err
	}
	at, err := checkTime(name+"timestamp", timestamp, now)
	if err != nil {
		return Delivery{}, err
	}
	// 2. Match one of the signatures with one of the keys of its kind.
	scheme, secret, err := keys.match(signatures, id+"."+timestamp+".", body)
	if err != nil {
		return Delivery{}, err
	}
	// 3. Only now read the body.
	var said struct {
		Type      string   `json:"type"`
		Timestamp jsonTime `json:"timestamp"`
	}
	_ = json.Unmarshal(body, &said) // The body need not be JSON.
	return Delivery{
		ID:         id,
		IDSigned:   true,
		Type:       said.Type,
		Timestamp:  at,
		OccurredAt: said.Timestamp.Time,
		Scheme:     scheme,
		Secret:     secret,
	}, nil
}

func (keys standard) match(list, prefix string, body []byte) (scheme string, secret int, err error) {
	sums := make([][]byte, len(keys)) // by secret, computed when needed
	var message []byte                // the signed text in one piece, for ed25519
	examined, tried := 0, 0
	for _, signature := range strings.Fields(list) {
		version, text, _ := strings.Cut(signature, ",")
		if version != "v1" && version != "v1a" {
			continue
		}
		if examined++; examined > maxSignatures {
			break
		}
		sent, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			continue
		}
		for i, k := range keys {
			switch {
			case version == "v1" && k.MAC != nil:
				if sums[i] == nil {
					sums[i] = signing.HMAC(k.MAC, []byte(prefix), body)
				}
				if hmac.Equal(sums[i], sent) {
					return version, i, nil
				}
			case version == "v1a" && k.Public != nil && len(sent) == ed25519.SignatureSize && tried < maxSignatures:
				tried++ // Each costs a pass over the body.
				if message == nil {
					message = append([]byte(prefix), body...)
				}
				if ed25519.Verify(k.Public, message, sent) {
					return version, i, nil
				}
			}
		}
	}
	return "", 0, refuse(ReasonMismatch, "none of the first %d signatures of a known version matches one of %d secrets", maxSignatures, len(keys))
}
