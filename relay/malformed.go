package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast"
)

// This file knows no clock, database or broker. It says what of a row is an event, whatever its columns hold: somebody may have
// written it by SQL, past the functions that check. A row that can be published is. One that cannot be is malformed, and
// becomes a dead letter where it is: Postgres copies it, and it never comes to the relay as a whole.

const (
	maxAddress = 2048    // bytes of topic and key: an index row of parked and of letter has at most 2,704
	maxLetter  = 1 << 46 // ids of dead letters: beyond it, their replays would have no place before all others
)

// examine completes an event that was read. headers are JSON, or empty for none, malformed is what the statement has found.
func (e *logEvent) examine(headers []byte, malformed string) {
	if e.letter < 0 || e.letter >= maxLetter {
		e.letter = 0 // no letter has such an id: it is no replay
	}
	e.malformed = malformed
	if malformed == "" && len(headers) > 0 {
		if err := parseHeaders(headers, &e.Event); err != nil {
			e.malformed = err.Error()
		}
	}
	if e.malformed == "" {
		e.malformed = unfit(e.Topic, e.Key)
	}
	if e.malformed != "" {
		e.Headers, e.Payload = nil, nil
	}
}

// unfit says why no event of a topic and a key can be published or parked, "" if it can be.
func unfit(topic, key string) string {
	switch {
	case !legalTopic(topic):
		return fmt.Sprintf("topic is %.60q: Kafka takes 1 to 249 letters, digits, dots, underscores and hyphens, and not \".\" or \"..\"", topic)
	case len(topic)+len(key) > maxAddress:
		return fmt.Sprintf("topic and key have %d bytes together: at most %d", len(topic)+len(key), maxAddress)
	}
	return ""
}

func legalTopic(topic string) bool {
	if topic == "" || len(topic) > 249 || topic == "." || topic == ".." {
		return false
	}
	for i := range len(topic) {
		switch c := topic[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// parseHeaders fails only for what is no object. Values that are not strings come from an insert by hand; they travel as JSON.
func parseHeaders(text []byte, to *holdfast.Event) error {
	if err := json.Unmarshal(text, &to.Headers); err == nil && !bytes.Contains(text, null) {
		return nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return fmt.Errorf("headers are a JSON %s: they must be an object", kindOf(text))
	}
	to.Headers = make(map[string]string, len(raw))
	for name, value := range raw {
		var s string
		if bytes.Equal(value, null) || json.Unmarshal(value, &s) != nil {
			s = string(value)
		}
		to.Headers[name] = s
	}
	return nil
}

// kindOf names what a JSON text is, without quoting it: a header may be a secret.
func kindOf(text []byte) string {
	switch text = bytes.TrimLeft(text, " \t\r\n"); {
	case len(text) == 0:
		return "text that ends"
	case text[0] == '[':
		return "array"
	case text[0] == '"':
		return "string"
	case text[0] == '{':
		return "object that cannot be read"
	case text[0] == 't', text[0] == 'f':
		return "boolean"
	default:
		return "number"
	}
}

// null is what Unmarshal takes for an empty string.
var null = []byte("null")

// Times that Go's time.Time does not have. They travel without a time, and go back into a table as they came.
var (
	afterAll  = time.UnixMicro(math.MaxInt64).UTC()
	beforeAll = time.UnixMicro(math.MinInt64).UTC()
)

// microsecondsTo2000 is where Postgres's binary timestamps begin.
const microsecondsTo2000 = 946_684_800_000_000

// microseconds reads a binary timestamp, whose ends are the infinities.
func microseconds(since2000 int64) time.Time {
	switch since2000 {
	case math.MaxInt64:
		return afterAll
	case math.MinInt64:
		return beforeAll
	}
	return time.UnixMicro(since2000 + microsecondsTo2000).UTC()
}

func momentOf(t pgtype.Timestamptz) time.Time {
	switch t.InfinityModifier {
	case pgtype.Infinity:
		return afterAll
	case pgtype.NegativeInfinity:
		return beforeAll
	}
	return t.Time.UTC()
}

// momentIn is the reverse of momentOf.
func momentIn(t time.Time) pgtype.Timestamptz {
	switch {
	case t.Equal(afterAll):
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case t.Equal(beforeAll):
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
