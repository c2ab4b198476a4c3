package natsjs

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// This file says how a topic is a stream. It is pure: values in, values out.

const (
	// metadataPartitions is the key of a stream's metadata that says how many partitions its topic has.
	metadataPartitions = "holdfast-partitions"

	// metadataTopic is the key of a stream's metadata that says which topic it is.
	metadataTopic = "holdfast-topic"

	// maxPartitions is how many partitions a topic may have.
	maxPartitions = 1024

	// duplicates is how long the streams of StreamConfig recognise a repeat.
	duplicates = 2 * time.Minute
)

// topicName is what a topic may be called, up to its length: what Kafka allows, in the tokens of a NATS subject.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*$`)

// CheckTopic says why a topic cannot exist in NATS; nil if it can.
func CheckTopic(topic string) error {
	if len(topic) > 200 || !topicName.MatchString(topic) {
		return fmt.Errorf("topic is %.60q: it must have 1 to 200 letters, digits, '_', '-' and '.', with no '.' at an end or beside another, to be a NATS subject", topic)
	}
	return nil
}

// StreamName returns the name of a topic's stream: the topic with "_" for each ".", which a stream's name cannot have. Of two topics
// that differ in this only, such as "a.b" and "a_b", one can exist.
func StreamName(topic string) string { return strings.ReplaceAll(topic, ".", "_") }

// Subject returns the subject of a partition of a topic.
func Subject(topic string, partition int) string { return topic + ".p" + strconv.Itoa(partition) }

// StreamConfig returns how to create a topic's stream: kept on disk without limits, with a duplicate window of 2 minutes. Set its
// Replicas, and what limits its age or size, before you create it. The error says what is wrong with the topic or with the number of
// partitions, which is 1 to 1024. The stream's metadata names the topic ("holdfast-topic") and says how many partitions it has
// ("holdfast-partitions").
func StreamConfig(topic string, partitions int) (jetstream.StreamConfig, error) {
	var wrong error
	if partitions < 1 || partitions > maxPartitions {
		wrong = fmt.Errorf("partitions is %d: it must be between 1 and %d", partitions, maxPartitions)
	}
	if err := errors.Join(CheckTopic(topic), wrong); err != nil {
		return jetstream.StreamConfig{}, err
	}
	return jetstream.StreamConfig{
		Name:       StreamName(topic),
		Subjects:   []string{topic + ".*"},
		Storage:    jetstream.FileStorage,
		Duplicates: duplicates,
		Metadata:   map[string]string{metadataTopic: topic, metadataPartitions: strconv.Itoa(partitions)},
	}, nil
}

// partitionsOf reads how many partitions a topic has, and says everything for which its stream cannot be used. A stream that is read
// only may be a mirror.
func partitionsOf(topic string, c jetstream.StreamConfig, write bool) (int, error) {
	var found []error
	bad := func(format string, args ...any) {
		found = append(found, fmt.Errorf("stream %s: "+format, append([]any{c.Name}, args...)...))
	}
	if of, named := c.Metadata[metadataTopic]; named && of != topic {
		bad("metadata %s is %.60q: it must be %q; streams of both topics would have this name", metadataTopic, of, topic)
	}
	n, err := strconv.Atoi(c.Metadata[metadataPartitions])
	switch {
	case c.Metadata[metadataPartitions] == "":
		bad("metadata %s is missing: it must say how many partitions the topic has (nats stream edit %s --metadata %s=4)", metadataPartitions, c.Name, metadataPartitions)
	case err != nil || n < 1 || n > maxPartitions:
		bad("metadata %s is %.60q: it must be a number between 1 and %d", metadataPartitions, c.Metadata[metadataPartitions], maxPartitions)
	case write:
		for p := range n {
			if !covers(c.Subjects, Subject(topic, p)) {
				bad("subjects are %q: they must have %s, and that of each partition", c.Subjects, Subject(topic, p))
				break
			}
		}
	}
	if c.Retention != jetstream.LimitsPolicy {
		bad("retention is %s: it must be limits, or an event is deleted when one of its consumers has it", c.Retention)
	}
	if c.MaxMsgsPerSubject > 0 {
		bad("max messages per subject is %d: it must be unlimited, or events are deleted before they are read", c.MaxMsgsPerSubject)
	}
	if write && c.NoAck {
		bad("no ack is set: it must not be, because an event is published when the stream acknowledges it")
	}
	if write && c.Sealed {
		bad("it is sealed, and takes no events")
	}
	return n, errors.Join(found...)
}

// covers says whether a stream with these subjects takes messages of a subject.
func covers(subjects []string, subject string) bool {
	tokens := strings.Split(subject, ".")
	for _, s := range subjects {
		if matches(strings.Split(s, "."), tokens) {
			return true
		}
	}
	return false
}

func matches(pattern, tokens []string) bool {
	for i, p := range pattern {
		switch {
		case p == ">":
			return len(tokens) > i
		case i >= len(tokens), p != "*" && p != tokens[i]:
			return false
		}
	}
	return len(pattern) == len(tokens)
}
