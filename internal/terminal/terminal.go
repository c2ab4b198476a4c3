// Package terminal makes texts for a person at a terminal: counted words, and what comes from elsewhere made safe to print and to paste.
package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean escapes the characters of a text that could move the cursor or do worse.
func Clean(text string) string {
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsGraphic(r) && r != '\n' && r != '\t' {
			quoted := strconv.QuoteToGraphic(text)
			return quoted[1 : len(quoted)-1]
		}
	}
	return text
}

// Quote quotes a word for a shell, where it needs that.
func Quote(word string) string {
	if word != "" && strings.IndexFunc(word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,", r))
	}) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Count is a number of things: "1 event", "2 events".
func Count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Verb chooses the form of a verb for n subjects.
func Verb[N int | int64](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
