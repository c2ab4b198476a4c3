package franz

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

// GroupConfig says which topics to consume as which consumer group.
type GroupConfig struct {
	// GroupID names the consumer group. Required. Use one group for one inbox.Config.Consumer.
	GroupID string

	// Topics are what the group consumes. Required. Topics and partitions that are added later are picked up.
	Topics []string

	// InstanceID names this node as a static member: one that is back within SessionTimeout has its partitions again, and the others
	// notice nothing. It must be another on each node, and the same after a restart. A node that stops for good is missed after
	// SessionTimeout only. Defaults to none, which leaves the group at a stop.
	InstanceID string

	// SessionTimeout is after how long without a heartbeat the group takes this node's partitions away. Heartbeats go on while
	// partitions are handed over. Brokers have limits of their own (group.min.session.timeout.ms, group.max.session.timeout.ms): outside
	// them Consume ends with inbox.ErrConfiguration. Defaults to 30 s.
	SessionTimeout time.Duration

	// HeartbeatInterval is how often the group hears of this node; at most a third of SessionTimeout. Defaults to a tenth of
	// SessionTimeout, at most 3 s.
	HeartbeatInterval time.Duration

	// RebalanceTimeout is how long the group waits for its members to let go of partitions that move. It must be longer than
	// inbox.Config.StopTimeout and inbox.Config.Grace together. Defaults to these and 15 s, at least 30 s.
	RebalanceTimeout time.Duration

	// WatchInterval is how often new partitions and topics are looked for; at least 100 ms. Defaults to 5 s.
	WatchInterval time.Duration

	// ReadUncommitted also takes in records of Kafka transactions that are still open or were aborted.
	ReadUncommitted bool

	// AdoptCommitted starts at the group's committed offset where Postgres has no position yet: for a group that another program has
	// consumed for so far. Otherwise a partition without a position is read from its first offset, since nothing in this database
	// shows that anything was handled.
	AdoptCommitted bool

	// SkipDeleted goes on after records that Kafka deleted before they were handled. Otherwise Consume holds the partition
	// (source.ErrOffsetOutOfRange). Set it for one start, when the loss was looked at.
	SkipDeleted bool
}

// topicName is what Kafka allows, up to its length.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// problems lists what is wrong whatever inbox the group is for.
func (g GroupConfig) problems() []error {
	var found []error
	bad := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	if g.GroupID == "" || len(g.GroupID) > 255 || !utf8.ValidString(g.GroupID) || strings.ContainsRune(g.GroupID, 0) {
		bad("group id is %s, of %d bytes: it must have 1 to 255, in UTF-8 and without NUL, and be the same on all nodes", excerpt(g.GroupID), len(g.GroupID))
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
	if g.InstanceID != "" && (!topicName.MatchString(g.InstanceID) || len(g.InstanceID) > 249) {
		bad("instance id is %s: it must be of letters, digits, '.', '_' and '-', at most 249", excerpt(g.InstanceID))
	}
	if g.SessionTimeout != 0 && g.SessionTimeout < 100*time.Millisecond {
		bad("session timeout is %s: it must be at least 100ms, and what the broker allows (group.min.session.timeout.ms)", g.SessionTimeout)
	}
	full := g.withDefaults(0)
	if g.HeartbeatInterval < 0 || full.HeartbeatInterval > full.SessionTimeout/3 {
		bad("heartbeat interval is %s: it must be positive, and at most a third of the session timeout, %s", g.HeartbeatInterval, full.SessionTimeout)
	}
	if g.RebalanceTimeout < 0 {
		bad("rebalance timeout is %s: it must be positive, or 0 for the default", g.RebalanceTimeout)
	}
	if g.WatchInterval != 0 && g.WatchInterval < 100*time.Millisecond {
		bad("watch interval is %s: it must be at least 100ms", g.WatchInterval)
	}
	return found
}

// withDefaults fills in what an inbox that takes this long to hand partitions over needs.
func (g GroupConfig) withDefaults(handover time.Duration) GroupConfig {
	g.SessionTimeout = cmp.Or(g.SessionTimeout, 30*time.Second)
	g.HeartbeatInterval = cmp.Or(g.HeartbeatInterval, min(g.SessionTimeout/10, 3*time.Second))
	g.RebalanceTimeout = cmp.Or(g.RebalanceTimeout, max(30*time.Second, handover+15*time.Second))
	g.WatchInterval = cmp.Or(g.WatchInterval, 5*time.Second)
	return g
}

// tooShort lists what does not fit the inbox; g has its defaults.
func (g GroupConfig) tooShort(handover time.Duration) []error {
	if g.RebalanceTimeout > handover {
		return nil
	}
	return []error{fmt.Errorf("rebalance timeout is %s: it must be longer than stop and grace together, %s", g.RebalanceTimeout, handover)}
}

// excerpt quotes the beginning of a value for an error message.
func excerpt(value string) string {
	if len(value) > 64 {
		return strconv.QuoteToASCII(value[:64]) + "…"
	}
	return strconv.QuoteToASCII(value)
}

// options are those of a member's client: the caller's, and those of the group.
func (g GroupConfig) options(opts []kgo.Opt) []kgo.Opt {
	all := append(slices.Clone(opts),
		kgo.ConsumerGroup(g.GroupID), kgo.DisableAutoCommit(), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(g.SessionTimeout), kgo.HeartbeatInterval(g.HeartbeatInterval), kgo.RebalanceTimeout(g.RebalanceTimeout),
		kgo.MetadataMaxAge(g.WatchInterval), kgo.MetadataMinAge(min(g.WatchInterval, 2500*time.Millisecond)))
	if g.InstanceID != "" {
		all = append(all, kgo.InstanceID(g.InstanceID))
	}
	return all
}

// optionProblems lists what the caller's options must not say, because the group says it.
func optionProblems(opts []kgo.Opt) (found []error) {
	defer func() {
		if p := recover(); p != nil { // of a hook
			found = append(found, fmt.Errorf("the options make no client: %v", p))
		}
	}()
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return []error{fmt.Errorf("the options make no client: %w", err)}
	}
	defer client.Close()
	bad := func(text string) { found = append(found, errors.New(text)) }
	if group, _ := client.OptValue(kgo.ConsumerGroup).(string); group != "" {
		bad("the options name the consumer group " + excerpt(group) + ": leave out kgo.ConsumerGroup, GroupConfig.GroupID names it")
	}
	if auto, _ := client.OptValue(kgo.AllowAutoTopicCreation).(bool); auto {
		bad("the options create topics automatically: leave out kgo.AllowAutoTopicCreation, because a mistyped topic would be read as an empty one")
	}
	if id, _ := client.OptValue(kgo.TransactionalID).(string); id != "" {
		bad("the options have the transactional id " + excerpt(id) + ": leave out kgo.TransactionalID, a group publishes nothing")
	}
	if id, _ := client.OptValue(kgo.InstanceID).(string); id != "" {
		bad("the options have the instance id " + excerpt(id) + ": leave out kgo.InstanceID, GroupConfig.InstanceID names it")
	}
	return found
}
