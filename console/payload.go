package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// mostShown is how much of a payload a page has.
const mostShown = 256 << 10

// payload is a payload as a page shows it.
type payload struct {
	Kind string // "JSON", "text", "bytes", "tombstone" or "too large"
	Text string
	Size int
}

// payloadOf makes a payload readable: JSON with line breaks, other text as it is, the rest as a dump.
func payloadOf(b []byte) payload {
	p := payload{Size: len(b)}
	var indented bytes.Buffer
	switch {
	case b == nil:
		p.Kind = "tombstone"
	case len(b) > mostShown:
		p.Kind, p.Text = "too large", fmt.Sprintf("it has %s: read it with holdfast dlq show --payload", bytesOf(int64(len(b))))
	case utf8.Valid(b) && json.Indent(&indented, b, "", "  ") == nil: // json takes any bytes in a string
		p.Kind, p.Text = "JSON", indented.String()
	case utf8.Valid(b):
		p.Kind, p.Text = "text", string(b)
	default:
		p.Kind, p.Text = "bytes", hex.Dump(b)
	}
	return p
}

// editor is a payload as a form shows it.
type editor struct {
	Text    string // with line breaks between the values of JSON that has none
	LineEnd string // of the payload
	Form    form   // of the payload, which it keeps; nil for one that is edited as it is
	OK      bool   // false for what a browser does not give back as it was: it replaces bytes that are not UTF-8 and NUL, and has one kind of line break only
}

// editorOf decides how a payload is edited.
func editorOf(b []byte) editor {
	e := editor{LineEnd: "\n"}
	if bytes.Contains(b, []byte("\r\n")) {
		e.LineEnd = "\r\n"
	}
	e.Text = strings.ReplaceAll(string(b), e.LineEnd, "\n")
	e.OK = len(b) <= mostShown && utf8.Valid(b) && !strings.ContainsAny(e.Text, "\r\x00") && strings.ReplaceAll(e.Text, "\n", e.LineEnd) == string(b)
	if !e.OK || bytes.ContainsRune(b, '\n') {
		return e
	}
	var indented bytes.Buffer
	compact, isJSON := compacted(b)
	for _, f := range []form{dense, spaced} {
		if isJSON && bytes.Equal(f(compact), b) && json.Indent(&indented, b, "", "  ") == nil {
			e.Text, e.Form = indented.String(), f
			break
		}
	}
	return e
}

// form is how JSON without line breaks is written, made from JSON without spaces.
type form func(compact []byte) []byte

// dense has no spaces, as most encoders write.
func dense(compact []byte) []byte { return compact }

// spaced has a space after each colon and comma, as Python's and Postgres' encoders write.
func spaced(compact []byte) []byte {
	out := make([]byte, 0, len(compact)+len(compact)/8)
	inString := false
	for i := 0; i < len(compact); i++ {
		c := compact[i]
		out = append(out, c)
		switch {
		case inString && c == '\\': // A valid string has something after it.
			i++
			out = append(out, compact[i])
		case c == '"':
			inString = !inString
		case !inString && (c == ':' || c == ','):
			out = append(out, ' ')
		}
	}
	return out
}

// compacted is JSON without spaces between its values, and whether it is JSON.
func compacted(b []byte) (compact []byte, isJSON bool) {
	var out bytes.Buffer
	isJSON = json.Compact(&out, b) == nil
	return out.Bytes(), isJSON
}

// edited is a payload as a form gave it back. What nobody changed has its bytes, and JSON that had no line breaks gets none.
func edited(old []byte, form string) ([]byte, error) {
	e := editorOf(old)
	text := strings.ReplaceAll(form, "\r\n", "\n") // A browser sends line breaks as CR LF.
	switch {
	case !e.OK:
		return nil, refusal{http.StatusUnprocessableEntity, "a browser would change bytes that you do not edit: use holdfast dlq edit"}
	case !utf8.ValidString(text):
		return nil, refusal{http.StatusUnprocessableEntity, "the new payload is not UTF-8: use holdfast dlq edit"}
	case text == e.Text:
		return old, nil
	}
	if compact, isJSON := compacted([]byte(text)); e.Form != nil && isJSON {
		return e.Form(compact), nil
	}
	return []byte(strings.ReplaceAll(text, "\n", e.LineEnd)), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	if len(line) > 300 {
		line = strings.ToValidUTF8(line[:300], "") + " …"
	}
	return line
}

// halves are a long id or key without its last characters, which a page cuts where it has no room, and those, which it always shows: ids of
// one moment begin alike. nil for a short one.
func halves(id string) []string {
	const short, shown = 16, 6
	runes := []rune(id)
	if len(runes) <= short || !utf8.ValidString(id) {
		return nil
	}
	return []string{string(runes[:len(runes)-shown]), string(runes[len(runes)-shown:])}
}

func bytesOf(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

func when(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// ago is how long ago, or in how long, in one unit.
func ago(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	if d := time.Since(t); d >= 0 {
		return forSpan(d) + " ago"
	}
	return "in " + forSpan(time.Until(t))
}

// forSpan is a span in one unit.
func forSpan(d time.Duration) string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if d >= 2*unit.length {
			return fmt.Sprintf("%d%s", d/unit.length, unit.name)
		}
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// ageText is an age in seconds.
func ageText(seconds float64) string { return forSpan(time.Duration(seconds * float64(time.Second))) }

// plural is the word for one, or for another number.
func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func reversed(texts []string) []string {
	texts = slices.Clone(texts)
	slices.Reverse(texts)
	return texts
}

// dict makes a map of pairs, for a template that is called with several values.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}
