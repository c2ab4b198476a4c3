package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/dunglas/httpsfv"
	"github.com/google/uuid"
)

// maxKey is how many bytes a key may have (Stripe's limit, and what most clients know).
const maxKey = 255

var (
	errKeyMissing = errors.New("the header is missing")
	errKeyInvalid = errors.New("the key is invalid")
)

func invalidKey(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errKeyInvalid, fmt.Sprintf(format, args...))
}

// headerKey reads the key from the first of names that a request carries: as a string of RFC 8941, which is what
// draft-ietf-httpapi-idempotency-key-header asks for, or, unless strict, as the bare token that clients really send.
// "k" and k are one key. Two different keys in one request are no key.
func headerKey(h http.Header, names []string, strict bool) (string, error) {
	key, from := "", ""
	for _, name := range names {
		lines := h.Values(name)
		if len(lines) == 0 {
			continue
		}
		if len(lines) > 1 {
			return "", invalidKey("%s stands %d times in the request: send it once", name, len(lines))
		}
		found, err := parseKey(lines[0], strict)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if from != "" && found != key {
			return "", invalidKey("%s and %s differ: send one of them", from, name)
		}
		key, from = found, name
	}
	if from == "" {
		return "", errKeyMissing
	}
	return key, nil
}

func parseKey(value string, strict bool) (string, error) {
	value = strings.Trim(value, " \t")
	if strict || strings.HasPrefix(value, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{value})
		if err != nil {
			return "", invalidKey("it is not a string in quotes as RFC 8941 has it")
		}
		decoded, ok := item.Value.(string)
		if !ok {
			return "", invalidKey("it is not a string in quotes as RFC 8941 has it")
		}
		value = decoded
	}
	return value, checkKey(value)
}

// checkKey refuses what could be two keys folded into one line, or cannot be told apart in a log.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey {
		return invalidKey("it has %d bytes: it must have 1 to %d", len(key), maxKey)
	}
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' || c == ',' {
			return invalidKey("it has a character that is not a visible ASCII character other than the comma")
		}
	}
	return nil
}

// KeyFormat says, by an error, that a key is not of the form that a route asks for. The error is shown to the client.
type KeyFormat func(key string) error

// UUID is the format of keys that are UUIDs of any version, in their usual form.
func UUID(key string) error {
	if _, err := uuid.Parse(key); err != nil || len(key) != 36 {
		return errors.New("it must be a UUID")
	}
	return nil
}

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// SHA256 is the format of keys that are SHA-256 hashes: 64 lower-case hexadecimal digits, as Deterministic makes them.
func SHA256(key string) error {
	if !sha256Form.MatchString(key) {
		return errors.New("it must be 64 lower-case hexadecimal digits")
	}
	return nil
}

// Prefixed is the format of keys that are a prefix, a hyphen or a colon, and at least eight more characters.
func Prefixed(prefix string) KeyFormat {
	return func(key string) error {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok || len(rest) < 9 || (rest[0] != '-' && rest[0] != ':') {
			return fmt.Errorf("it must be %q, a hyphen or a colon, and at least eight characters", prefix)
		}
		return nil
	}
}

// Deterministic makes a key of what a logical operation consists of, say the user, the action and its parameters: the
// same parts make the same key. Give it enough of them: two operations that share a key are one operation. It is for
// clients, and for Route.KeyFunc where a client cannot send a key.
func Deterministic(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// NewKey makes a key for an operation that this service begins itself: a UUIDv7. Keep it with the operation, so that
// every retry sends the same.
func NewKey() string { return uuid.Must(uuid.NewV7()).String() }
