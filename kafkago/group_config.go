package kafkago

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// GroupConfig says which topics to consume as which consumer group.
type GroupConfig struct {
	// GroupID names the consumer group. Required. Use one group for one inbox.Config.Consumer.
	GroupID string

	// Topics are what the group consumes. Required. Topics and partitions that are added later are picked up.
	Topics []string

	// SessionTimeout is after how long without a heartbeat the group takes this node's partitions away. The group hears
	// nothing of a node that hands partitions over: so it must be longer than inbox.Config.StopTimeout, inbox.Config.Grace and a
	// HeartbeatInterval together, or the group throws a node out while its handlers finish, and makes all others hand
	// theirs over once more. Brokers have limits of their own (group.min.session.timeout.ms, group.max.session.timeout.ms):
	// outside them Consume ends with inbox.ErrConfiguration.
	// Defaults to inbox.Config.StopTimeout, inbox.Config.Grace and 15 s, at least 30 s.
	SessionTimeout time.Duration

	// HeartbeatInterval is how often the group hears of this node; at most a third of SessionTimeout. Defaults to a tenth
	// of SessionTimeout, at most 3 s.
	HeartbeatInterval time.Duration

	// RebalanceTimeout is how long the group waits for its members to let go of their partitions. It must be longer than
	// inbox.Config.StopTimeout and inbox.Config.Grace together. Defaults to these and 15 s, at least 30 s.
	RebalanceTimeout time.Duration

	// WatchInterval is how often new partitions and topics are looked for. Defaults to 5 s.
	WatchInterval time.Duration

	// ReadUncommitted also takes in records of Kafka transactions that are still open or were aborted.
	ReadUncommitted bool

	// AdoptCommitted starts at the group's committed offset where Postgres has no position yet: for a group that another
	// program has consumed for so far. Otherwise a partition without a position is read from its first offset, since
	// nothing in this database shows that anything was handled.
	AdoptCommitted bool

	// SkipDeleted goes on after records that Kafka deleted before they were handled. Otherwise Consume holds
	// the partition (source.ErrOffsetOutOfRange). Set it for one start, when the loss was looked at.
	SkipDeleted bool
}

// topicName is what Kafka allows, up to its length.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// problems lists what is wrong whatever inbox the group is for.
func (g GroupConfig) problems() []error {
	var found []error
	bad := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	switch {
	case g.GroupID == "":
		bad("group id is empty: it must have 1 to 255 bytes, and be the same on all nodes")
	case len(g.GroupID) > 255 || !utf8.ValidString(g.GroupID) || strings.ContainsRune(g.GroupID, 0):
		bad("group id is %s, of %d bytes: it must have 1 to 255, in UTF-8 and without NUL", excerpt(g.GroupID), len(g.GroupID))
	}
	if len(g.Topics) == 0 {
		bad("topics is empty: it must name at least one")
	}
	for i, topic := range g.Topics {
		if !topicName.MatchString(topic) || len(topic) > 249 {
			bad("topic is %s: it must be a Kafka topic's name, of letters, digits, '.', '_' and '-', at most 249", excerpt(topic))
		}
		if slices.Contains(g.Topics[:i], topic) {
			bad("topics has %s twice: it must name each once", excerpt(topic))
		}
	}
	if g.SessionTimeout != 0 && g.SessionTimeout < 100*time.Millisecond {
		bad("session timeout is %s: it must be at least 100ms, and what the broker allows (group.min.session.timeout.ms)", g.SessionTimeout)
	}
	switch {
	case g.HeartbeatInterval < 0:
		bad("heartbeat interval is %s: it must be positive, or 0 for the default", g.HeartbeatInterval)
	case g.SessionTimeout != 0 && g.HeartbeatInterval > g.SessionTimeout/3:
		found = append(found, g.slowHeartbeat())
	}
	if g.RebalanceTimeout < 0 {
		bad("rebalance timeout is %s: it must be positive, or 0 for the default", g.RebalanceTimeout)
	}
	if g.WatchInterval != 0 && g.WatchInterval < 10*time.Millisecond {
		bad("watch interval is %s: it must be at least 10ms", g.WatchInterval)
	}
	return found
}

// withDefaults fills in what an inbox that takes this long to hand its partitions over needs.
func (g GroupConfig) withDefaults(handover time.Duration) GroupConfig {
	g.SessionTimeout = cmp.Or(g.SessionTimeout, max(30*time.Second, handover+15*time.Second))
	g.HeartbeatInterval = cmp.Or(g.HeartbeatInterval, min(g.SessionTimeout/10, 3*time.Second))
	g.RebalanceTimeout = cmp.Or(g.RebalanceTimeout, max(30*time.Second, handover+15*time.Second))
	g.WatchInterval = cmp.Or(g.WatchInterval, 5*time.Second)
	return g
}

// tooShort lists what does not fit the inbox; g has its defaults.
func (g GroupConfig) tooShort(handover time.Duration) []error {
	var found []error
	bad := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	if silent := handover + g.HeartbeatInterval; g.SessionTimeout <= silent {
		bad("session timeout is %s: it must be longer than stop, grace and heartbeat interval together, %s: "+
			"no heartbeats are sent while partitions are handed over; lengthen it, or shorten those", g.SessionTimeout, silent)
	}
	if g.HeartbeatInterval > g.SessionTimeout/3 {
		found = append(found, g.slowHeartbeat())
	}
	if g.RebalanceTimeout <= handover {
		bad("rebalance timeout is %s: it must be longer than stop and grace together, %s", g.RebalanceTimeout, handover)
	}
	return found
}

func (g GroupConfig) slowHeartbeat() error {
	return fmt.Errorf("heartbeat interval is %s: it must be at most a third of the session timeout, %s", g.HeartbeatInterval, g.SessionTimeout)
}

// The names of a broker's settings that bound GroupConfig.SessionTimeout.
const (
	minSession = "group.min.session.timeout.ms"
	maxSession = "group.max.session.timeout.ms"
)

// sessionRefused is the error of a session time-out that the group's coordinator does not allow: no waiting helps.
func (s *session) sessionRefused(ctx context.Context) error {
	allowed := "it did not tell which it allows"
	if least, most, err := s.sessionRange(ctx); err == nil {
		allowed = fmt.Sprintf("it allows %s to %s", least, most)
	}
	return fmt.Errorf("kafka group: %w: session timeout is %s: the broker refuses it, %s (%s, %s); change GroupConfig.SessionTimeout or the broker's settings",
		source.ErrConfiguration, s.g.SessionTimeout, allowed, minSession, maxSession)
}

// sessionRange asks the group's coordinator which session time-outs it allows.
func (s *session) sessionRange(ctx context.Context) (least, most time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	found, err := s.client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{
		Addr:    s.addr,
		Key:     s.g.GroupID,
		KeyType: kafka.CoordinatorKeyTypeConsumer,
	})
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
