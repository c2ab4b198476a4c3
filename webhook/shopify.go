package webhook

import (
	"encoding/base64"
	"net/http"
	"time"
)

const shopifyHeader = "X-Shopify-Hmac-Sha256"

// Shopify verifies Shopify's X-Shopify-Hmac-Sha256: HMAC-SHA256 over the body alone, in base64
// (https://shopify.dev/docs/apps/build/webhooks/subscribe/https). The secret is the app's, the same for all its shops.
//
// Type is X-Shopify-Topic. ID is the topic and X-Shopify-Event-Id, because one event of a merchant goes to several
// topics under one id. Shopify signs neither of them, nor a time, nor the shop (X-Shopify-Shop-Domain). So IDSigned is
// false, a recorded request can be sent again at any time, and Config.Unsigned decides how a repeat is recognised. Take
// the shop from the body only.
//
// One to 16 secrets, each of 16 bytes or more, the current one first. The error says for each unusable secret which rule it breaks.
func Shopify(secrets ...string) (Verifier, error) {
	keys, err := readSecrets("Shopify", secrets, plainSecret)
	if err != nil {
		return nil, err
	}
	return shopify(keys), nil
}

type shopify [][]byte

func (keys shopify) secrets() int { return len(keys) }

func (shopify) signsNoTime() bool { return true }

func (keys shopify) Verify(h http.Header, body []byte, _ time.Time) (Delivery, error) {
	value, err := header(h, shopifyHeader)
	if err != nil {
		return Delivery{}, err
	}
	signature, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return Delivery{}, refuse(ReasonMalformed, "header %s must be base64", shopifyHeader)
	}
	secret, err := matching(keys, [][]byte{signature}, body)
	if err != nil {
		return Delivery{}, err
	}
	d, err := unsigned(h, Delivery{Scheme: "sha256", Secret: secret}, "X-Shopify-Event-Id", "X-Shopify-Topic")
	if d.ID != "" {
		d.ID = d.Type + "/" + d.ID
	}
	return d, err
}

// SignShopify returns the headers of a request as Shopify signs it. Use the same id for every retry of an event.
// The error says which rule a secret breaks; it is the rule of Shopify.
func SignShopify(id, topic string, body []byte, secret string) (http.Header, error) {
	keys, err := readSecrets("Shopify", []string{secret}, plainSecret)
	if err != nil {
		return nil, err
	}
	h := http.Header{}
	h.Set("X-Shopify-Event-Id", id)
	h.Set("X-Shopify-Topic", topic)
	h.Set(shopifyHeader, base64.StdEncoding.EncodeToString(hmacSHA256(keys[0], body)))
	return h, nil
}
