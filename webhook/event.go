package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file decides which event a delivery is; it does nothing else.

// deliveryHeader carries the provider's id if the event has another one.
const deliveryHeader = "webhook-delivery"

// event returns the event of a delivery. Its error is a *RefusedError: the signed content makes no valid event.
func (c Config) event(source string, d Delivery, h http.Header, body []byte, now time.Time) (holdfast.Event, error) {
	e := holdfast.Event{
		Source:  source,
		Topic:   c.Topic,
		Type:    c.TypeFunc(d, body),
		Key:     c.KeyFunc(d, body),
		Payload: body,
		Time:    now,
	}
	for _, at := range []time.Time{d.Timestamp, d.OccurredAt} {
		if !at.IsZero() {
			e.Time = at
		}
	}
	if !text(e.Type, 1, 255) {
		return e, refuse(ReasonContent, "the event's type must be 1 to 255 bytes of UTF-8")
	}
	if !text(e.Key, 0, 1024) {
		return e, refuse(ReasonContent, "the event's key must be at most 1024 bytes of UTF-8")
	}
	e.Headers = c.headers(h)
	switch e.ID = d.ID; {
	case d.ID == "", !d.IDSigned && c.Unsigned == ByBody:
		e.ID = bodyID(e.Type, body)
		if text(d.ID, 1, 255) {
			e.Headers[deliveryHeader] = d.ID
		}
	case !text(d.ID, 1, 255):
		return e, refuse(ReasonContent, "the event's id must be 1 to 255 bytes of UTF-8")
	}
	return e, nil
}

// bodyID makes an event's id from its content. The type is part of it: Shopify sends one order under several topics
// with the same body.
func bodyID(eventType string, body []byte) string {
	h := sha256.New()
	h.Write([]byte(eventType))
	h.Write([]byte{0}) // a byte that no type contains
	h.Write(body)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// addHeaders adds to kept what the Observer gave for the event: all of it, or nothing if one of them is not valid.
func addHeaders(kept, more map[string]string) {
	for name, value := range more {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) || wire.Reserved(name) || !text(value, 1, maxHeader) {
			return
		}
	}
	maps.Copy(kept, more)
}

// headers returns the request headers that the event carries.
func (c Config) headers(h http.Header) map[string]string {
	kept := map[string]string{}
	for _, name := range c.Headers {
		if value := strings.Join(h.Values(name), ", "); text(value, 1, maxHeader) {
			kept[strings.ToLower(name)] = value
		}
	}
	return kept
}
