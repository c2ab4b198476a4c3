package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// This file decides and does nothing.

// deliveryHeader carries the provider's id of an event that has another.
const deliveryHeader = "webhook-delivery"

// event says which event a delivery is. Its error is a *RefusedError: what was signed makes none.
func (c Config) event(source string, d Delivery, h http.Header, body []byte, now time.Time) (holdfast.Event, error) {
	e := holdfast.Event{Source: source, Topic: c.Topic, Type: c.TypeFunc(d, body), Key: c.KeyFunc(d, body), Payload: body, Time: now}
	for _, at := range []time.Time{d.Timestamp, d.OccurredAt} {
		if !at.IsZero() {
			e.Time = at
		}
	}
	if !text(e.Type, 1, 255) {
		return e, refuse(ReasonContent, "the event's type must have 1 to 255 bytes of UTF-8")
	}
	if !text(e.Key, 0, 1024) {
		return e, refuse(ReasonContent, "the event's key must have at most 1024 bytes of UTF-8")
	}
	e.Headers = c.headers(h)
	switch e.ID = d.ID; {
	case d.ID == "", !d.IDSigned && c.Unsigned == ByBody:
		e.ID = bodyID(e.Type, body)
		if text(d.ID, 1, 255) {
			e.Headers[deliveryHeader] = d.ID
		}
	case !text(d.ID, 1, 255):
		return e, refuse(ReasonContent, "the event's id must have 1 to 255 bytes of UTF-8")
	}
	return e, nil
}

// bodyID names an event by what it says. The type is part of it: Shopify tells of one order under several topics with the
// same body.
func bodyID(eventType string, body []byte) string {
	h := sha256.New()
	h.Write([]byte(eventType))
	h.Write([]byte{0}) // No type holds it.
	h.Write(body)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// headers are those of the request that the event is to carry.
func (c Config) headers(h http.Header) map[string]string {
	kept := map[string]string{}
	for _, name := range c.Headers {
		if value := strings.Join(h.Values(name), ", "); text(value, 1, maxHeader) {
			kept[strings.ToLower(name)] = value
		}
	}
	return kept
}
