package wire

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// This file makes text of a record's key, and bytes of that text again. It is pure: values in, values out.

// Binary begins the text that stands for bytes which are no text: a data URL (RFC 2397) without a media type.
const Binary = "data:;base64,"

// BinaryText is the text that stands for bytes.
func BinaryText(b string) string { return Binary + base64.StdEncoding.EncodeToString([]byte(b)) }

// IsText says whether a column can hold bytes as they are.
func IsText(b string) bool { return utf8.ValidString(b) && strings.IndexByte(b, 0) < 0 }

// EventKey is a record's key as the key of its event: the same text, or BinaryText of what is no text. A text that looks like the
// BinaryText of another key becomes BinaryText too, so that different keys stay different. RecordKey gives the bytes back.
func EventKey(record []byte) string {
	if key := string(record); standsForItself(key) {
		return key
	}
	return BinaryText(string(record))
}

// RecordKey is the bytes of the key in the record of an event with this key. EventKey of them is the key again.
func RecordKey(key string) string {
	if b, encoded := binaryOf(key); encoded {
		return b
	}
	return key
}

func standsForItself(key string) bool {
	_, encoded := binaryOf(key)
	return IsText(key) && !encoded
}

// binaryOf returns the bytes that a text stands for. It is false for what EventKey never makes: base64 in another way of writing it, or
// of bytes that stand for themselves. Each round is shorter by a quarter, and so is what it costs.
func binaryOf(text string) (string, bool) {
	encoded, found := strings.CutPrefix(text, Binary)
	if !found {
		return "", false
	}
	b, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || base64.StdEncoding.EncodeToString(b) != encoded || standsForItself(string(b)) {
		return "", false
	}
	return string(b), true
}
