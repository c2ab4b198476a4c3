package dlq_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
)

func TestCheckPayload_APayloadOfJSONMustStayJSON(t *testing.T) {
	t.Parallel()
	json := map[string]string{"Content-Type": "application/json; charset=utf-8"}
	for _, c := range []struct {
		name    string
		headers map[string]string
		now     string
		payload []byte
		says    []string // nil: it is right
	}{
		{"JSON", json, "{", []byte(` {"amount": 1} `), nil},
		{"a number", json, "", []byte("1"), nil},
		{"a tombstone", json, "{}", nil, nil},
		{"a comma too many", json, "{}", []byte("{\n  \"ä\": 1,\n  \"to\": \"ö\",}"), []string{"letter 7", "line 3, column 13", "invalid character '}'", "application/json"}},
		{"in the first line", json, "{}", []byte("x"), []string{"line 1, column 1:"}},
		{"cut off", json, "{}", []byte("{\n"), []string{"line 2, column 1: unexpected end"}},
		{"nothing", json, "{}", []byte{}, []string{"line 1, column 1: unexpected end"}},
		{"two values", json, "{}", []byte("{} {}"), []string{"line 1, column 4"}},
		{"no UTF-8", json, "{}", []byte("{\"a\":\n\"b\xff\"}"), []string{"line 2, column 3: it is not UTF-8"}},
		{"another type", map[string]string{"content-type": "text/plain"}, "{}", []byte("{"), nil},
		{"a type that is no type", map[string]string{"content-type": "/"}, "{}", []byte("{"), nil},
		{"a suffix", map[string]string{"content-type": "application/vnd.order+json"}, "", []byte("{"), []string{"vnd.order+json"}},
		{"no type, and JSON until now", nil, ` {"a":1}`, []byte("{"), []string{"it must be, because the payload is JSON now"}},
		{"no type, and no JSON until now", nil, "{", []byte("{"), nil},
		{"no type, and a word", nil, "1", []byte("one"), nil},
		{"of a schema registry", json, "", []byte("\x00\x00\x00\x00\x07{}"), nil},
		{"of a schema registry, cut off", json, "", []byte("\x00\x00\x00\x00\x07{"), []string{"line 1, column 2 after the first 5 bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := dlq.Letter{ID: 7, Event: holdfast.Event{Headers: c.headers, Payload: []byte(c.now)}}
			err := l.CheckPayload(c.payload)
			if (err == nil) != (c.says == nil) {
				t.Fatalf("it says %v", err)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it does not say %q: %v", want, err)
				}
			}
		})
	}
}
