package idempotency

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// exact reports whether a document is one JSON text of RFC 7493 (I-JSON), nested no deeper than maxDepth. It must be UTF-8,
// without duplicate names in an object and without half of a surrogate pair. float64 must hold every number without loss.
func exact(document []byte) bool {
	if !utf8.Valid(document) || !json.Valid(document) || halfSurrogate(document) {
		return false
	}
	var open []int     // of each open object, how many names were met before it; -1 for an array
	var names [][]byte // of the open objects
	inName := false    // the next string is a name
	for i := 0; i < len(document); i++ {
		switch c := document[i]; c {
		case '{', '[':
			inName = c == '{'
			if inName {
				open = append(open, len(names))
			} else {
				open = append(open, -1)
			}
			if len(open) > maxDepth {
				return false
			}
		case '}', ']':
			first := open[len(open)-1]
			open = open[:len(open)-1]
			if first >= 0 {
				if repeats(names[first:]) {
					return false
				}
				names = names[:first]
			}
		case ',':
			inName = open[len(open)-1] >= 0
		case '"':
			end := endOfString(document, i)
			if inName {
				name, ok := unescaped(document[i:end])
				if !ok {
					return false
				}
				names = append(names, name)
				inName = false
			}
			i = end - 1
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			end := i + 1
			for end < len(document) && strings.IndexByte("0123456789+-.eE", document[end]) >= 0 {
				end++
			}
			if !exactNumber(string(document[i:end])) {
				return false
			}
			i = end - 1
		}
	}
	return true
}

// endOfString is where the string of valid JSON ends that begins at start, past its second quote.
func endOfString(document []byte, start int) int {
	i := start + 1
	for ; document[i] != '"'; i++ {
		if document[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// unescaped is what a string of valid JSON stands for.
func unescaped(quoted []byte) ([]byte, bool) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], true
	}
	var text string
	err := json.Unmarshal(quoted, &text)
	return []byte(text), err == nil
}

// repeats reports whether two names are the same. It sorts them.
func repeats(names [][]byte) bool {
	slices.SortFunc(names, bytes.Compare)
	for i := 1; i < len(names); i++ {
		if bytes.Equal(names[i-1], names[i]) {
			return true
		}
	}
	return false
}

// exactNumber reports whether the shortest decimal of the nearest float64 is the number itself.
func exactNumber(text string) bool {
	if len(text) <= 15 && !strings.ContainsAny(text, ".eE") {
		return true // float64 holds every integer of 15 digits
	}
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
