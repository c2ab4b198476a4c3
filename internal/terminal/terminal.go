// Package terminal makes texts for a person at a terminal: counted words, and what comes from elsewhere made safe to print and to paste.
package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean escapes the characters of a text that could move the cursor or do worse, and nothing else.
func Clean(text string) string {
	var clean strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		part := text[:n]
		if text = text[n:]; r == utf8.RuneError || !unicode.IsGraphic(r) && r != '\n' && r != '\t' {
			part = strings.Trim(strconv.QuoteToGraphic(part), `"`)
		}
		clean.WriteString(part)
	}
	return clean.String()
}

// Quote quotes a word for a shell, where it needs that.
func Quote(word string) string {
	if word != "" && strings.IndexFunc(word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,", r))
	}) < 0 {
		return word
	}
	if strings.Contains(word, "'") && !strings.ContainsAny(word, "\"$`\\!") { // in which a shell changes nothing between double quotes
		return `"` + word + `"`
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Flag is a flag with its value, for a shell. A value that begins with a dash would be read as a flag without the equals sign.
func Flag(name, value string) string {
	between := " "
	if strings.HasPrefix(value, "-") {
		between = "="
	}
	return "--" + name + between + Quote(value)
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

// YesNo is "yes" or "no".
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
