//go:build linux

package main

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// kafkaFaults are faults of the broker, and what it refuses.
func kafkaFaults() []fault {
	return []fault{
		{name: "kill-kafka", what: "kill -9 of the broker, or of all three at once", hold: seconds(0.2, 3), alarms: brokerAway, begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			return s.kafka.StartBroker, s.kafka.KillBroker(ctx)
		}},
		{name: "stop-kafka", what: "the broker stops in order, or all three at once, and starts again", hold: seconds(0.2, 2), alarms: brokerAway, begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			return s.kafka.StartBroker, s.kafka.StopBroker(ctx)
		}},
		{name: "freeze-kafka", what: "the broker, or all three at once, stands still for longer than a session, and goes on", hold: outlasting(2*kafkaAnswer + session/10), alarms: brokerAway, begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			return s.kafka.Unpause, s.kafka.Pause(ctx)
		}},
		{name: missingTopic, what: "a topic does not exist", hold: seconds(4, 7), alarms: topicHeld, begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			return s.createLate, nil // it is not there from the start
		}},
		{name: "refuse-large", what: "the broker takes small records only: MESSAGE_TOO_LARGE", hold: seconds(3, 6), begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			s.hit = s.refused(kafka.MessageSizeTooLarge)
			return setTopic(ctx, s, s.any(), "max.message.bytes", fmt.Sprint(tooLarge), "1048588")
		}},
		{name: "refuse-keyless", what: "the broker compacts a topic, which takes no record without a key: INVALID_RECORD", hold: seconds(3, 6), begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
			s.hit = s.refused(kafka.InvalidRecord)
			return setTopic(ctx, s, s.topics[0], "cleanup.policy", "compact", "delete") // events without a key go to no other
		}},
		{name: "refuse-rights", what: "the broker denies relays and consumers all rights to one topic: TOPIC_AUTHORIZATION_FAILED", hold: seconds(3, 6), begin: denyRights,
			alarms: append([]oracle.Alarm{{By: roleConsumer, Messages: []string{"waiting for the broker"}}}, topicHeld...)},
		{name: "kafka-disk-full", what: "the broker has no space left, or all three, which share the disk", hold: seconds(3, 6), begin: fillKafka, alone: true, alarms: brokerAway,
			impossible: func(g *ground) string {
				if g.lent {
					return "the broker is not this run's alone"
				}
				return g.small.missing()
			}},
	}
}

// missingTopic is the name of the fault that has to come first, because the topic does not exist until it has ended.
const missingTopic = "missing-topic"

// brokerAway is what must be logged while it is away.
var brokerAway = []oracle.Alarm{{By: roleRelay, Messages: []string{"partition waits", "partition held"}, Before: sayEvery}, {By: roleConsumer, Messages: []string{"waiting for the broker"}, Before: sayEvery}}

var topicHeld = []oracle.Alarm{{By: roleRelay, Messages: []string{"topic held"}}}

func (g *ground) createLate(ctx context.Context) error {
	return g.kafka.CreateTopic(ctx, g.late, partitions, nil)
}

// tooLarge is the size in bytes of a batch with one record, compressed, above which it is refused. Ids and headers, which
// do not compress, have half of it, so that small events pass and large ones do not, however well their payloads compress.
const tooLarge = 600

// any draws a topic.
func (s *stage) any() string { return s.topics[s.rng.IntN(len(s.topics))] }

// refused says whether the broker has answered a relay with code since its call.
func (s *stage) refused(code kafka.Error) func() (bool, error) {
	before := s.witness.refused[code]
	return func() (bool, error) {
		err := s.witness.look()
		return s.witness.refused[code] > before, err
	}
}

// setTopic changes one setting of one topic, and returns what changes it back.
func setTopic(ctx context.Context, s *stage, topic, name, value, before string) (func(context.Context) error, error) {
	set := func(ctx context.Context, value string) error {
		res, err := s.kafka.Client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{
			{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
				Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet}}}}})
		if err != nil {
			return fmt.Errorf("set topic %s: %w", topic, err)
		}
		for _, r := range res.Resources {
			if r.Error != nil {
				return fmt.Errorf("set topic %s: %w", topic, r.Error)
			}
		}
		return nil
	}
	return func(ctx context.Context) error { return set(ctx, before) }, set(ctx, value)
}

// denyRights denies everybody the right to write to a topic. If a topic has a rule, the broker allows only what a rule allows: so
// nobody may read it either, or commit an offset of it.
func denyRights(ctx context.Context, s *stage) (func(context.Context) error, error) {
	s.hit = s.refused(kafka.TopicAuthorizationFailed)
	topic := s.any()
	res, err := s.kafka.Client.CreateACLs(ctx, &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
		ResourcePatternType: kafka.PatternTypeLiteral, Principal: "User:ANONYMOUS", Host: "*", Operation: kafka.ACLOperationTypeWrite, PermissionType: kafka.ACLPermissionTypeDeny}}})
	if err == nil && len(res.Errors) > 0 {
		err = res.Errors[0]
	}
	if err != nil {
		return nil, fmt.Errorf("deny rights to %s: %w", topic, err)
	}
	return func(ctx context.Context) error {
		res, err := s.kafka.Client.DeleteACLs(ctx, &kafka.DeleteACLsRequest{Filters: []kafka.DeleteACLsFilter{{ResourceTypeFilter: kafka.ResourceTypeTopic, ResourceNameFilter: topic,
			ResourcePatternTypeFilter: kafka.PatternTypeLiteral, PrincipalFilter: "User:ANONYMOUS", HostFilter: "*", Operation: kafka.ACLOperationTypeWrite, PermissionType: kafka.ACLPermissionTypeDeny}}})
		if err != nil {
			return fmt.Errorf("give rights to %s back: %w", topic, err)
		}
		for _, r := range res.Results {
			if r.Error != nil {
				return fmt.Errorf("give rights to %s back: %w", topic, r.Error)
			}
		}
		return nil
	}, nil
}

// fillKafka leaves no space for the broker, which ends because of that and is started again.
func fillKafka(_ context.Context, s *stage) (func(context.Context) error, error) {
	free, err := s.small.fill(broker)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := free(); err != nil {
			return err
		}
		if err := s.kafka.KillBroker(ctx); err != nil {
			return err
		}
		return s.kafka.StartBroker(ctx)
	}, nil
}
