package webhook

import (
	"crypto/hmac"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// maxSignatures is how many signatures of a request are examined.
	maxSignatures = 16

	// maxHeader is the longest header that is looked at.
	maxHeader = 4 << 10

	// maxID is the longest id that a header may give.
	maxID = 128
)

// header returns a header that must be there, once: of two it could not be said which one the sender meant.
func header(h http.Header, name string) (string, error) {
	values := h.Values(name)
	switch {
	case len(values) == 0 || values[0] == "":
		return "", refuse(ReasonMissing, "header %s is not there", name)
	case len(values) > 1:
		return "", refuse(ReasonMalformed, "header %s is there %d times: it must be there once", name, len(values))
	case len(values[0]) > maxHeader:
		return "", refuse(ReasonMalformed, "header %s has %d bytes: it must have at most %d", name, len(values[0]), maxHeader)
	}
	return values[0], nil
}

// optional is header, "" where it is not there.
func optional(h http.Header, name string) (string, error) {
	if len(h.Values(name)) == 0 {
		return "", nil
	}
	return header(h, name)
}

// checkID holds an id from a header to 1 to 128 printable characters of ASCII, without those in without.
func checkID(name, id, without string) error {
	if len(id) > maxID {
		return refuse(ReasonMalformed, "header %s has %d bytes: it must have at most %d", name, len(id), maxID)
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || strings.IndexByte(without, c) >= 0 {
			return refuse(ReasonMalformed, "header %s must be printable ASCII without %q", name, " "+without)
		}
	}
	return nil
}

// checkTime reads a time in whole seconds and holds it against now, without an overflow whatever it is.
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
	const tolerance = int64(Tolerance / time.Second)
	switch today := now.Unix(); {
	case at < today-tolerance:
		return time.Time{}, refuse(ReasonTooOld, "it was signed more than %s ago", Tolerance)
	case at > today+tolerance:
		return time.Time{}, refuse(ReasonTooNew, "it was signed more than %s in the future", Tolerance)
	}
	return time.Unix(at, 0).UTC(), nil
}

// matching returns which key makes one of the signatures over what was signed. How long it takes tells nothing of a
// signature that does not fit.
func matching(keys [][]byte, signatures [][]byte, signed ...[]byte) (int, error) {
	for i, key := range keys {
		sum := hmacSHA256(key, signed...)
		for _, signature := range signatures {
			if hmac.Equal(sum, signature) {
				return i, nil
			}
		}
	}
	return 0, refuse(ReasonMismatch, "none of %d signatures fits one of %d secrets", len(signatures), len(keys))
}
