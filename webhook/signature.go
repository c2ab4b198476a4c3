package webhook

import (
	"crypto/hmac"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/webhook/internal/signing"
)

const (
	// maxSignatures is how many signatures of a request are checked.
	maxSignatures = 16

	// maxHeader is the maximum length of a header in bytes.
	maxHeader = 4 << 10

	// tolerance is the largest accepted difference, before or after, between the time of a signature and our clock. It is
	// the value of the Standard Webhooks specification, Stripe and Slack.
	tolerance = 5 * time.Minute
)

// header returns a header that must occur exactly once. With two of them, the sender's intent would be unclear.
func header(h http.Header, name string) (string, error) {
	values := h.Values(name)
	switch {
	case len(values) == 0 || values[0] == "":
		return "", refuse(ReasonMissing, "header %s is missing", name)
	case len(values) > 1:
		return "", refuse(ReasonMalformed, "header %s occurs %d times: it must occur once", name, len(values))
	case len(values[0]) > maxHeader:
		return "", refuse(ReasonMalformed, "header %s is %d bytes long: it must be at most %d", name, len(values[0]), maxHeader)
	}
	return values[0], nil
}

// optional is header, but returns "" if the header is missing.
func optional(h http.Header, name string) (string, error) {
	if len(h.Values(name)) == 0 {
		return "", nil
	}
	return header(h, name)
}

// checkID requires that an id from a header has 1 to 128 printable ASCII characters, none of them in without.
func checkID(name, id, without string) error {
	if len(id) > signing.MaxID {
		return refuse(ReasonMalformed, "header %s is %d bytes long: it must be at most %d", name, len(id), signing.MaxID)
	}
	if !signing.Printable(id, without) {
		return refuse(ReasonMalformed, "header %s must be printable ASCII without %q", name, " "+without)
	}
	return nil
}

// checkTime reads a time in whole seconds and compares it with now. No value overflows.
func checkTime(name, text string, now time.Time) (time.Time, error) {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return time.Time{}, refuse(ReasonMalformed, "the time of %s must be whole seconds since 1970, in digits", name)
		}
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, refuse(ReasonMalformed, "the time of %s must be seconds since 1970", name)
	}
	const seconds = int64(tolerance / time.Second)
	switch today := now.Unix(); {
	case at < today-seconds:
		return time.Time{}, refuse(ReasonTooOld, "the request was signed more than %s ago", tolerance)
	case at > today+seconds:
		return time.Time{}, refuse(ReasonTooNew, "the request was signed more than %s in the future", tolerance)
	}
	return time.Unix(at, 0).UTC(), nil
}

// matching returns the index of the key that made one of the signatures over what was signed. Its duration reveals
// nothing about a signature that does not match.
func matching(keys [][]byte, signatures [][]byte, signed ...[]byte) (int, error) {
	for i, key := range keys {
		sum := signing.HMAC(key, signed...)
		for _, signature := range signatures {
			if hmac.Equal(sum, signature) {
				return i, nil
			}
		}
	}
	return 0, refuse(ReasonMismatch, "none of %d signatures matches one of %d secrets", len(signatures), len(keys))
}
