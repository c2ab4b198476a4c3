package private

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// leastValue is the fewest bytes of a value that is left out of a text where it stands as a word.
	leastValue = 3

	// leastRun is how many bytes in a row a text must share with a value to have them left out wherever they stand.
	leastRun = 12

	// longestText is the most bytes of a text that are compared with an event. What is after them is left out.
	longestText = 4 << 10
)

// WithoutEvent is a text with # in place of what it shares with an event: each value that stands in it as a word, if it has at least
// leastValue bytes, and any leastRun bytes in a row of a value. Values are the strings and numbers of a payload that is JSON, not its
// names, any other payload as it is, and others. A value that was written in another way, such as a rounded number, is not
// recognised. A text of more than longestText bytes is cut.
func WithoutEvent(text string, payload []byte, others ...string) string {
	cut := len(text) > longestText
	if cut {
		text = text[:longestText]
	}
	out := make([]bool, len(text)) // which bytes are left out
	runs := runsOf(text)
	for value := range values(payload, others) {
		if len(value) >= leastValue && len(value) <= len(text) {
			for at := range indexes(text, value) {
				if isWord(text, at, at+len(value)) {
					mark(out, at, at+len(value))
				}
			}
		}
		runs.mark(out, value)
	}
	if cut { // What was cut off may have been the rest of a value.
		mark(out, len(text)-leastRun, len(text))
	}
	var b strings.Builder
	for i := range len(text) {
		if !out[i] {
			b.WriteByte(text[i])
		} else if i == 0 || !out[i-1] {
			b.WriteByte('#')
		}
	}
	return b.String()
}

func mark(out []bool, from, to int) {
	for i := from; i < to; i++ {
		out[i] = true
	}
}

// indexes is where part begins in text, overlaps included.
func indexes(text, part string) iter.Seq[int] {
	return func(yield func(int) bool) {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], part)
			if from += i; i < 0 || !yield(from) {
				return
			}
		}
	}
}

// isWord reports that text[from:to] is not a part of a longer word.
func isWord(text string, from, to int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:from])
	first, _ := utf8.DecodeRuneInString(text[from:])
	last, _ := utf8.DecodeLastRuneInString(text[:to])
	after, _ := utf8.DecodeRuneInString(text[to:])
	return !(inWord(before) && inWord(first)) && !(inWord(last) && inWord(after))
}

func inWord(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }

// runs are the places of each run of leastRun bytes in a text. begins says which pairs of bytes they begin with: payloads are long,
// and hardly a place in one begins like a run.
type runs struct {
	begins [1 << 16]bool
	at     map[string][]int
}

func runsOf(text string) *runs {
	r := &runs{at: map[string][]int{}}
	for i := 0; i+leastRun <= len(text); i++ {
		r.begins[int(text[i])<<8|int(text[i+1])] = true
		r.at[text[i:i+leastRun]] = append(r.at[text[i:i+leastRun]], i)
	}
	return r
}

func (r *runs) mark(out []bool, value string) {
	for i := 0; i+leastRun <= len(value); i++ {
		if !r.begins[int(value[i])<<8|int(value[i+1])] {
			continue
		}
		for _, at := range r.at[value[i:i+leastRun]] {
			mark(out, at, at+leastRun)
		}
	}
}

// values are the strings and numbers of a payload that is JSON, as they stand there and as they are read, or else the payload; and others.
func values(payload []byte, others []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, value := range others {
			if !yield(value) {
				return
			}
		}
		if !json.Valid(payload) {
			yield(string(payload))
			return
		}
		dec := json.NewDecoder(bytes.NewReader(payload))
		dec.UseNumber()
		var objects []bool // of what is open, innermost last: whether it is an object
		for named := false; ; {
			from := dec.InputOffset()
			token, err := dec.Token()
			if err != nil {
				return
			}
			inObject := len(objects) > 0 && objects[len(objects)-1]
			switch t := token.(type) {
			case json.Delim:
				if t == '{' || t == '[' {
					objects = append(objects, t == '{')
				} else {
					objects = objects[:len(objects)-1]
				}
				named = false
				continue
			case string:
				if inObject && !named {
					named = true
					continue
				}
				raw := string(bytes.TrimLeft(payload[from:dec.InputOffset()], ":, \t\r\n"))
				if raw = raw[1 : len(raw)-1]; !yield(t) || raw != t && !yield(raw) {
					return
				}
			case json.Number:
				if !yield(t.String()) {
					return
				}
			}
			named = false
		}
	}
}
