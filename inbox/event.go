package inbox

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
)

var (
	topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)
)

// checkText checks a text that goes into a column: its length in bytes, and characters that Postgres refuses. The error names
// field, value and rule.
func checkText(field, value string, shortest, longest int) error {
	switch n := len(value); {
	case n == 0 && shortest > 0:
		return fmt.Errorf("%s is empty: it must have %d to %d bytes", field, shortest, longest)
	case field == "key" && n > longest: // Keys are often a person's: no error quotes one.
		return fmt.Errorf("%s has %d bytes: it must have %d to %d", field, n, shortest, longest)
	case field == "key" && !utf8.ValidString(value):
		return fmt.Errorf("%s of %d bytes is not UTF-8: it must be", field, n)
	case field == "key" && strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("%s of %d bytes holds the character NUL: it must not", field, n)
	case n < shortest || n > longest:
		return fmt.Errorf("%s has %d bytes (%s): it must have %d to %d", field, n, excerpt(value), shortest, longest)
	case !utf8.ValidString(value):
		return fmt.Errorf("%s is %s: it must be UTF-8", field, excerpt(value))
	case strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("%s is %s: it must not hold the character NUL", field, excerpt(value))
	}
	return nil
}

// excerpt quotes the beginning of a value, for an error message.
func excerpt(value string) string {
	if len(value) > 64 {
		return strconv.QuoteToASCII(value[:64]) + "…"
	}
	return strconv.QuoteToASCII(value)
}

// errUntrusted says that an event claims a source whose events do not come from its topic.
type errUntrusted struct{ error }

// checkSource applies SourceTopics.
func (c Config) checkSource(e holdfast.Event) error {
	topics, named := c.SourceTopics[e.Source]
	if !named || slices.Contains(topics, e.Topic) {
		return nil
	}
	return errUntrusted{fmt.Errorf("source is %s: its events come from the topics %q only, and this one, with the id %s, came from %q", excerpt(e.Source), topics, excerpt(e.ID), e.Topic)}
}

// checkEvent refuses an event that comes alone, before anything is done with it.
func (c Config) checkEvent(e holdfast.Event) error {
	if err := checkEvent(e); err != nil {
		return err
	}
	return c.checkSource(e)
}

// checkEvent refuses what the tables would refuse later, when the sender could no longer be told. The limits are those of
// schema.sql.
func checkEvent(e holdfast.Event) error {
	if err := checkText("id", e.ID, 1, 255); err != nil {
		return fmt.Errorf("%w: the inbox recognises a redelivery by it", err)
	}
	if err := checkText("source", e.Source, 0, 255); err != nil {
		return err
	}
	if err := checkText("type", e.Type, 1, 255); err != nil {
		return err
	}
	if err := checkTopic(e.Topic); err != nil {
		return err
	}
	if err := checkText("key", e.Key, 0, 1024); err != nil {
		return err
	}
	for name, value := range e.Headers {
		// Headers stay as they are. Only what jsonb cannot hold is refused. Their values stay out of errors.
		if !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
			return fmt.Errorf("header name is %s: it must be UTF-8 without NUL", excerpt(name))
		}
		if !utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0 {
			return fmt.Errorf("header %s has a value that is not UTF-8 or holds NUL", excerpt(name))
		}
	}
	return nil
}

func checkTopic(topic string) error {
	if err := checkText("topic", topic, 1, 249); err != nil {
		return err
	}
	if !topicName.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("topic is %s: it must be a Kafka topic's name, of letters, digits, '.', '_' and '-'", excerpt(topic))
	}
	return nil
}

// kafkaID names a record without an event id, by topic, partition and offset. They are the same at each redelivery.
func kafkaID(topic string, partition int, offset int64) string {
	return "kafka:" + topic + "/" + strconv.Itoa(partition) + "/" + strconv.FormatInt(offset, 10)
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
