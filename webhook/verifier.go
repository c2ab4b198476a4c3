package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Verifier decides whether a request comes from the provider, by its headers, the raw bytes of its body, and the time.
// It has no clock and no state. An error is a *RefusedError; the Delivery is then empty. Many goroutines may call a
// Verifier at once.
type Verifier interface {
	Verify(h http.Header, body []byte, now time.Time) (Delivery, error)
}

// VerifierFunc is a function as a Verifier: for a provider that this package does not know, or to load new secrets
// while the process runs.
type VerifierFunc func(h http.Header, body []byte, now time.Time) (Delivery, error)

// Verify calls f.
func (f VerifierFunc) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	return f(h, body, now)
}

// Delivery describes a verified request.
type Delivery struct {
	// ID is the provider's id of the event, the same at each retry; "" if it sends none.
	ID string

	// IDSigned says that the signature covers ID. Otherwise an attacker who has seen one request can send it again
	// under any ID: see Config.Unsigned.
	IDSigned bool

	// Type says what happened; "" if the provider does not say. GitHub and Shopify do not sign it.
	Type string

	// Timestamp is when this request was signed; each retry has its own. Zero if the provider signs no time.
	Timestamp time.Time

	// OccurredAt is when the event happened, from the signed body. Zero if the body does not say.
	OccurredAt time.Time

	// Scheme is the kind of signature that matched, by the provider's name: "v1", "v1a", "v0", "sha256".
	Scheme string

	// Secret is the index of the verifier's secret that matched, from 0 in the order in which they were given. It shows
	// when an old secret is no longer used.
	Secret int

	// Answer, if not nil, is what the provider wants back at once. The request is then a handshake, not an event.
	Answer []byte

	// content is the SHA-256 of the part of the body that is equal at each attempt of the event; nil if that is the
	// whole body.
	content []byte
}

// Reason is why a request was refused, in one word for metrics. The sender never sees it.
//
// A Verifier refuses for one of the constants. The endpoint itself refuses for four more: "method" (not a POST), "encoding" (the body is
// compressed), "size" (the body is larger than Config.MaxBody) and "broken" (the body ended early).
type Reason string

// The reasons of a Verifier.
const (
	ReasonMissing   Reason = "missing"   // a header that the signature needs is missing
	ReasonMalformed Reason = "malformed" // a header breaks its rules
	ReasonTooOld    Reason = "too_old"   // signed longer than five minutes ago: a replay, or a wrong clock
	ReasonTooNew    Reason = "too_new"   // signed more than five minutes in the future
	ReasonMismatch  Reason = "mismatch"  // no signature matches any secret
	ReasonExpired   Reason = "expired"   // the signature matches a secret that Until has ended
	ReasonContent   Reason = "content"   // the signature matches, but the content makes no valid event
)

// The reasons of the endpoint.
const (
	reasonMethod   Reason = "method"
	reasonEncoding Reason = "encoding"
	reasonSize     Reason = "size"
	reasonBroken   Reason = "broken"
)

// RefusedError says why a request was refused. It contains no value of the request, so it is safe to log.
type RefusedError struct {
	Reason Reason
	Rule   string // what was wrong, and what the rule is
}

func (e *RefusedError) Error() string { return "refused, " + string(e.Reason) + ": " + e.Rule }

func refuse(reason Reason, format string, args ...any) error {
	return &RefusedError{reason, fmt.Sprintf(format, args...)}
}

// AnyOf is a Verifier that tries others in turn, for secrets with an end date (Until) and for a change from one scheme
// to another. Delivery.Secret counts through all of them. Without verifiers it refuses everything.
func AnyOf(verifiers ...Verifier) Verifier { return anyOf(verifiers) }

type anyOf []Verifier

func (all anyOf) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	err := refuse(ReasonMismatch, "AnyOf has no verifier")
	before := 0
	for i, v := range all {
		d, failed := v.Verify(h, body, now)
		if failed = foreign.Error(failed); failed == nil {
			d.Secret += before
			return d, nil
		}
		if i == 0 || reasonOf(failed) == ReasonExpired { // the most informative error
			err = failed
		}
		before += secretsOf(v)
	}
	return Delivery{}, err
}

func (all anyOf) secrets() (n int) {
	for _, v := range all {
		n += secretsOf(v)
	}
	return n
}

func (all anyOf) signsNoTime() bool { return slices.ContainsFunc(all, signsNoTime) }

func (all anyOf) resentWithin() (longest time.Duration) {
	for _, v := range all {
		longest = max(longest, resentWithin(v))
	}
	return longest
}

// Until is v until end. From then on it refuses what v accepts. Use it for the secret before the current one.
func Until(end time.Time, v Verifier) Verifier { return until{v, end} }

type until struct {
	Verifier
	end time.Time
}

func (u until) Verify(h http.Header, body []byte, now time.Time) (Delivery, error) {
	d, err := u.Verifier.Verify(h, body, now)
	if err == nil && !now.Before(u.end) { // The signature is valid, so this is the real sender, with an old secret.
		return Delivery{}, refuse(ReasonExpired, "the secret was valid until %s", u.end.UTC().Format(time.RFC3339))
	}
	return d, err
}

func (u until) secrets() int { return secretsOf(u.Verifier) }

func (u until) signsNoTime() bool { return signsNoTime(u.Verifier) }

func (u until) resentWithin() time.Duration { return resentWithin(u.Verifier) }

// secretsOf returns how many values of Delivery.Secret a verifier uses.
func secretsOf(v Verifier) int {
	if s, ok := v.(interface{ secrets() int }); ok {
		return s.secrets()
	}
	return 1
}

// signsNoTime reports whether a verifier may accept requests of any age. A Verifier from outside this package cannot
// say; its deliveries do.
func signsNoTime(v Verifier) bool {
	s, ok := v.(interface{ signsNoTime() bool })
	return ok && s.signsNoTime()
}

// resentWithin is how long after an event its provider lets people send it again by hand; 0 if that is not known.
func resentWithin(v Verifier) time.Duration {
	if s, ok := v.(interface{ resentWithin() time.Duration }); ok {
		return s.resentWithin()
	}
	return 0
}

// reasonOf returns the reason of a refusal, "" if err is nil.
func reasonOf(err error) Reason {
	var refused *RefusedError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused):
		return refused.Reason
	default:
		return ReasonMismatch // a Verifier from outside this package
	}
}
