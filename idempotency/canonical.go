package idempotency

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/gowebpki/jcs"
)

// This file makes JSON comparable. RFC 8785 gives equal documents one form, but it reads numbers as float64:
// 9007199254740993 and 9007199254740992 become one. Two different requests must never share a fingerprint. So only
// documents that survive exactly are canonicalised; all others are compared by their bytes.

// Limits of documents that are canonicalised. Others are compared by their bytes. Within them a document costs at most about
// 10 ms and 6 MiB, and atWork are canonicalised at once.
const (
	maxDepth    = 200
	maxDocument = 256 << 10 // bytes
	maxTokens   = 10_000    // values and names
	atWork      = 4
)

// working holds an element for each document that is being canonicalised.
var working = make(chan struct{}, atWork)

// modest reports whether a document is within maxDocument and maxTokens. It reads it once, and allocates nothing.
func modest(document []byte) bool {
	if len(document) > maxDocument {
		return false
	}
	tokens, inString := 1, false
	for i := 0; i < len(document); i++ {
		switch c := document[i]; {
		case c == '"':
			inString = !inString
		case c == '\\' && inString:
			i++
		case !inString && (c == ',' || c == ':' || c == '[' || c == '{'):
			tokens++
		}
	}
	return tokens <= maxTokens
}

// canonical returns the RFC 8785 form of a document, without the fields that the JSON Pointers (RFC 6901) in ignore
// name. It returns false if the form would lose something: then compare the bytes.
func canonical(document []byte, ignore []string) ([]byte, bool) {
	working <- struct{}{}
	defer func() { <-working }()
	if !exact(document) {
		return nil, false
	}
	if len(ignore) > 0 {
		d := json.NewDecoder(bytes.NewReader(document))
		d.UseNumber()
		var value any
		if d.Decode(&value) != nil {
			return nil, false
		}
		for _, pointer := range ignore {
			value = without(value, tokens(pointer))
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if e.Encode(value) != nil {
			return nil, false
		}
		document = b.Bytes()
	}
	form, err := jcs.Transform(document)
	return form, err == nil
}

// tokens returns the reference tokens of a JSON Pointer.
func tokens(pointer string) []string {
	parts := strings.Split(pointer, "/")[1:]
	for i, part := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
	}
	return parts
}

// without removes what a pointer names, if it exists. An array element becomes null, so that the others keep their
// places.
func without(value any, path []string) any {
	switch v := value.(type) {
	case map[string]any:
		if inner, ok := v[path[0]]; ok {
			if len(path) == 1 {
				delete(v, path[0])
			} else {
				v[path[0]] = without(inner, path[1:])
			}
		}
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(v) {
			return value
		}
		if len(path) == 1 {
			v[i] = nil
		} else {
			v[i] = without(v[i], path[1:])
		}
	}
	return value
}
