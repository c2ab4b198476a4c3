package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
)

// Stripe verifies Stripe's scheme v1 (https://docs.stripe.com/webhooks): HMAC-SHA256 over the timestamp and the body,
// in the header Stripe-Signature. The key is the whole secret including "whsec_", not decoded. Each signature is tried
// with each secret; schemes other than v1 are ignored.
//
// ID, Type and OccurredAt are those of the event in the signed body. Stripe counts OccurredAt in seconds, so two events
// may share it. Bodies that differ only in the number pending_webhooks are the same event: Stripe counts there the
// endpoints that have not acknowledged the event yet. Nor does an id in another api_version make another event: during an upgrade
// Stripe sends each event to two endpoints, in two versions. The handler gets the one that came first.
//
// One to 16 secrets, each of 16 bytes or more, the current one first. The error says for each unusable secret which rule it breaks.
func Stripe(secrets ...string) (Verifier, error) {
	keys, err := signing.Secrets("Stripe", secrets, signing.PlainSecret)
	if err != nil {
		return nil, err
	}
	return stripe(keys), nil
}

type stripe [][]byte

func (keys stripe) secrets() int { return len(keys) }

// resentWithin: Stripe keeps its events for 30 days (https://docs.stripe.com/api/events), and people send them again by hand as
// long as it has them.
func (stripe) resentWithin() time.Duration { return 30 * 24 * time.Hour }

func (keys stripe) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	value, err := header(h, signing.StripeHeader)
	if err != nil {
		return Delivery{}, err
	}
	timestamp, signatures, err := splitStripe(value)
	if err != nil {
		return Delivery{}, err
	}
	at, err := checkTime(signing.StripeHeader, timestamp, now)
	if err != nil {
		return Delivery{}, err
	}
	secret, err := matching(keys, signatures, []byte(timestamp+"."), body)
	if err != nil {
		return Delivery{}, err
	}
	var event struct {
		ID         string   `json:"id"`
		Type       string   `json:"type"`
		Created    jsonTime `json:"created"`
		APIVersion string   `json:"api_version"`
	}
	if err := json.Unmarshal(body, &event); err != nil || event.ID == "" {
		return Delivery{}, refuse(ReasonContent, "the body must be a JSON object with an id")
	}
	return Delivery{
		ID:         event.ID,
		IDSigned:   true,
		Type:       event.Type,
		Timestamp:  at,
		OccurredAt: event.Created.Time,
		Scheme:     "v1",
		Secret:     secret,
		content:    inVersion(stripeContent(body), event.APIVersion),
	}, nil
}

// inVersion adds a hash of the version of Stripe's API to that of a content. The inbox takes one id in two versions for one event.
func inVersion(content []byte, version string) []byte {
	if content == nil || version == "" {
		return content
	}
	sum := sha256.Sum256([]byte(version))
	return append(content, sum[:8]...)
}

// stripeContent is the SHA-256 of an event's body without the number in pending_webhooks. Stripe's API reference of the
// Event object says that it counts the endpoints that have not acknowledged the event yet. With two endpoints, an
// attempt after the other endpoint's answer has the same id and another number. All other bytes count. It returns nil
// if there is no such number. The body must be JSON.
func stripeContent(body []byte) []byte {
	fields := json.NewDecoder(bytes.NewReader(body))
	if begin, err := fields.Token(); err != nil || begin != json.Delim('{') {
		return nil
	}
	h, hashed := sha256.New(), 0
	for fields.More() {
		name, err := fields.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if err := fields.Decode(&value); err != nil {
			return nil
		}
		if end := int(fields.InputOffset()); name == "pending_webhooks" && isCount(value) {
			h.Write(body[hashed : end-len(value)])
			hashed = end
		}
	}
	if hashed == 0 {
		return nil
	}
	h.Write(body[hashed:])
	return h.Sum(nil)
}

// isCount reports whether a value is a plain count. What is left out of the hash must not be able to carry anything
// else.
func isCount(value []byte) bool {
	return !bytes.ContainsFunc(value, func(r rune) bool { return r < '0' || r > '9' })
}

// splitStripe reads "t=1,v1=…,v1=…". It skips a signature that is not hexadecimal, and refuses a malformed pair.
func splitStripe(value string) (timestamp string, signatures [][]byte, err error) {
	for pair := range strings.SplitSeq(value, ",") {
		name, text, found := strings.Cut(pair, "=")
		switch {
		case !found:
			return "", nil, refuse(ReasonMalformed, "header %s must be pairs of name and value", signing.StripeHeader)
		case name == "t" && timestamp != "":
			return "", nil, refuse(ReasonMalformed, "header %s has more than one time", signing.StripeHeader)
		case name == "t":
			timestamp = text
		case name == "v1" && len(signatures) < maxSignatures:
			if signature, err := hex.DecodeString(text); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	if timestamp == "" || len(signatures) == 0 {
		return "", nil, refuse(ReasonMissing, "header %s has no time, or no signature v1", signing.StripeHeader)
	}
	return timestamp, signatures, nil
}

// jsonTime is a time in a body: seconds since 1970, or RFC 3339. Anything else is the zero time, and no reason to
// refuse signed content.
type jsonTime struct{ time.Time }

func (t *jsonTime) UnmarshalJSON(text []byte) error {
	if seconds, err := strconv.ParseInt(string(text), 10, 64); err == nil && seconds > 0 && seconds < 1<<35 {
		t.Time = time.Unix(seconds, 0).UTC()
	} else if at, err := time.Parse(`"`+time.RFC3339+`"`, string(text)); err == nil {
		t.Time = at.UTC()
	}
	return nil
}
