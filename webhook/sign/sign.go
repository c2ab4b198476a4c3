package sign

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
)

// Standard returns the headers of a request under Standard Webhooks, with one signature for each secret: v1 for
// "whsec_" or bare base64, v1a for "whsk_", the private key. Use the same id for every retry of an event, and sign each
// attempt at its own time. The error says which rule a secret or the id breaks.
func Standard(id string, at time.Time, body []byte, secrets ...string) (http.Header, error) {
	keys, err := signing.Secrets("Standard Webhooks", secrets, signing.StandardSecret)
	if err != nil {
		return nil, err
	}
	if id == "" || len(id) > signing.MaxID || !signing.Printable(id, ".") {
		return nil, errors.New("sign webhook: the id must be 1 to 128 printable characters without '.' and space")
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	prefix := []byte(id + "." + timestamp + ".")
	signatures := make([]string, len(keys))
	for i, k := range keys {
		switch {
		case k.MAC != nil:
			signatures[i] = "v1," + base64.StdEncoding.EncodeToString(signing.HMAC(k.MAC, prefix, body))
		case k.Private != nil:
			signatures[i] = "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(k.Private, append(prefix[:len(prefix):len(prefix)], body...)))
		default:
			return nil, fmt.Errorf("sign webhook: secret %d of %d is a public key (whpk_): it must be the private one (whsk_)", i+1, len(keys))
		}
	}
	return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {strings.Join(signatures, " ")}}, nil
}

// Stripe returns the header of a request as Stripe signs it, with one signature for each secret. The body contains
// the event's id. The error says which rule of webhook.Stripe a secret breaks.
func Stripe(at time.Time, body []byte, secrets ...string) (http.Header, error) {
	keys, err := signing.Secrets("Stripe", secrets, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	value := "t=" + timestamp
	for _, key := range keys {
		value += ",v1=" + hex.EncodeToString(signing.HMAC(key, []byte(timestamp+"."), body))
	}
	return http.Header{signing.StripeHeader: {value}}, nil
}

// GitHub returns the headers of a request as GitHub signs it. Use the same id for every retry of an event.
// The error says which rule of webhook.GitHub the secret breaks.
func GitHub(id, eventType string, body []byte, secret string) (http.Header, error) {
	keys, err := signing.Secrets("GitHub", []string{secret}, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	h.Set(signing.GitHubID, id)
	h.Set(signing.GitHubType, eventType)
	h.Set(signing.GitHubHeader, "sha256="+hex.EncodeToString(signing.HMAC(keys[0], body)))
	return h, nil
}

// Slack returns the headers of a request as Slack signs it. The body contains the event's id. The error says which
// rule of webhook.Slack the secret breaks.
func Slack(at time.Time, body []byte, secret string) (http.Header, error) {
	keys, err := signing.Secrets("Slack", []string{secret}, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	return http.Header{
		signing.SlackTimeHeader: {timestamp},
		signing.SlackHeader:     {"v0=" + hex.EncodeToString(signing.HMAC(keys[0], []byte("v0:"+timestamp+":"), body))},
	}, nil
}

// Shopify returns the headers of a request as Shopify signs it. Use the same id for every retry of an event.
// The error says which rule of webhook.Shopify the secret breaks.
func Shopify(id, topic string, body []byte, secret string) (http.Header, error) {
	keys, err := signing.Secrets("Shopify", []string{secret}, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	h.Set(signing.ShopifyID, id)
	h.Set(signing.ShopifyType, topic)
	h.Set(signing.ShopifyHeader, base64.StdEncoding.EncodeToString(signing.HMAC(keys[0], body)))
	return h, nil
}
