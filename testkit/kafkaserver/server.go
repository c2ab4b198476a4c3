// Package kafkaserver runs a throwaway Kafka for the examples, the benchmark and the tests:
// either in this process, which is up in a millisecond, or the real broker in a container.
//
// Nothing of it is linked into the library packages.
package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// Kinds of server, as Server.Kind says.
const (
	// KindInProcess is an imitation of Kafka inside this process.
	KindInProcess = "in-process"
	// KindContainer is Apache Kafka in a container.
	KindContainer = "container"
	// KindExternal is a cluster that somebody else runs.
	KindExternal = "external"
)

// Server is a Kafka cluster that tests may write to. Its methods may be called from many
// goroutines at once.
type Server struct {
	// Brokers are the addresses to give to a client: host:port.
	Brokers []string
	// Kind is one of the constants Kind….
	Kind string
	// Client talks to the cluster. Each of its requests gives up after 30 s.
	Client *kafka.Client

	backend   backend
	transport *kafka.Transport
	stopOnce  sync.Once
}

// backend is what runs the brokers.
type backend interface {
	stop()
}

// MinSessionTimeout is the shortest session of a consumer group that both kinds of server allow. A killed member holds
// its partitions for a session, and Kafka's own minimum, 6 s, is long for a test.
const MinSessionTimeout = 500 * time.Millisecond

// minSession is the broker's setting that MinSessionTimeout is the value of.
const minSession = "group.min.session.timeout.ms"

func minSessionMillis() string { return strconv.FormatInt(MinSessionTimeout.Milliseconds(), 10) }

// requestTimeout bounds one request; a broker that is being paused or stopped never answers.
const requestTimeout = 30 * time.Second

func newServer(kind string, brokers []string, b backend) *Server {
	// A transport of our own: the default one is shared by the whole process, and would keep
	// connections to brokers of tests that are over.
	transport := &kafka.Transport{DialTimeout: 5 * time.Second, MetadataTTL: metadataTTL}
	return &Server{
		Brokers:   brokers,
		Kind:      kind,
		Client:    &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: requestTimeout, Transport: transport},
		backend:   b,
		transport: transport,
	}
}

// External is a cluster that somebody else runs; Stop leaves it alone. It fails when no broker
// answers within 10 s.
func External(ctx context.Context, brokers ...string) (*Server, error) {
	s := newServer(KindExternal, brokers, external{})
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := s.Client.Metadata(ctx, &kafka.MetadataRequest{}); err != nil {
		s.Stop()
		return nil, fmt.Errorf("ask the brokers %v for metadata: %w", brokers, err)
	}
	return s, nil
}

type external struct{}

func (external) stop() {}

// Stop ends what this package started and removes it. It may be called many times.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		s.transport.CloseIdleConnections()
		s.backend.stop()
	})
}

// CreateTopic makes a topic with one replica and returns when every partition has a leader, so
// that the caller's first write or read finds it. configs are topic settings by Kafka's names,
// "max.message.bytes"; nil means the broker's.
func (s *Server) CreateTopic(ctx context.Context, name string, partitions int, configs map[string]string) error {
	topic := kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: 1}
	for key, value := range configs {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: key, ConfigValue: value})
	}
	err := patiently(ctx, func() error {
		resp, err := s.Client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
		if err != nil {
			return err
		}
		return resp.Errors[name]
	})
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return s.awaitTopic(ctx, name, partitions)
}

// DeleteTopic removes a topic with its records.
func (s *Server) DeleteTopic(ctx context.Context, name string) error {
	err := patiently(ctx, func() error {
		resp, err := s.Client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}})
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
func (s *Server) awaitTopic(ctx context.Context, name string, partitions int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for {
		err := s.topicReady(ctx, name, partitions)
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

func (s *Server) topicReady(ctx context.Context, name string, partitions int) error {
	topic, err := s.topic(ctx, name)
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

func (s *Server) topic(ctx context.Context, name string) (kafka.Topic, error) {
	resp, err := s.Client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
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
