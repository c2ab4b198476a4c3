package dlq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
)

// CheckPayload says what is wrong with a payload that a person gives to the letter, before Edit: if the letter's payload is JSON,
// the new one must be JSON too. The error names the line and the column of the first mistake, in characters and counted from 1.
//
// A payload is JSON if the header "content-type" says so, or, without that header, if it is a JSON object or array now. Nil, a
// tombstone, is right for every letter. Edit itself does not check: a program may have its reasons. It needs no database, and may
// be called from many goroutines.
func (l Letter) CheckPayload(payload []byte) error {
	kind, isJSON := l.isJSON()
	if payload == nil || !isJSON {
		return nil
	}
	begin, text := 0, payload
	if framed(payload) {
		begin, text = frame, payload[frame:]
	}
	offset, why := mistake(text)
	if why == nil {
		return nil
	}
	line, column := place(text[:offset])
	where := fmt.Sprintf("line %d, column %d", line, column)
	if begin > 0 {
		where += fmt.Sprintf(" after the first %d bytes", begin)
	}
	return fmt.Errorf("the new payload of letter %d is not JSON: %s: %w; %s", l.ID, where, why, kind)
}

// IsJSON says whether CheckPayload wants JSON.
func (l Letter) IsJSON() bool {
	_, is := l.isJSON()
	return is
}

// isJSON says too how it knows.
func (l Letter) isJSON() (kind string, is bool) {
	for name, value := range l.Event.Headers {
		if !strings.EqualFold(name, holdfast.HeaderContentType) {
			continue
		}
		media, _, err := mime.ParseMediaType(value)
		if err != nil {
			return "", false
		}
		return "it must be, because the event's content-type is " + value, media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
	}
	now := bytes.TrimLeft(l.Event.Payload, " \t\r\n")
	return "it must be, because the payload is JSON now", len(now) > 0 && (now[0] == '{' || now[0] == '[') && json.Valid(now)
}

// frame is the length of what a schema registry puts before a payload: a zero byte and the schema's number. No JSON begins with a
// zero byte.
const frame = 5

func framed(payload []byte) bool { return len(payload) >= frame && payload[0] == 0 }

// mistake is the first one of a JSON text: how many bytes are before it, and what it is. why is nil if there is none.
func mistake(text []byte) (offset int, why error) {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			return i, errors.New("it is not UTF-8")
		}
		i += size
	}
	var whole json.RawMessage
	err := json.Unmarshal(text, &whole)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &syntax):
		return 0, err
	case int(syntax.Offset) >= len(text) && strings.HasPrefix(err.Error(), "unexpected end"):
		return len(text), err
	}
	return max(0, int(syntax.Offset)-1), err // it counts the character that it stumbled over
}

// place is the line and the column of what follows.
func place(before []byte) (line, column int) {
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}
