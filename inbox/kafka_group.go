package inbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

// KafkaGroup says which topics to consume as which consumer group.
type KafkaGroup struct {
	// Brokers are addresses, host:port, of which one must answer. Required.
	Brokers []string

	// GroupID names the consumer group. Required. Use one group for one Config.Consumer.
	GroupID string

	// Topics are what the group consumes. Required. Topics and partitions that are added later are picked up.
	Topics []string

	// Dialer is how brokers are reached: TLS, SASL, time-outs. Defaults to kafka.DefaultDialer.
	Dialer *kafka.Dialer

	// SessionTimeout is after how long without a heartbeat the group takes this node's partitions away. The group hears
	// nothing of a node that hands partitions over: so it must be longer than Config.StopTimeout, Config.Grace and a
	// HeartbeatInterval together, or the group throws a node out while its handlers finish, and makes all others hand
	// theirs over once more. Brokers have limits of their own (group.min.session.timeout.ms, group.max.session.timeout.ms):
	// outside them Consume ends with ErrConfiguration.
	// Defaults to Config.StopTimeout, Config.Grace and 15 s, at least 30 s.
	SessionTimeout time.Duration

	// HeartbeatInterval is how often the group hears of this node; at most a third of SessionTimeout. Defaults to a tenth
	// of SessionTimeout, at most 3 s.
	HeartbeatInterval time.Duration

	// RebalanceTimeout is how long the group waits for its members to let go of their partitions. It must be longer than
	// Config.StopTimeout and Config.Grace together. Defaults to these and 15 s, at least 30 s.
	RebalanceTimeout time.Duration

	// WatchInterval is how often new partitions and topics are looked for. Defaults to 5 s.
	WatchInterval time.Duration

	// ReadUncommitted also takes in records of Kafka transactions that are still open or were aborted.
	ReadUncommitted bool

	// AdoptCommitted starts at the group's committed offset where Postgres has no position yet: for a group that another
	// program has consumed for so far. Otherwise a partition without a position is read from its first offset, since
	// nothing in this database shows that anything was handled.
	AdoptCommitted bool

	// SkipDeleted goes on behind records that Kafka deleted before they were handled. Otherwise Consume returns
	// ErrOffsetOutOfRange. Set it for one start, when the loss was looked at.
	SkipDeleted bool
}

func (g KafkaGroup) withDefaults(c Config) KafkaGroup {
	g.Dialer = or(g.Dialer, kafka.DefaultDialer)
	g.SessionTimeout = or(g.SessionTimeout, max(30*time.Second, c.StopTimeout+c.Grace+15*time.Second))
	g.HeartbeatInterval = or(g.HeartbeatInterval, min(g.SessionTimeout/10, 3*time.Second))
	g.RebalanceTimeout = or(g.RebalanceTimeout, max(30*time.Second, c.StopTimeout+c.Grace+15*time.Second))
	g.WatchInterval = or(g.WatchInterval, 5*time.Second)
	return g
}

func (g KafkaGroup) validate(c Config) error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(g.Brokers) == 0 {
		bad("brokers is empty: give the address, host:port, of at least one broker")
	}
	for _, b := range g.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			bad("broker is %s: it must be host:port", excerpt(b))
		}
	}
	if err := checkText("group id", g.GroupID, 1, 255); err != nil {
		bad("%w: name the consumer group, the same on all nodes", err)
	}
	if len(g.Topics) == 0 {
		bad("topics is empty: name at least one topic")
	}
	for i, topic := range g.Topics {
		if !topicName.MatchString(topic) || len(topic) > 249 {
			bad("topic is %s: it must be a Kafka topic's name, of letters, digits, '.', '_' and '-', at most 249", excerpt(topic))
		}
		if slices.Contains(g.Topics[:i], topic) {
			bad("topic %s is named twice", excerpt(topic))
		}
	}
	if g.SessionTimeout < 100*time.Millisecond {
		bad("session timeout is %s: it must be at least 100ms, and what the broker allows (group.min.session.timeout.ms)", g.SessionTimeout)
	}
	if silent := c.StopTimeout + c.Grace + max(g.HeartbeatInterval, 0); g.SessionTimeout <= silent {
		bad("session timeout is %s: it must be longer than stop, grace and heartbeat interval together, %s: "+
			"no heartbeats are sent while partitions are handed over; lengthen it, or shorten those", g.SessionTimeout, silent)
	}
	if g.HeartbeatInterval <= 0 || g.HeartbeatInterval > g.SessionTimeout/3 {
		bad("heartbeat interval is %s: it must be above 0 and at most a third of the session timeout, %s", g.HeartbeatInterval, g.SessionTimeout)
	}
	if g.RebalanceTimeout <= c.StopTimeout+c.Grace {
		bad("rebalance timeout is %s: it must be longer than stop and grace together, %s", g.RebalanceTimeout, c.StopTimeout+c.Grace)
	}
	if g.WatchInterval < 10*time.Millisecond {
		bad("watch interval is %s: it must be at least 10ms", g.WatchInterval)
	}
	return errors.Join(problems...)
}

// The names of a broker's settings that bound KafkaGroup.SessionTimeout.
const (
	minSession = "group.min.session.timeout.ms"
	maxSession = "group.max.session.timeout.ms"
)

// sessionRefused is the error of a session time-out that the group's coordinator does not allow: no waiting helps.
func (s *kafkaSource) sessionRefused(ctx context.Context) error {
	allowed := "it did not tell which it allows"
	if least, most, err := s.sessionRange(ctx); err == nil {
		allowed = fmt.Sprintf("it allows %s to %s", least, most)
	}
	return fmt.Errorf("kafka group: %w: session timeout is %s: the broker refuses it, %s (%s, %s); change KafkaGroup.SessionTimeout or the broker's settings",
		ErrConfiguration, s.g.SessionTimeout, allowed, minSession, maxSession)
}

// sessionRange asks the group's coordinator which session time-outs it allows.
func (s *kafkaSource) sessionRange(ctx context.Context) (least, most time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	found, err := s.client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Addr: s.addr, Key: s.g.GroupID, KeyType: kafka.CoordinatorKeyTypeConsumer})
	if err != nil {
		return 0, 0, err
	}
	if err := found.Error; err != nil {
		return 0, 0, err
	}
	res, err := s.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Addr: s.addr, Resources: []kafka.DescribeConfigRequestResource{{
		ResourceType: kafka.ResourceTypeBroker, ResourceName: strconv.Itoa(found.Coordinator.NodeID), ConfigNames: []string{minSession, maxSession},
	}}})
	if err != nil {
		return 0, 0, err
	}
	spans := map[string]time.Duration{}
	for _, r := range res.Resources {
		for _, e := range r.ConfigEntries {
			if ms, err := strconv.ParseInt(e.ConfigValue, 10, 64); err == nil {
				spans[e.ConfigName] = time.Duration(ms) * time.Millisecond
			}
		}
	}
	if spans[minSession] == 0 || spans[maxSession] == 0 {
		return 0, 0, errors.New("the broker said nothing of its limits")
	}
	return spans[minSession], spans[maxSession], nil
}
