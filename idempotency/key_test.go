package idempotency

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// R2.
func TestKey_KeysAsClientsSendThem(t *testing.T) {
	for value, want := range map[string]string{
		"8e03978e-40d5-43e8-bc93-6894a57f9324":   "8e03978e-40d5-43e8-bc93-6894a57f9324",
		`"8e03978e-40d5-43e8-bc93-6894a57f9324"`: "8e03978e-40d5-43e8-bc93-6894a57f9324",
		"refund:ch_9ab:1000:6f6c":                "refund:ch_9ab:1000:6f6c",
		` "spaces-around" `:                      "spaces-around",
		`"a\"b"`:                                 `a"b`,
		`"a\\b"`:                                 `a\b`,
		`"with";param=1`:                         "with",
		"~!#$%&'()*+-./:;<=>?@[]^_`{|}":          "~!#$%&'()*+-./:;<=>?@[]^_`{|}",
		strings.Repeat("k", 255):                 strings.Repeat("k", 255),
		`"` + strings.Repeat("k", 255) + `"`:     strings.Repeat("k", 255),
	} {
		if got, err := headerKey(http.Header{"Idempotency-Key": {value}}, defaultHeaders, false); err != nil || got != want {
			t.Errorf("%q: got %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"", " ", `""`, `"`, `"a`, `a b`, `"a b"`, `a,b`, `"a","b"`, "\"a\x7f\"", "é", `"\q"`, `"a"b`, strings.Repeat("k", 256), `"` + strings.Repeat("k", 256) + `"`} {
		if got, err := headerKey(http.Header{"Idempotency-Key": {value}}, defaultHeaders, false); err == nil {
			t.Errorf("%q became the key %q", value, got)
		}
	}
	for value, ok := range map[string]bool{`"k"`: true, `"k";x`: true, "k": false, "42": false, "?1": false, ":aGk=:": false, "token": false} {
		if got, err := headerKey(http.Header{"Idempotency-Key": {value}}, defaultHeaders, true); (err == nil) != ok {
			t.Errorf("strict, %q: got %q, %v", value, got, err)
		}
	}
}

// R3.
func TestKey_TheFormatsOfKeys(t *testing.T) {
	for _, c := range []struct {
		format func(key string) error
		key    string
		ok     bool
	}{
		{UUID, uuid.NewString(), true}, {UUID, NewKey(), true}, {UUID, strings.ReplaceAll(NewKey(), "-", ""), false}, {UUID, "{" + NewKey() + "}", false},
		{SHA256, Deterministic("a"), true}, {SHA256, strings.ToUpper(Deterministic("a")), false}, {SHA256, "abc", false},
		{Prefixed("refund"), "refund-12345678", true}, {Prefixed("refund"), "refund:ch_1:10:x", true}, {Prefixed("refund"), "refund-1234567", false}, {Prefixed("refund"), "refunds-12345678", false},
	} {
		if err := c.format(c.key); (err == nil) != c.ok {
			t.Errorf("%q: got %v", c.key, err)
		}
	}
}

// C9.
func TestKey_DeterministicKeysDifferWhereTheirPartsDo(t *testing.T) {
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"b", "a"}, {"1:a"}, {"a1:b"}, {"a", "b", ""}} {
		key := Deterministic(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q share a key", parts, other)
		}
		seen[key] = parts
		if Deterministic(parts...) != key {
			t.Errorf("%q has two keys", parts)
		}
	}
}

func FuzzKeysAreBoundedAndVisible(f *testing.F) {
	for _, s := range []string{"k", `"k"`, `"a\"b"`, `"a";p=1`, ",", "\x00"} {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, value string, strict bool) {
		key, err := headerKey(http.Header{"Idempotency-Key": {value}}, defaultHeaders, strict)
		if err != nil {
			return
		}
		if len(key) < 1 || len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' || c == ',' }) {
			t.Errorf("%q became the key %q", value, key)
		}
	})
}
