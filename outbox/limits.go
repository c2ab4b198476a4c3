package outbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// The limits of every event, checked before it is written. schema.sql enforces the same limits (holdfast.refusal) for
// all who call its functions; a test sends the same events through all doors.
const (
	maxEvents      = 10_000
	maxID          = 255
	maxSource      = 255
	maxType        = 255
	maxTopic       = 249 // Kafka: org.apache.kafka.common.internals.Topic
	maxKey         = 1024
	maxHeaderName  = 255
	maxHeaders     = 64
	maxHeaderBytes = 8 << 10 // names and values together
	reportedLimits = 10      // maximum number of problems in one error
)

// LimitError says which event of a Write exceeds which limit. It never contains a payload, a header's value or a key.
type LimitError struct {
	Index int    // of the event in the call; -1 if the problem is the call itself
	Field string // "topic", "payload", "header traceparent"
	Value string // the value, shortened; its size if the content is private
	Rule  string // what the value must be: "it must be at most 249"
}

func (e *LimitError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("%s is %s: %s", e.Field, e.Value, e.Rule)
	}
	return fmt.Sprintf("event %d: %s is %s: %s", e.Index, e.Field, e.Value, e.Rule)
}

// check returns the first problems of events, joined, or nil.
func (o *Outbox) check(events []holdfast.Event) error {
	if len(events) > maxEvents {
		return &LimitError{-1, "number of events", fmt.Sprint(len(events)), fmt.Sprintf("it must be at most %d in one Write: split the call", maxEvents)}
	}
	var problems []error
	for i := range events {
		for _, p := range checkEvent(&events[i], o.maxPayload) {
			p.Index = i
			problems = append(problems, p)
		}
		if len(problems) >= reportedLimits {
			break
		}
	}
	return errors.Join(problems...)
}

func checkEvent(e *holdfast.Event, maxPayload int) (problems []*LimitError) {
	text := func(field, value string, min, max int) {
		if p := limitText(field, value, min, max); p != nil {
			problems = append(problems, p)
		}
	}
	text("id", e.ID, 0, maxID)
	text("source", e.Source, 0, maxSource)
	text("type", e.Type, 1, maxType)
	text("key", e.Key, 0, maxKey)
	if p := limitTopic(e.Topic); p != nil {
		problems = append(problems, p)
	}
	if p := limitPayload(e.Payload, maxPayload); p != nil {
		problems = append(problems, p)
	}
	for _, moment := range []struct {
		field string
		at    time.Time
	}{{"time", e.Time}, {"not before", e.NotBefore}} {
		// In UTC, as it travels and as Postgres judges it.
		if year := moment.at.UTC().Year(); !moment.at.IsZero() && (year < 1 || year > 9999) {
			problems = append(problems, &LimitError{
				Field: moment.field,
				Value: fmt.Sprintf("in the year %d", year),
				Rule:  "it must be in a year from 1 to 9999 (RFC 3339)",
			})
		}
	}
	return append(problems, limitHeaders(e.Headers)...)
}

func limitPayload(payload []byte, maxPayload int) *LimitError {
	if maxPayload < 0 || len(payload) <= maxPayload {
		return nil
	}
	return &LimitError{Field: "payload", Value: fmt.Sprintf("%d bytes long", len(payload)),
		Rule: fmt.Sprintf("it must be at most %d (outbox.Config.MaxPayload): store the content elsewhere and send its address", maxPayload)}
}

// limitSealed checks what encryption has added to an event that was within the limits.
func limitSealed(e *holdfast.Event, maxPayload int) (problems []*LimitError) {
	if p := limitPayload(e.Payload, maxPayload); p != nil {
		p.Value += ", encrypted"
		problems = append(problems, p)
	}
	return append(problems, limitSizes(e.Headers)...)
}

func limitText(field, value string, min, max int) *LimitError {
	switch {
	case len(value) < min:
		return &LimitError{
			Field: field,
			Value: "empty",
			Rule:  fmt.Sprintf("it must be %d to %d bytes", min, max),
		}
	case len(value) > max:
		return &LimitError{
			Field: field,
			Value: fmt.Sprintf("%d bytes long", len(value)),
			Rule:  fmt.Sprintf("it must be at most %d", max),
		}
	case !utf8.ValidString(value):
		return &LimitError{Field: field, Value: shown(field, value), Rule: "it must be valid UTF-8"}
	case strings.IndexByte(value, 0) >= 0:
		return &LimitError{
			Field: field,
			Value: shown(field, value),
			Rule:  "it must not contain NUL",
		}
	}
	return nil
}

// shown is a value as an error quotes it. A key is often a person's, so of a key it is the size.
func shown(field, value string) string {
	if field == "key" {
		return fmt.Sprintf("%d bytes long", len(value))
	}
	return fmt.Sprintf("%.40q", value)
}

// checkText is limitText for a value that is not part of an event.
func checkText(field, value string, min, max int) error {
	if p := limitText(field, value, min, max); p != nil {
		p.Index = -1
		return p
	}
	return nil
}

func limitTopic(topic string) *LimitError {
	if p := limitText("topic", topic, 1, maxTopic); p != nil {
		return p
	}
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
	}
	if topic == "." || topic == ".." || strings.IndexFunc(topic, func(r rune) bool { return !legal(r) }) >= 0 {
		return &LimitError{
			Field: "topic",
			Value: fmt.Sprintf("%.60q", topic),
			Rule:  `it must be letters, digits, ".", "_" and "-", and not "." or ".." (Kafka)`,
		}
	}
	return nil
}

func limitHeaders(headers map[string]string) (problems []*LimitError) {
	for name, value := range headers {
		field := fmt.Sprintf("header %.60q", name)
		switch {
		case !token(name):
			problems = append(problems, &LimitError{
				Field: field,
				Value: "misnamed",
				Rule:  fmt.Sprintf("it must be an HTTP token of 1 to %d bytes (RFC 9110, section 5.6.2)", maxHeaderName),
			})
		case wire.Reserved(name):
			problems = append(problems, &LimitError{
				Field: field,
				Value: "reserved",
				Rule:  `it must not begin with "ce_" or "hf_", nor be "holdfast-encryption": those are not the user's`,
			})
		case !utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0:
			problems = append(problems, &LimitError{
				Field: field,
				Value: fmt.Sprintf("%d bytes long", len(value)),
				Rule:  "it must be valid UTF-8 without NUL: encode binary values",
			})
		}
	}
	return append(problems, limitSizes(headers)...)
}

// limitSizes checks how many headers there are, and their size.
func limitSizes(headers map[string]string) (problems []*LimitError) {
	bytes := 0
	for name, value := range headers {
		bytes += len(name) + len(value)
	}
	if len(headers) > maxHeaders {
		problems = append(problems, &LimitError{
			Field: "number of headers",
			Value: fmt.Sprint(len(headers)),
			Rule:  fmt.Sprintf("it must be at most %d", maxHeaders),
		})
	}
	if bytes > maxHeaderBytes {
		problems = append(problems, &LimitError{
			Field: "headers",
			Value: fmt.Sprintf("%d bytes long", bytes),
			Rule:  fmt.Sprintf("it must be at most %d, names and values together", maxHeaderBytes),
		})
	}
	return problems
}

// token reports whether name is a token as RFC 9110, section 5.6.2, defines it.
func token(name string) bool {
	if name == "" || len(name) > maxHeaderName {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return true
}
