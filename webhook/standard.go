package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Standard verifies Standard Webhooks 1.0.0 (https://www.standardwebhooks.com): the headers webhook-id, webhook-timestamp
// and webhook-signature, or their elder names svix-id and so on. What is signed is the id, the timestamp and the body.
//
// A secret is "whsec_" and base64, or the base64 alone, for HMAC-SHA256 (v1), 24 to 64 bytes; or "whpk_" and base64, a
// public key for ed25519 (v1a). Give several while one takes another's place; each is tried only on signatures of its
// kind, and signatures of other versions are passed over. Of an id is asked what keeps the signed text unambiguous: 1 to
// 128 printable characters of ASCII without '.' and space.
//
// Type and OccurredAt are "type" and "timestamp" of a JSON body, where the specification recommends them. An error says
// which rule each secret breaks that cannot be used.
func Standard(secrets ...string) (Verifier, error) {
	keys, err := readSecrets("Standard Webhooks", secrets, func(secret string) (standardKey, error) {
		k, err := readStandardKey(secret)
		if err == nil && k.private != nil {
			err = errors.New("it is a private key (whsk_), which stays with the sender: give the public one (whpk_)")
		}
		return k, err
	})
	if err != nil {
		return nil, err
	}
	return standard(keys), nil
}

type standard []standardKey

func (keys standard) secrets() int { return len(keys) }

func (keys standard) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	// 1. The headers, all under one name: what is not signed together is not read together.
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
	// 2. One of the signatures, with one of the keys of its kind.
	scheme, secret, err := keys.match(signatures, id+"."+timestamp+".", body)
	if err != nil {
		return Delivery{}, err
	}
	// 3. Only now the body is read.
	var said struct {
		Type      string   `json:"type"`
		Timestamp jsonTime `json:"timestamp"`
	}
	_ = json.Unmarshal(body, &said) // A body may be anything.
	return Delivery{ID: id, IDSigned: true, Type: said.Type, Timestamp: at, OccurredAt: said.Timestamp.Time, Scheme: scheme, Secret: secret}, nil
}

func (keys standard) match(list, prefix string, body []byte) (scheme string, secret int, err error) {
	sums := make([][]byte, len(keys)) // by secret, made when it is needed
	var message []byte                // the same for ed25519, which wants it in one piece
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
			case version == "v1" && k.mac != nil:
				if sums[i] == nil {
					sums[i] = hmacSHA256(k.mac, []byte(prefix), body)
				}
				if hmac.Equal(sums[i], sent) {
					return version, i, nil
				}
			case version == "v1a" && k.public != nil && len(sent) == ed25519.SignatureSize && tried < maxSignatures:
				tried++ // Each costs a pass over the body, for any sender.
				if message == nil {
					message = append([]byte(prefix), body...)
				}
				if ed25519.Verify(k.public, message, sent) {
					return version, i, nil
				}
			}
		}
	}
	return "", 0, refuse(ReasonMismatch, "none of the first %d signatures of a known version fits one of %d secrets", maxSignatures, len(keys))
}

// SignStandard returns the headers of a request under Standard Webhooks: one signature for each secret, v1 with "whsec_"
// or bare base64, v1a with "whsk_", the private key. Keep the id over the retries of an event, and sign each try anew at
// its own time.
func SignStandard(id string, at time.Time, body []byte, secrets ...string) (http.Header, error) {
	keys, err := readSecrets("Standard Webhooks", secrets, readStandardKey)
	if err != nil {
		return nil, err
	}
	if err := checkID("webhook-id", id, "."); err != nil || id == "" {
		return nil, errors.New("sign webhook: the id must have 1 to 128 printable characters without '.' and space")
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	prefix := []byte(id + "." + timestamp + ".")
	signatures := make([]string, len(keys))
	for i, k := range keys {
		switch {
		case k.mac != nil:
			signatures[i] = "v1," + base64.StdEncoding.EncodeToString(hmacSHA256(k.mac, prefix, body))
		case k.private != nil:
			signatures[i] = "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(k.private, append(prefix[:len(prefix):len(prefix)], body...)))
		default:
			return nil, fmt.Errorf("sign webhook: secret %d of %d is a public key (whpk_): give the private one (whsk_)", i+1, len(keys))
		}
	}
	return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {strings.Join(signatures, " ")}}, nil
}
