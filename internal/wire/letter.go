package wire

import (
	"errors"
	"fmt"
	"strings"
)

// The headers of a published dead letter, in addition to those of its event. The SQL function publish_letter writes them;
// a test of the inbox holds the two together. Times are RFC 3339 in UTC to the microsecond, numbers are decimal.
const (
	HeaderLetter         = "hf_letter"           // the letter's id: holdfast dlq show
	HeaderOrigin         = "hf_origin"           // "relay" or "inbox"
	HeaderConsumer       = "hf_consumer"         // whose inbox; left out for the relay
	HeaderReason         = "hf_reason"           // why it was given up, at most 256 characters
	HeaderFingerprint    = "hf_fingerprint"      // equal for letters of one kind of failure, at most 256 characters
	HeaderError          = "hf_error"            // the first line of the last error, at most 512 characters
	HeaderAttempts       = "hf_attempts"         // all tries
	HeaderEventID        = "hf_event_id"         // the event's own id; ce_id is the published letter's
	HeaderTopic          = "hf_topic"            // the topic for which the event was meant, or from which it came
	HeaderPartition      = "hf_partition"        // left out if there was none
	HeaderOffset         = "hf_offset"           // likewise
	HeaderFirstAt        = "hf_first_at"         // of its first failure
	HeaderLastAt         = "hf_last_at"          // when it was given up
	HeaderPayloadLeftOut = "hf_payload_left_out" // the size in bytes of a payload that is left out
	HeaderValueLeftOut   = "hf_value_left_out"   // about the size in bytes of a record whose value was too large to be taken in
	HeaderHeadersLeftOut = "hf_headers_left_out" // how many of the event's headers are left out
)

// MaxLetterHeaders is the most bytes that the names and values of a published dead letter's headers have: 8 KiB of ours
// and 8 KiB of its event's, the shortest first. The headers of the record's identity (ce_id and so on) are not counted.
const MaxLetterHeaders = 16 << 10

// LetterTopic is the topic to which the dead letter of an event of topic is published: pattern with topic in place of its
// "*". It is empty if nothing is published: because the pattern is empty, or because the topic is itself one of published
// dead letters, so that none is published about another for ever.
func LetterTopic(pattern, topic string) string {
	before, after, many := strings.Cut(pattern, "*")
	switch {
	case pattern == "", !many && topic == pattern:
		return ""
	case !many:
		return pattern
	case len(topic) > len(before)+len(after) && strings.HasPrefix(topic, before) && strings.HasSuffix(topic, after):
		return ""
	}
	return before + topic + after
}

// ValidateLetterTopic says what is wrong with a pattern for LetterTopic. The empty one is valid.
func ValidateLetterTopic(pattern string) error {
	name := strings.Replace(pattern, "*", "", 1)
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
	}
	switch {
	case pattern == "":
		return nil
	case name == "":
		return errors.New(`letter topic is "*": dead letters would go to the topics of their events; say "*.dlq"`)
	case len(name) > 249 || name == pattern && (name == "." || name == ".."),
		strings.IndexFunc(name, func(r rune) bool { return !legal(r) }) >= 0:
		return fmt.Errorf(`letter topic is %.60q: it must be a Kafka topic's name, of at most 249 letters, digits, ".", "_" and "-", in which one "*" may stand for the event's topic`, pattern)
	}
	return nil
}
