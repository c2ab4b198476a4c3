package wire

import (
	"errors"
	"fmt"
	"strings"
)

// The headers of a published dead letter, beside those that its event had. The SQL function publish_letter writes them;
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
	HeaderTopic          = "hf_topic"            // where the event was to go, or came from
	HeaderPartition      = "hf_partition"        // left out where there was none
	HeaderOffset         = "hf_offset"           // likewise
	HeaderFirstAt        = "hf_first_at"         // of its first failure
	HeaderLastAt         = "hf_last_at"          // when it was given up
	HeaderPayloadLeftOut = "hf_payload_left_out" // how many bytes the payload has that is not here
	HeaderHeadersLeftOut = "hf_headers_left_out" // how many of the event's headers are not here
)

// MaxLetterHeaders is the most bytes that the names and values of a published letter's headers have: 8 KiB of ours and
// 8 KiB of its event's, the shortest first. What the record's identity takes (ce_id and so on) comes on top.
const MaxLetterHeaders = 16 << 10

// LetterTopic is the topic that a letter of an event of topic is published to: pattern with topic in the place of its
// "*". It is empty where nothing is published: the pattern is, or the topic is itself one of published letters, so that
// a letter about a letter cannot go round.
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

// ValidateLetterTopic says what is wrong with a pattern for LetterTopic. The empty one is right.
func ValidateLetterTopic(pattern string) error {
	name := strings.Replace(pattern, "*", "", 1)
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
	}
	switch {
	case pattern == "":
		return nil
	case name == "":
		return errors.New(`letter topic is "*": letters would go where their events come from; say "*.dlq"`)
	case len(name) > 249 || name == pattern && (name == "." || name == ".."),
		strings.IndexFunc(name, func(r rune) bool { return !legal(r) }) >= 0:
		return fmt.Errorf(`letter topic is %.60q: it must be a Kafka topic's name, of at most 249 letters, digits, ".", "_" and "-", in which one "*" may stand for the event's topic`, pattern)
	}
	return nil
}
