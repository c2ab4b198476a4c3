package webhook

import (
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
)

// GitHub verifies GitHub's X-Hub-Signature-256: HMAC-SHA256 over the body alone
// (https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries). It ignores the older header with
// SHA-1.
//
// ID is X-GitHub-Delivery and Type is X-GitHub-Event. GitHub signs neither of them, nor a time. So IDSigned is false, a
// recorded request can be sent again at any time, and Config.Unsigned decides how a repeat is recognised.
//
// One to 16 secrets, each of 16 bytes or more, the current one first. The error says for each unusable secret which rule it breaks.
func GitHub(secrets ...string) (Verifier, error) {
	keys, err := signing.Secrets("GitHub", secrets, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	return github(keys), nil
}

type github [][]byte

func (keys github) secrets() int { return len(keys) }

func (github) signsNoTime() bool { return true }

func (keys github) Verify(h http.Header, body []byte, _ time.Time) (Delivery, error) {
	value, err := header(h, signing.GitHubHeader)
	if err != nil {
		return Delivery{}, err
	}
	text, found := strings.CutPrefix(value, "sha256=")
	signature, err := hex.DecodeString(text)
	if !found || err != nil {
		return Delivery{}, refuse(ReasonMalformed, "header %s must be sha256= and hexadecimal digits", signing.GitHubHeader)
	}
	secret, err := matching(keys, [][]byte{signature}, body)
	if err != nil {
		return Delivery{}, err
	}
	return unsigned(h, Delivery{Scheme: "sha256", Secret: secret}, signing.GitHubID, signing.GitHubType)
}

// unsigned adds id and type from headers that are not signed.
func unsigned(h http.Header, d Delivery, id, eventType string) (_ Delivery, err error) {
	if d.ID, err = optional(h, id); err != nil {
		return Delivery{}, err
	}
	if err := checkID(id, d.ID, ""); err != nil {
		return Delivery{}, err
	}
	if d.Type, err = optional(h, eventType); err != nil {
		return Delivery{}, err
	}
	return d, nil
}
