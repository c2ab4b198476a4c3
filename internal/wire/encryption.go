package wire

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// HeaderEncryption says how a payload is encrypted: the algorithm, a blank, and the id of the key. It is not one of the hf_
// headers, because it belongs to the event: it is written with it, and a published dead letter keeps it.
const HeaderEncryption = "holdfast-encryption"

// Sealed reads how an event's payload is encrypted. It is false for an event in the clear, and for a tombstone.
func Sealed(e holdfast.Event) (holdfast.Sealed, bool) {
	value, found := e.Headers[HeaderEncryption]
	if !found || e.Payload == nil {
		return holdfast.Sealed{}, false
	}
	algorithm, key, _ := strings.Cut(value, " ")
	return holdfast.Sealed{Algorithm: algorithm, Key: key, Payload: e.Payload}, true
}

// EncryptionHeader is the header's value, or an error if s has no valid one.
func EncryptionHeader(s holdfast.Sealed) (string, error) {
	for _, c := range []struct {
		what, value string
		most        int
	}{{"algorithm", s.Algorithm, 64}, {"key id", s.Key, 255}} {
		if len(c.value) < 1 || len(c.value) > c.most || strings.IndexFunc(c.value, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
			return "", fmt.Errorf("encryption: the %s has %d bytes: it must be 1 to %d visible ASCII characters", c.what, len(c.value), c.most)
		}
	}
	return s.Algorithm + " " + s.Key, nil
}
