package webhook

import (
	"encoding/base64"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
)

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
	keys, err := signing.Secrets("Shopify", secrets, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	return shopify(keys), nil
}

type shopify [][]byte

func (keys shopify) secrets() int { return len(keys) }

func (shopify) signsNoTime() bool { return true }

func (keys shopify) Verify(h http.Header, body []byte, _ time.Time) (Delivery, error) {
	value, err := header(h, signing.ShopifyHeader)
	if err != nil {
		return Delivery{}, err
	}
	signature, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return Delivery{}, refuse(ReasonMalformed, "header %s must be base64", signing.ShopifyHeader)
	}
	secret, err := matching(keys, [][]byte{signature}, body)
	if err != nil {
		return Delivery{}, err
	}
	d, err := unsigned(h, Delivery{Scheme: "sha256", Secret: secret}, signing.ShopifyID, signing.ShopifyType)
	if d.ID != "" {
		d.ID = d.Type + "/" + d.ID
	}
	return d, err
}
