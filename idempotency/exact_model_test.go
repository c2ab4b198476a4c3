package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzExactAgreesWithADecoder(f *testing.F) {
	for _, document := range []string{
		``, ` `, `null`, `"a"`, `-0`, `0`, `1 2`, `[1 2]`, `[]`, `{}`, ` { "a" : [ 1 , { "b" : "c,]}\\\"" } ] } `,
		`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"a":{"a":1},"b":{"a":1}}`, `[{"a":1},{"a":1}]`, `{"a":["a","a"],"b":"a"}`,
		`{"":0,"":1}`, `{"a\\":1,"a":2}`, `{"\"":1,"\u0022":2}`, `{"a":{"b":1,"b":2}}`, `{"b":1,"a":{"c":1},"b":2}`,
		`9007199254740993`, `-999999999999999`, `1e400`, `0.1`, `1E-400`, `123456789012345678`, `"\ud800"`, `"\ud83d\ude00"`, "\xff", `{"a":1}x`,
		strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
		strings.Repeat(`{"a":`, maxDepth) + "1" + strings.Repeat("}", maxDepth), `{"a":tru}`, `{"a":1,}`, `]`, `,`,
	} {
		f.Add([]byte(document))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		if !modest(document) {
			return
		}
		if got, want := exact(document), decodedExactly(document); got != want {
			t.Errorf("exact(%q) is %v, by the decoder %v", document, got, want)
		}
	})
}

// decodedExactly is exact by the decoder of encoding/json, token by token: it must be UTF-8, without duplicate names in
// an object and without half of a surrogate pair. float64 must hold every number without loss.
func decodedExactly(document []byte) bool {
	if !utf8.Valid(document) || halfSurrogate(document) {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var names []map[string]bool // names seen in each open object; nil for an array
	inName := false             // the next token of an object is a name
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return len(names) == 0 && d.InputOffset() > 0
		}
		if err != nil {
			return false
		}
		switch t := token.(type) {
		case json.Delim:
			switch t {
			case '{', '[':
				var seen map[string]bool
				if t == '{' {
					seen = map[string]bool{}
				}
				if names = append(names, seen); len(names) > maxDepth {
					return false
				}
			default:
				names = names[:len(names)-1]
			}
		case string:
			if inName {
				object := names[len(names)-1]
				if object[t] {
					return false
				}
				object[t] = true
				inName = false
				continue // the value follows
			}
		case json.Number:
			if !exactNumber(string(t)) {
				return false
			}
		}
		if len(names) == 0 {
			if _, err := d.Token(); !errors.Is(err, io.EOF) {
				return false // something follows the document
			}
			return true
		}
		inName = names[len(names)-1] != nil
	}
}
