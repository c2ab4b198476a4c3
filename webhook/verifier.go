package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Tolerance is how far the time that a request was signed at may lie from ours, before and after. It is five minutes, as
// the Standard Webhooks specification, Stripe and Slack have it.
const Tolerance = 5 * time.Minute

// Verifier finds out whether a request is the provider's own: by its headers, the bytes of its body as they came, and the
// time. It has no clock and keeps nothing. An error is a *RefusedError; the delivery is then empty. Verifiers may be
// called from many goroutines at once.
type Verifier interface {
	Verify(h http.Header, body []byte, now time.Time) (Delivery, error)
}

// VerifierFunc is a Verifier that is a function: for a provider that is not among ours, or to load new secrets while the
// process runs.
type VerifierFunc func(h http.Header, body []byte, now time.Time) (Delivery, error)

// Verify calls f.
func (f VerifierFunc) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	return f(h, body, now)
}

// Delivery is what is known of a request that was verified.
type Delivery struct {
	// ID is the provider's name for the event, the same at each retry; "" where it gives none.
	ID string

	// IDSigned says that the signature covers ID. Otherwise an attacker who has seen one request can send it again under any ID:
	// see Config.Unsigned.
	IDSigned bool

	// Type says what happened, "" where the provider does not say. GitHub and Shopify do not sign it.
	Type string

	// Timestamp is when this request was signed; each retry has its own. Zero where the provider signs no time.
	Timestamp time.Time

	// OccurredAt is when it happened, as the signed body says. Zero where it does not say.
	OccurredAt time.Time

	// Scheme is the kind of signature that matched, as the provider calls it: "v1", "v1a", "v0", "sha256".
	Scheme string

	// Secret says which of the verifier's secrets matched, from 0 in the order in which they were given: to see when an
	// old one is out of use.
	Secret int

	// Answer, where it is not nil, is what the provider wants to be sent back at once. The request is a handshake then, and
	// no event.
	Answer []byte

	// content is the SHA-256 of what the body says at each try of the event; nil where that is all of it.
	content []byte
}

// Reason is why a request was refused, in one word: for metrics. The sender is never told.
type Reason string

// The reasons.
const (
	ReasonMissing   Reason = "missing"   // a header that the signature needs is not there
	ReasonMalformed Reason = "malformed" // a header breaks its rules
	ReasonTooOld    Reason = "too_old"   // it was signed longer than Tolerance ago: a replay, or a clock that is wrong
	ReasonTooNew    Reason = "too_new"   // it was signed more than Tolerance in the future
	ReasonMismatch  Reason = "mismatch"  // no signature fits any secret
	ReasonExpired   Reason = "expired"   // it fits a secret that Until has ended
	ReasonContent   Reason = "content"   // the signature fits, but what it signs makes no event

	ReasonMethod   Reason = "method"   // it is no POST
	ReasonEncoding Reason = "encoding" // its body is compressed
	ReasonSize     Reason = "size"     // its body is larger than Config.MaxBody
	ReasonBroken   Reason = "broken"   // its body ended early
)

// RefusedError says why a request was refused. It holds no value of the request, so that it may be logged.
type RefusedError struct {
	Reason Reason
	Rule   string // what was wrong, and what is asked for
}

func (e *RefusedError) Error() string { return "refused, " + string(e.Reason) + ": " + e.Rule }

func refuse(reason Reason, format string, args ...any) error {
	return &RefusedError{reason, fmt.Sprintf(format, args...)}
}

// AnyOf is a Verifier that tries others in their order, for secrets with dates (Until) and for a change from one scheme
// to another. Delivery.Secret counts through all of them.
func AnyOf(verifiers ...Verifier) Verifier { return anyOf(verifiers) }

type anyOf []Verifier

func (vs anyOf) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	err := refuse(ReasonMismatch, "there is no verifier")
	before := 0
	for i, v := range vs {
		d, failed := v.Verify(h, body, now)
		if failed == nil {
			d.Secret += before
			return d, nil
		}
		if i == 0 || reasonOf(failed) == ReasonExpired { // This one says most.
			err = failed
		}
		before += secretsOf(v)
	}
	return Delivery{}, err
}

func (vs anyOf) secrets() (n int) {
	for _, v := range vs {
		n += secretsOf(v)
	}
	return n
}

func (vs anyOf) signsNoTime() bool { return slices.ContainsFunc(vs, signsNoTime) }

// Until is v up to a moment, and refuses from then on what v accepts: for the secret before the current one.
func Until(end time.Time, v Verifier) Verifier { return until{v, end} }

type until struct {
	Verifier
	end time.Time
}

func (u until) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	d, err := u.Verifier.Verify(h, body, now)
	if err == nil && !now.Before(u.end) { // Said after the signature was found good: the sender has to change its secret.
		return Delivery{}, refuse(ReasonExpired, "the secret was good until %s", u.end.UTC().Format(time.RFC3339))
	}
	return d, err
}

func (u until) secrets() int { return secretsOf(u.Verifier) }

func (u until) signsNoTime() bool { return signsNoTime(u.Verifier) }

// secretsOf says how many places of Delivery.Secret a verifier takes.
func secretsOf(v Verifier) int {
	if s, ok := v.(interface{ secrets() int }); ok {
		return s.secrets()
	}
	return 1
}

// signsNoTime says whether requests that a verifier accepts may be of any age. One that is not ours cannot say; its
// deliveries do.
func signsNoTime(v Verifier) bool {
	s, ok := v.(interface{ signsNoTime() bool })
	return ok && s.signsNoTime()
}

// reasonOf is the reason of a refusal, "" where there is none.
func reasonOf(err error) Reason {
	var refused *RefusedError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused):
		return refused.Reason
	default:
		return ReasonMismatch // A verifier that is not ours.
	}
}
