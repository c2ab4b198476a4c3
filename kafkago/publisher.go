package kafkago

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/singleflight"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Publisher is a relay.Publisher on kafka-go's Client.Produce. It may be used by many goroutines at once.
//
// Order: of one call, a partition's events leave in the order given, one request at a time; what follows a failed
// request of its partition does not leave. Calls that run at the same time have no order between them.
//
// After a time-out: kafka-go cannot take a request back. Publish therefore never abandons one: when ctx is
// cancelled it sends no further request and waits for the answer of those under way, at most ProduceTimeout (or until
// ctx's own deadline, which counts as well). At that moment the connection's deadline passes too, so this process
// writes nothing more on it, and it is closed. What the machine's network stack and the broker had already taken may
// still be written by the broker after Publish has returned, and so after our next attempt: the log then holds a repeat
// of older events after newer ones. Consumers drop it by its ids, and no event is ever first written out of order.
// Dial makes that window smaller.
type Publisher struct {
	client  kafka.Client
	config  PublisherConfig
	own     *kafka.Transport // beneath what Connection.Wrap made of it
	topics  topicCache
	records sync.Pool // of *recordReader

	// ackedAt is when a broker last acknowledged anything, in nanoseconds since start, and asking are the questions under
	// way whether another leader answers. They tell a broker that is away from a cluster that is.
	start   time.Time
	ackedAt atomic.Int64
	asking  singleflight.Group

	// usual is what a request of many partitions has taken of late, in nanoseconds.
	usual atomic.Int64

	// resumeAt is until when the brokers have asked us to wait, in nanoseconds since start.
	resumeAt atomic.Int64
}

// NewPublisher returns a Publisher, or one error that names every problem of the configuration. It does not touch the
// network.
func NewPublisher(c Connection, k PublisherConfig) (*Publisher, error) {
	k = k.withDefaults()
	own, use := c.transport(Dial, k.MetadataTTL)
	if err := errors.Join(slices.Concat(c.problems(), transportProblems(use), k.problems())...); err != nil {
		return nil, fmt.Errorf("kafka publisher: %w", err)
	}
	p := &Publisher{config: k, own: own, start: time.Now()}
	// The time-out is not for our sake, each request has its deadline: kafka-go tells the broker half of this time to
	// replicate in, and with none only half a second.
	p.client = kafka.Client{
		Addr:      kafka.TCP(c.Brokers...),
		Transport: use,
		Timeout:   k.ProduceTimeout,
	}
	p.topics = topicCache{client: &p.client, ttl: k.MetadataTTL, timeout: k.ProduceTimeout}
	p.records.New = func() any { return new(recordReader) }
	return p, nil
}

// Close closes the connections to the brokers. Call it when the relay has stopped; a Publish after it connects again.
// What Connection.Wrap opened is its owner's to close. Close may be called many times, by many goroutines at once.
func (pu *Publisher) Close() { pu.own.CloseIdleConnections() }

var _ publish.Pinger = (*Publisher)(nil)

// Ping returns nil once any broker has answered, and else why none does: publish.Pinger.
func (pu *Publisher) Ping(ctx context.Context) error {
	_, err := pu.client.ApiVersions(ctx, &kafka.ApiVersionsRequest{Addr: pu.client.Addr})
	return err
}

// Partition says which partition e would go to, and how many its topic has, by the metadata at hand: publish.Partitioner. Both
// are 0 for a topic that no call of Publish has met yet, and for one that does not exist. It never asks the network.
func (pu *Publisher) Partition(e holdfast.Event) (partition, partitions int) {
	t := pu.topics.known(e.Topic)
	if t == nil {
		return 0, 0
	}
	p := pu.config.PartitionFunc(e, t.partitions)
	if p < 0 || p >= t.partitions {
		return 0, 0 // Publish says what is wrong
	}
	return p, t.partitions
}

var _ publish.Partitioner = (*Publisher)(nil)

// manyPartitions is from how many on the partitions of one call share requests. A relay has calls of so many only for a topic that
// it has not met.
const manyPartitions = 32

// Publish sends events to Kafka, the partitions at the same time, and answers once for each: nil when all in-sync
// replicas have it, else an error that wraps a *publish.Error. A batch that is refused because of one record is divided
// until that record stands alone; it is refused, the later events of its topic and key are not sent and answer with its
// error, wrapped, and everything else is sent. Any other failure ends its partition for this call: what has not left
// does not leave.
//
// Publish does not change events; on an error that is not from a broker, kafka-go may read the payloads a moment longer.
func (pu *Publisher) Publish(ctx context.Context, events []holdfast.Event) []error {
	answers := make([]error, len(events))
	if len(events) == 0 {
		return answers
	}
	queues := pu.route(ctx, events, answers)

	pu.send(ctx, queues, manyPartitions, func(int) {})
	return answers
}

// route divides events by partition, in their order. Events of topics that cannot be written to get their answers here.
func (pu *Publisher) route(ctx context.Context, events []holdfast.Event, answers []error) []partitionQueue {
	topics := pu.topics.lookup(ctx, events)
	places := place(events, topics, pu.config.PartitionFunc)
	queues := divide(events, answers, topics, places)
	for i := range queues {
		q := &queues[i]
		q.Limit = pu.config.MaxRequestBytes
		if learned := int(q.info.limit.Load()); learned > 0 {
			q.Limit = min(q.Limit, learned)
		}
	}
	return queues
}

// drain sends one partition's events: ask the queue for a batch, send it, tell the queue how it went.
func (pu *Publisher) drain(ctx context.Context, q *partitionQueue) {
	limit := q.Limit
	for batch := q.Next(); batch != nil; batch = q.Next() {
		err, records := pu.produce(ctx, q, batch)
		q.Settle(batch, err, records)
		if err != nil && err.Fault != publish.FaultRecord {
			pu.topics.expire(q.Topic)
		}
	}
	if q.Limit < limit {
		q.info.limit.Store(int64(q.Limit))
	}
}
