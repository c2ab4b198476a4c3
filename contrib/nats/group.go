package natsjs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// The defaults of GroupConfig.
const (
	defaultBucket    = "holdfast_groups"
	defaultSession   = 15 * time.Second
	defaultHeartbeat = 2 * time.Second
	defaultWatch     = 5 * time.Second
)

// GroupConfig says which topics to consume as which group.
type GroupConfig struct {
	// GroupID names the group. Required. Use one group for one inbox.Config.Consumer. It has 1 to 100 letters, digits, '_' and '-'.
	GroupID string

	// Topics are what the group consumes. Required. Topics and partitions that are added later are picked up.
	Topics []string

	// Bucket is the key-value bucket in which groups share partitions and keep committed offsets. It is created if it is missing, with as
	// many replicas as the topic's stream that has most. If it is lost, groups go on from the positions in Postgres. Defaults to
	// "holdfast_groups".
	Bucket string

	// SessionTimeout is after how long without a heartbeat the group takes this node's partitions away. Heartbeats go on while partitions
	// are handed over. Defaults to 15 s.
	SessionTimeout time.Duration

	// HeartbeatInterval is how often the group hears of this node; at most a third of SessionTimeout. Defaults to 2 s, or a fifth of
	// SessionTimeout if that is less.
	HeartbeatInterval time.Duration

	// WatchInterval is how often new partitions and topics are looked for. Defaults to 5 s.
	WatchInterval time.Duration

	// AdoptCommitted starts at the group's committed offset where Postgres has no position yet. Otherwise a partition without a
	// position is read from its first offset, since nothing in this database shows that anything was handled.
	AdoptCommitted bool

	// SkipDeleted goes on after events that the stream deleted before they were handled. Otherwise Consume holds the partition
	// (source.ErrOffsetOutOfRange). Set it for one start, when the loss was looked at.
	SkipDeleted bool
}

var (
	groupName  = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,100}$`)
	bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,100}$`)
)

func (g GroupConfig) withDefaults() GroupConfig {
	g.Bucket = cmp.Or(g.Bucket, defaultBucket)
	g.SessionTimeout = cmp.Or(g.SessionTimeout, defaultSession)
	g.HeartbeatInterval = cmp.Or(g.HeartbeatInterval, min(defaultHeartbeat, g.SessionTimeout/5))
	g.WatchInterval = cmp.Or(g.WatchInterval, defaultWatch)
	g.Topics = slices.Clone(g.Topics)
	return g
}

// problems lists what is wrong; g has its defaults.
func (g GroupConfig) problems() []error {
	var found []error
	bad := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	if !groupName.MatchString(g.GroupID) {
		bad("group id is %.60q: it must have 1 to 100 letters, digits, '_' and '-', and be the same on all nodes", g.GroupID)
	}
	if len(g.Topics) == 0 {
		bad("topics is empty: it must name at least one")
	}
	for i, topic := range g.Topics {
		if err := CheckTopic(topic); err != nil {
			found = append(found, err)
		}
		for _, other := range g.Topics[:i] {
			switch {
			case other == topic:
				bad("topics has %.60q twice: it must name each once", topic)
			case StreamName(other) == StreamName(topic):
				bad("topics has %.60q and %.60q: both would be the stream %s", other, topic, StreamName(topic))
			}
		}
	}
	if !bucketName.MatchString(g.Bucket) {
		bad("bucket is %.60q: it must have 1 to 100 letters, digits, '_' and '-'", g.Bucket)
	}
	if g.SessionTimeout < 100*time.Millisecond {
		bad("session timeout is %s: it must be at least 100ms, or 0 for %s", g.SessionTimeout, defaultSession)
	}
	if g.HeartbeatInterval < 10*time.Millisecond || g.HeartbeatInterval > g.SessionTimeout/3 {
		bad("heartbeat interval is %s: it must be between 10ms and a third of the session timeout, %s", g.HeartbeatInterval, g.SessionTimeout)
	}
	if g.WatchInterval < 10*time.Millisecond {
		bad("watch interval is %s: it must be at least 10ms, or 0 for %s", g.WatchInterval, defaultWatch)
	}
	return found
}

// Group is an inbox.Source on NATS JetStream. It may be given to any number of calls of Consume, one after the other or at the same
// time: each is a member of the group of its own.
type Group struct {
	js     jetstream.JetStream
	config GroupConfig
}

var _ source.Named = (*Group)(nil)

// NewGroup returns a group on a connection, which stays the caller's to close, after Consume has returned. The connection should
// reconnect for ever (nats.MaxReconnects(-1)). The error names everything that is wrong with the configuration.
func NewGroup(js jetstream.JetStream, c GroupConfig) (*Group, error) {
	c = c.withDefaults()
	found := c.problems()
	if js == nil {
		found = append(found, errors.New("jetstream is nil: it must be one of jetstream.New"))
	}
	if err := errors.Join(found...); err != nil {
		return nil, fmt.Errorf("nats group config: %w", err)
	}
	return &Group{js: js, config: c}, nil
}

// System names the messaging system for traces and metrics: "nats".
func (g *Group) System() string { return system }

// Open is for inbox.Inbox. Any handover fits: heartbeats go on during one.
func (g *Group) Open(context.Context, time.Duration) (source.Session, error) {
	s := &session{
		js:      g.js,
		config:  g.config,
		id:      strings.ToLower(rand.Text()),
		changed: make(chan struct{}),
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}
