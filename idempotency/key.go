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

// maxKey is the maximum length of a key in bytes. It is Stripe's limit, which most clients know.
const maxKey = 255

var (
	errKeyMissing = errors.New("the header is missing")
	errKeyInvalid = errors.New("the key is invalid")
)

func invalidKey(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errKeyInvalid, fmt.Sprintf(format, args...))
}

// headerKey reads the key from the first of names that a request has. A key is a string of RFC 8941, as
// draft-ietf-httpapi-idempotency-key-header requires. Unless strict, it may also be a bare token, which most clients
// send. "k" in quotes and bare k are the same key. Two different keys in one request are refused.
func headerKey(h http.Header, names []string, strict bool) (string, error) {
	key, from := "", ""
	for _, name := range names {
		lines := h.Values(name)
		if len(lines) == 0 {
			continue
		}
		if len(lines) > 1 {
			return "", invalidKey("the request has %s %d times: send it once", name, len(lines))
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

// checkKey refuses a key that could be two keys joined in one line, or that would be ambiguous in a log.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey {
		return invalidKey("it is %d bytes long: it must be 1 to %d", len(key), maxKey)
	}
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' || c == ',' {
			return invalidKey("it has a comma, or a character that is not visible ASCII")
		}
	}
	return nil
}

// UUID is a Route.KeyFormat for keys that are UUIDs of any version in their usual form.
func UUID(key string) error {
	if _, err := uuid.Parse(key); err != nil || len(key) != 36 {
		return errors.New("it must be a UUID")
	}
	return nil
}

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// SHA256 is a Route.KeyFormat for keys that are SHA-256 hashes: 64 lower-case hexadecimal digits, as Deterministic makes them.
func SHA256(key string) error {
	if !sha256Form.MatchString(key) {
		return errors.New("it must be 64 lower-case hexadecimal digits")
	}
	return nil
}

// Prefixed makes a Route.KeyFormat for keys that consist of a prefix, a hyphen or a colon, and at least eight more characters.
func Prefixed(prefix string) func(key string) error {
	return func(key string) error {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok || len(rest) < 9 || (rest[0] != '-' && rest[0] != ':') {
			return fmt.Errorf("it must be %q, a hyphen or a colon, and at least eight characters", prefix)
		}
		return nil
	}
}

// Deterministic makes a key from the parts of a logical operation, such as the user, the action and its parameters. The
// same parts in the same order make the same key, of 64 lower-case hexadecimal digits; ("ab", "c") and ("a", "bc") differ. Give it enough parts: two
// operations that share a key are one operation. Clients use
// it, and Route.KeyFunc for clients that cannot send a key.
func Deterministic(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// NewKey makes a key for an operation that this service begins: a UUIDv7. Store it with the operation, so that every
// retry sends the same key.
func NewKey() string { return uuid.Must(uuid.NewV7()).String() }
