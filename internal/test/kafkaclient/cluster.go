// Package kafkaclient makes topics and reads records for tests, on any Kafka.
package kafkaclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// Kinds of Kafka.
const (
	// KindInProcess is an imitation of Kafka inside a process.
	KindInProcess = "in-process"
	// KindContainer is Apache Kafka in a container.
	KindContainer = "container"
	// KindExternal is a cluster that somebody else runs.
	KindExternal = "external"
)

// Cluster is a Kafka that tests may write to. Its methods may be called from many goroutines at once.
type Cluster struct {
	// Brokers are the addresses to give to a client: host:port.
	Brokers []string
	// Replicas is how many the topics of CreateTopic have. Zero means one.
	Replicas int
	// Client talks to the cluster. Each of its requests gives up after 30 s.
	Client *kafka.Client

	transport *kafka.Transport
}

// requestTimeout bounds one request; a broker that is being paused or stopped never answers.
const requestTimeout = 30 * time.Second

// New is the cluster of those brokers. It connects when it is first used.
func New(brokers ...string) *Cluster {
	// A transport of our own: the default one is shared by the whole process, and would keep
	// connections to brokers of tests that are over.
	transport := &kafka.Transport{DialTimeout: 5 * time.Second, MetadataTTL: metadataTTL}
	return &Cluster{
		Brokers: brokers,
		Client: &kafka.Client{
			Addr:      kafka.TCP(brokers...),
			Timeout:   requestTimeout,
			Transport: transport,
		},
		transport: transport,
	}
}

// Dial is New for brokers that somebody else runs. It fails when none of them answers within 10 s.
func Dial(ctx context.Context, brokers ...string) (*Cluster, error) {
	c := New(brokers...)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Client.Metadata(ctx, &kafka.MetadataRequest{}); err != nil {
		c.CloseIdle()
		return nil, fmt.Errorf("ask the brokers %v for metadata: %w", brokers, err)
	}
	return c, nil
}

// CloseIdle drops the connections that nobody uses: those to a broker that has restarted are dead.
func (c *Cluster) CloseIdle() { c.transport.CloseIdleConnections() }

// CreateTopic makes a topic with c.Replicas replicas and returns when every partition has a leader, so
// that the caller's first write or read finds it. configs are topic settings by Kafka's names,
// "max.message.bytes"; nil means the broker's.
func (c *Cluster) CreateTopic(ctx context.Context, name string, partitions int, configs map[string]string) error {
	topic := kafka.TopicConfig{
		Topic:             name,
		NumPartitions:     partitions,
		ReplicationFactor: max(1, c.Replicas),
	}
	for key, value := range configs {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: key, ConfigValue: value})
	}
	timedOut := false
	err := patiently(ctx, func() error {
		resp, err := c.Client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
		if err != nil {
			return err
		}
		switch err := resp.Errors[name]; {
		case errors.Is(err, kafka.RequestTimedOut): // A busy broker makes it later, or has not begun.
			timedOut = true
			return fmt.Errorf("%w: %w", errNotYet, err)
		case timedOut && errors.Is(err, kafka.TopicAlreadyExists):
			return nil
		default:
			return err
		}
	})
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return c.awaitTopic(ctx, name, partitions)
}

// DeleteTopic removes a topic with its records.
func (c *Cluster) DeleteTopic(ctx context.Context, name string) error {
	err := patiently(ctx, func() error {
		resp, err := c.Client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}})
		if err != nil {
			return err
		}
		return resp.Errors[name]
	})
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", name, err)
	}
	return nil
}

// metadataTTL is for how long the transport answers with the topics that it knows.
const metadataTTL = time.Second

// errNotYet is answered where the transport may not know yet.
var errNotYet = errors.New("it may not be known yet")

// patiently repeats f while it answers what a broker answers that has just come back: nothing was
// done yet, try again.
func patiently(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for {
		err := f()
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case errors.Is(err, kafka.BrokerNotAvailable), errors.Is(err, kafka.LeaderNotAvailable),
			errors.Is(err, kafka.NotLeaderForPartition), errors.Is(err, kafka.NotController),
			errors.Is(err, protocol.ErrNoLeader), errors.Is(err, errNotYet):
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var errNoLeader = errors.New("not every partition has a leader yet")

// awaitTopic polls the metadata: a real broker answers CreateTopics before its leaders are known.
func (c *Cluster) awaitTopic(ctx context.Context, name string, partitions int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for {
		err := c.topicReady(ctx, name, partitions)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for topic %s: %w: %w", name, ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *Cluster) topicReady(ctx context.Context, name string, partitions int) error {
	topic, err := c.topic(ctx, name)
	if err != nil {
		return err
	}
	if len(topic.Partitions) != partitions {
		return errNoLeader
	}
	for _, p := range topic.Partitions {
		if p.Error != nil || p.Leader.Port == 0 {
			return errNoLeader
		}
	}
	return nil
}

func (c *Cluster) topic(ctx context.Context, name string) (kafka.Topic, error) {
	resp, err := c.Client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
	if err != nil {
		return kafka.Topic{}, err
	}
	for _, t := range resp.Topics {
		if t.Name == name {
			return t, t.Error
		}
	}
	return kafka.Topic{}, kafka.UnknownTopicOrPartition
}
