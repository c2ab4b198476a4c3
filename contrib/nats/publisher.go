package natsjs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// system names NATS in traces and metrics, where Kafka is "kafka".
const system = "nats"

// nowhere is in place of a partition that is not known.
const nowhere = -1

// The defaults of PublisherConfig.
const (
	defaultPublishTimeout = 5 * time.Second
	defaultMaxInFlight    = 256
	defaultStreamTTL      = 5 * time.Second
)

// PublisherConfig says how events are put into JetStream. The zero value works and is safe.
type PublisherConfig struct {
	// PublishTimeout bounds the wait for the acknowledgement of one event. After it the outcome is unknown; the relay sends the event
	// again, and the server drops it if it has it. A call of Publish ends within three times this. Between 100 ms and 1 min. Defaults to
	// 5 s.
	PublishTimeout time.Duration

	// MaxInFlight is how many events of one call may wait for their acknowledgements, each of another key. Between 1 and 4096.
	// Defaults to 256.
	MaxInFlight int

	// StreamTTL is how long what the server said of a stream is believed; it is asked for again after every failure as well. Between
	// 10 ms and 1 min. Defaults to 5 s.
	StreamTTL time.Duration
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	if c.PublishTimeout == 0 {
		c.PublishTimeout = defaultPublishTimeout
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = defaultMaxInFlight
	}
	if c.StreamTTL == 0 {
		c.StreamTTL = defaultStreamTTL
	}
	return c
}

// problems lists what is out of range; c has its defaults.
func (c PublisherConfig) problems() []error {
	var found []error
	if c.PublishTimeout < 100*time.Millisecond || c.PublishTimeout > time.Minute {
		found = append(found, fmt.Errorf("publish timeout is %v: it must be between 100ms and 1m, or 0 for %v", c.PublishTimeout, defaultPublishTimeout))
	}
	if c.MaxInFlight < 1 || c.MaxInFlight > 4096 {
		found = append(found, fmt.Errorf("max in flight is %d: it must be between 1 and 4096, or 0 for %d", c.MaxInFlight, defaultMaxInFlight))
	}
	if c.StreamTTL < 10*time.Millisecond || c.StreamTTL > time.Minute {
		found = append(found, fmt.Errorf("stream ttl is %v: it must be between 10ms and 1m, or 0 for %v", c.StreamTTL, defaultStreamTTL))
	}
	return found
}

// Publisher is a relay.Publisher on NATS JetStream. Many goroutines may use it at once.
type Publisher struct {
	js      jetstream.JetStream
	config  PublisherConfig
	streams streams
}

var (
	_ publish.Partitioner = (*Publisher)(nil)
	_ publish.Named       = (*Publisher)(nil)
)

// System names the messaging system for traces and metrics: "nats".
func (p *Publisher) System() string { return system }

// NewPublisher returns a publisher on a connection, which stays the caller's to close. The connection should reconnect for ever
// (nats.MaxReconnects(-1)). The error names everything that is wrong with the configuration.
func NewPublisher(js jetstream.JetStream, c PublisherConfig) (*Publisher, error) {
	c = c.withDefaults()
	found := c.problems()
	if js == nil {
		found = append(found, errors.New("jetstream is nil: it must be one of jetstream.New"))
	}
	if err := errors.Join(found...); err != nil {
		return nil, fmt.Errorf("nats publisher config: %w", err)
	}
	return &Publisher{js: js, config: c, streams: streams{js: js, ttl: c.StreamTTL}}, nil
}

// Partition returns the partition of an event, and how many its topic has; 0 and 0 before the first Publish to the topic. Keys have the
// partitions that they have in a Kafka topic with as many, by kafkago and by Java's client.
func (p *Publisher) Partition(e holdfast.Event) (partition, partitions int) {
	info := p.streams.get(e.Topic)
	if info == nil {
		return 0, 0
	}
	return partitionOf(e, info.partitions), info.partitions
}

func partitionOf(e holdfast.Event, partitions int) int {
	if e.Key == "" {
		return murmur2.Partition(e.ID, partitions)
	}
	return murmur2.Partition(wire.RecordKey(e.Key), partitions)
}

// Publish sends the events, and returns when each has its answer. It is for relay.Relay.
func (p *Publisher) Publish(ctx context.Context, events []holdfast.Event) []error {
	answers := make([]error, len(events))
	c := call{
		p:       p,
		events:  events,
		answers: answers,
		last:    time.Now().Add(2 * p.config.PublishTimeout),
	}
	during, stop := whileConnected(ctx, p.js.Conn())
	defer stop()
	c.run(during, c.divide(during))
	return answers
}

// send publishes one event, and returns when the server has stored it.
func (p *Publisher) send(ctx context.Context, info *topicInfo, partition int, e holdfast.Event) error {
	fail := func(m meaning, err error) error {
		if m.fault != publish.FaultRecord {
			info.expired.Store(true)
		}
		return &publish.Error{
			Topic:     e.Topic,
			Partition: partition,
			Fault:     m.fault,
			Class:     m.class,
			Err:       err,
		}
	}
	nc := p.js.Conn()
	if lostConnection(ctx) {
		return fail(ofBroker, errConnectionLost)
	}
	if err := ctx.Err(); err != nil {
		return fail(meaning{publish.FaultBroker, ""}, err)
	}
	if !nc.IsConnected() { // A client that reconnects would keep the event, and send it much later.
		return fail(ofBroker, fmt.Errorf("no connection to a server: it is %s", nc.Status()))
	}
	subject := Subject(e.Topic, partition)
	bounded, cancel := context.WithTimeout(ctx, p.config.PublishTimeout)
	defer cancel()
	m := MessageOf(subject, publish.RecordOf(e))
	if most := nc.MaxPayload(); int64(len(m.Data)) > most {
		return fail(ofRecord, fmt.Errorf("the payload has %d bytes: it must be at most the server's max_payload, %d", len(m.Data), most))
	}
	id := messageID(e)
	ack, err := p.js.PublishMsg(bounded, m, jetstream.WithMsgID(id), jetstream.WithExpectStream(info.stream))
	if err == nil && ack.Duplicate && !p.has(bounded, info.stream, ack.Sequence, subject, id) {
		_, err = p.js.PublishMsg(bounded, MessageOf(subject, publish.RecordOf(e)), jetstream.WithExpectStream(info.stream))
	}
	if err == nil {
		return nil
	}
	if lostConnection(ctx) {
		return fail(ofBroker, fmt.Errorf("%w: %w", errConnectionLost, err))
	}
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // The stream has no leader, or it is gone.
		if _, gone := describe(ctx, p.js, e.Topic, true); gone != nil {
			var wrong *unusable
			if errors.As(gone, &wrong) {
				return fail(ofTopic, gone)
			}
		}
	}
	meant := meaningOf(err)
	if unanswered(err) && ctx.Err() == nil {
		meant, err = silence(nc, subject, err)
	}
	return fail(meant, err)
}

// has says whether a stream has a message that the server called a message of ours a repeat of. It remembers ids for the duplicate window,
// also of messages that have been deleted since. Half of the time is left for sending it again.
func (p *Publisher) has(ctx context.Context, stream string, seq uint64, subject, id string) bool {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	s, err := p.js.Stream(ctx, stream)
	if err != nil {
		return false
	}
	m, err := s.GetMsg(ctx, seq)
	return err == nil && m.Subject == subject && m.Header.Get(jetstream.MsgIDHeader) == id
}
