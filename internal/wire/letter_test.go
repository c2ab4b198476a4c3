package wire

import (
	"strings"
	"testing"
)

func TestLetter_ALetterGoesToTheTopicOfItsPattern(t *testing.T) {
	for _, c := range []struct{ name, pattern, topic, want string }{
		{"off", "", "orders", ""},
		{"a suffix", "*.dlq", "orders", "orders.dlq"},
		{"a prefix", "dead-*", "orders", "dead-orders"},
		{"both", "a.*.b", "orders", "a.orders.b"},
		{"one topic for all", "dead-letters", "orders", "dead-letters"},
		{"of a topic of letters", "*.dlq", "orders.dlq", ""},
		{"of the topic of all letters", "dead-letters", "dead-letters", ""},
		{"of a prefixed topic of letters", "dead-*", "dead-orders", ""},
		{"a topic that only looks like one", "*.dlq", "orders-dlq", "orders-dlq.dlq"},
		{"a topic that is the suffix alone", "*.dlq", ".dlq", ".dlq.dlq"},
		{"prefix and suffix overlap in the topic", "ab*ba", "aba", "abababa"},
	} {
		if got := LetterTopic(c.pattern, c.topic); got != c.want {
			t.Errorf("%s: LetterTopic(%q, %q) is %q, want %q", c.name, c.pattern, c.topic, got, c.want)
		}
	}
}

func TestLetter_APatternThatCannotNameATopicIsRefused(t *testing.T) {
	for _, pattern := range []string{"", "*.dlq", "dead-letters", "a*b", "*."} {
		if err := ValidateLetterTopic(pattern); err != nil {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	for _, pattern := range []string{"*", "**.dlq", "*.dlq*", "* dlq", "*/dlq", ".", "..", "ä", strings.Repeat("a", 250)} {
		if err := ValidateLetterTopic(pattern); err == nil || !strings.Contains(err.Error(), "letter topic is") {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}
