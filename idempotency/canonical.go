package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

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
			value = without(value, steps(pointer))
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

// exact reports whether a document is one JSON text of RFC 7493 (I-JSON). It must be UTF-8, without duplicate names in
// an object and without half of a surrogate pair. float64 must hold every number without loss.
func exact(document []byte) bool {
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

// exactNumber reports whether the shortest decimal of the nearest float64 is the number itself.
func exactNumber(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	if f == 0 {
		digits, _, _ := strings.Cut(strings.ToLower(text), "e")
		return !strings.ContainsAny(digits, "123456789") // an underflow to zero is not exact
	}
	if f == math.Trunc(f) && math.Abs(f) > 1<<53-1 && !strings.ContainsAny(text, "eE") {
		return false // I-JSON's limit for integers
	}
	if len(text) > 400 {
		return false
	}
	digits, exponent, ok := decimal(text)
	nearest, of, okToo := decimal(strconv.FormatFloat(f, 'e', -1, 64))
	return ok && okToo && digits == nearest && exponent == of
}

// decimal is the value of a JSON number without its sign: its digits, from the first to the last that is not zero, and
// the power of ten of the last. Every number except zero has exactly one such form. It costs no more than reading the
// number. Arithmetic would cost as much as the exponent says.
func decimal(text string) (digits string, exponent int, ok bool) {
	mantissa, power := strings.TrimPrefix(text, "-"), ""
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		mantissa, power = mantissa[:i], mantissa[i+1:]
	}
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil {
			return "", 0, false
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exponent -= len(fraction)
	digits = strings.TrimRight(whole+fraction, "0")
	exponent += len(whole) + len(fraction) - len(digits)
	return strings.TrimLeft(digits, "0"), exponent, true
}

// halfSurrogate reports whether some \uD800 to \uDFFF comes without its other half. Decoders replace it, so different
// documents would become equal.
func halfSurrogate(document []byte) bool {
	high := false
	for i := 0; i < len(document); i++ {
		if document[i] != '\\' || i+1 >= len(document) {
			if high {
				return true
			}
			continue
		}
		i++
		if document[i] != 'u' || i+4 >= len(document) {
			if high {
				return true
			}
			continue
		}
		unit, err := strconv.ParseUint(string(document[i+1:i+5]), 16, 32)
		if err != nil {
			return false // not JSON: reported elsewhere
		}
		i += 4
		isHigh, isLow := unit >= 0xD800 && unit < 0xDC00, unit >= 0xDC00 && unit < 0xE000
		if high != isLow {
			return true
		}
		high = isHigh
	}
	return high
}

// steps returns the reference tokens of a JSON Pointer.
func steps(pointer string) []string {
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
