package inbox

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file keeps headers and keys as text, in memory and in columns.

// HeaderBytes returns the bytes of a header's value as its producer wrote them. Headers of an event are text. The value of a
// record's header that is not UTF-8, or holds NUL, is kept as a data URL, "data:;base64,AAAAAg==": HeaderBytes decodes it. Any other
// value is returned as it is.
func HeaderBytes(value string) []byte {
	if encoded, ok := strings.CutPrefix(value, wire.Binary); ok {
		if b, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			return b
		}
	}
	return []byte(value)
}

// KeyBytes returns the bytes of a record's key as its producer wrote them. The key of an event is text. That of a record whose key is not
// UTF-8, or holds NUL, is a data URL as in HeaderBytes: KeyBytes decodes it, and a publisher writes the bytes again where an event has
// such a key. Any other key is returned as it is, also one that only looks so: of a text that could be taken for another key's data URL
// the inbox makes a data URL too, so that two keys are equal if and only if their bytes are.
func KeyBytes(key string) []byte { return []byte(wire.RecordKey(key)) }

// textHeaders makes text of names and values that are none, as other producers write them (a counter of four bytes, say).
func textHeaders(headers map[string]string) map[string]string {
	text := func(s string) string {
		if wire.IsText(s) {
			return s
		}
		return wire.BinaryText(s)
	}
	for name, value := range headers {
		if t := text(value); t != value {
			headers[name] = t
		}
		if t := text(name); t != name {
			headers[t] = headers[name]
			delete(headers, name)
		}
	}
	return headers
}

// headersJSON is the headers as the text of a JSON object; nil when there are none.
func headersJSON(headers map[string]string) *string {
	if len(headers) == 0 {
		return nil
	}
	b, err := json.Marshal(headers)
	if err != nil {
		panic(fmt.Sprintf("inbox: marshal headers: %v", err)) // A map of strings always marshals.
	}
	s := string(b)
	return &s
}

func headersOf(text *string) (map[string]string, error) {
	if text == nil {
		return nil, nil
	}
	var headers map[string]string
	if err := json.Unmarshal([]byte(*text), &headers); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	return headers, nil
}
