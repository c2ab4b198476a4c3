package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/singleflight"

	"github.com/holdfast-go/holdfast"
)

// NoCompression turns compression off in KafkaConfig, where zero means the default.
const NoCompression kafka.Compression = -1

// The defaults of KafkaConfig.
const (
	defaultCompression     = kafka.Snappy
	defaultProduceTimeout  = 10 * time.Second
	defaultMaxRequestBytes = 1<<20 - 4<<10
	defaultMetadataTTL     = 5 * time.Second
	defaultParallel        = 64
)

// KafkaConfig says how events are put into Kafka. The zero value works and is safe. Acknowledgement by all in-sync
// replicas is not configurable: without it "published" means nothing; have min.insync.replicas at 2 on the topics.
type KafkaConfig struct {
	// Compression of the batches; NoCompression for none. Defaults to kafka.Snappy: against Lz4, on events
	// of 300 bytes of JSON, it takes a quarter less processor time and a tenth of the memory in kafka-go, for 4 % more bytes.
	Compression kafka.Compression

	// Partitioner says which partition an event goes to. Defaults to Murmur2, as the Java client.
	Partitioner Partitioner

	// ProduceTimeout bounds one request, from finding a connection to the answer. The brokers get half of it to
	// replicate. After it the outcome is unknown, and the events are sent again. Between 100 ms and 5 min; keep it well
	// under the relay's lease. Defaults to 10 s.
	ProduceTimeout time.Duration

	// MaxRequestBytes bounds a batch before compression; a partition's events beyond it follow in a batch of their own,
	// after the first is acknowledged. The topics' max.message.bytes counts whole batches, after compression: a smaller
	// one is found out by refusals and remembered for a while. An event longer than this is sent alone, and the
	// broker decides. Between 1 KiB and 100 MiB. Defaults to 1 MiB less 4 KiB.
	MaxRequestBytes int

	// MetadataTTL is how long a topic's number of partitions is believed; it is asked for again after every failure as
	// well. Between 10 ms and 1 min. Defaults to 5 s.
	MetadataTTL time.Duration

	// Parallel is how many partitions one call of Publish sends to at once. kafka-go opens a connection for every
	// request under way, so this times the lanes bounds the connections. Between 1 and 1,024. Defaults to 64.
	Parallel int
}

func (c KafkaConfig) withDefaults() KafkaConfig {
	switch c.Compression {
	case 0:
		c.Compression = defaultCompression
	case NoCompression:
		c.Compression = 0
	}
	if c.Partitioner == nil {
		c.Partitioner = Murmur2
	}
	if c.ProduceTimeout == 0 {
		c.ProduceTimeout = defaultProduceTimeout
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = defaultMaxRequestBytes
	}
	if c.MetadataTTL == 0 {
		c.MetadataTTL = defaultMetadataTTL
	}
	if c.Parallel == 0 {
		c.Parallel = defaultParallel
	}
	return c
}

// Kafka is a Publisher on kafka-go's Client.Produce. It may be used by many goroutines at once.
//
// Order: of one call, a partition's events leave in the order given, one request at a time; what follows a failed
// request of its partition does not leave. Calls that run at the same time have no order between them.
//
// What a timeout leaves behind: kafka-go cannot take a request back. Publish therefore never abandons one: when ctx is
// cancelled it sends no further request and waits for the answer of those under way, at most ProduceTimeout (or until
// ctx's own deadline, which counts as well). At that moment the connection's deadline passes too, so this process
// writes nothing more on it, and it is closed. What the machine's network stack and the broker had already taken may
// still be written by the broker after Publish has returned, and so after our next attempt: the log then holds a repeat
// of older events behind newer ones. Consumers drop it by its ids, and no event is ever first written out of order.
// KafkaDial makes that window smaller.
type Kafka struct {
	client  kafka.Client // a copy: its Timeout is ours to set
	config  KafkaConfig
	own     *kafka.Transport // nil when the caller gave one
	topics  topicCache
	records sync.Pool // of *recordReader

	// ackedAt is when a broker last acknowledged anything, in nanoseconds since start, and asking are the questions under
	// way whether another leader answers. They tell a broker that is away from a cluster that is.
	start   time.Time
	ackedAt atomic.Int64
	asking  singleflight.Group

	// resumeAt is until when the brokers have asked us to wait, in nanoseconds since start.
	resumeAt atomic.Int64
}

// NewKafka returns a Publisher that uses c's address, transport and time limit. It refuses what would lose events or
// hang, every problem with its remedy in one error. A client without a Transport gets one of its own instead of
// kafka.DefaultTransport; one for TLS or SASL is well made with KafkaDial:
//
//	kafka.Client{Addr: kafka.TCP("kafka:9092"), Transport: &kafka.Transport{Dial: relay.KafkaDial, TLS: …, SASL: …}}
func NewKafka(c *kafka.Client, k KafkaConfig) (*Kafka, error) {
	k = k.withDefaults()
	if err := errors.Join(append(k.problems(), clientProblems(c, k)...)...); err != nil {
		return nil, fmt.Errorf("configure the Kafka publisher: %w", err)
	}
	client := *c
	if client.Timeout == 0 {
		// Not for our sake, each request has its deadline: kafka-go tells the broker half of this time to replicate in,
		// and with none only half a second.
		client.Timeout = k.ProduceTimeout
	}
	var own *kafka.Transport
	if client.Transport == nil {
		own = &kafka.Transport{Dial: KafkaDial, ClientID: "holdfast", MetadataTTL: k.MetadataTTL}
		client.Transport = own
	}
	p := &Kafka{client: client, config: k, own: own, start: time.Now()}
	p.topics = topicCache{client: &p.client, ttl: k.MetadataTTL, timeout: k.ProduceTimeout}
	p.records.New = func() any { return new(recordReader) }
	return p, nil
}

// Close closes the connections to the brokers. Call it when the relay has stopped; a Publish after it connects again.
// A Transport that the kafka.Client came with is its owner's to close, by CloseIdleConnections. Close may be called many
// times, by many goroutines at once.
func (k *Kafka) Close() {
	if k.own != nil {
		k.own.CloseIdleConnections()
	}
}

// problems lists what is out of range; c has its defaults.
func (c KafkaConfig) problems() []error {
	var found []error
	if c.Compression != 0 && c.Compression.Codec() == nil {
		found = append(found, fmt.Errorf("KafkaConfig.Compression is %d: use NoCompression, or a codec of kafka-go such as kafka.Snappy", c.Compression))
	}
	if c.ProduceTimeout < 100*time.Millisecond || c.ProduceTimeout > 5*time.Minute {
		found = append(found, fmt.Errorf("KafkaConfig.ProduceTimeout is %v: set it between 100ms and 5m, or leave it 0 for %v", c.ProduceTimeout, defaultProduceTimeout))
	}
	if c.MaxRequestBytes < 1<<10 || c.MaxRequestBytes > 100<<20 {
		found = append(found, fmt.Errorf("KafkaConfig.MaxRequestBytes is %d: set it between 1024 and 104857600, or leave it 0 for %d", c.MaxRequestBytes, defaultMaxRequestBytes))
	}
	if c.MetadataTTL < 10*time.Millisecond || c.MetadataTTL > time.Minute {
		found = append(found, fmt.Errorf("KafkaConfig.MetadataTTL is %v: set it between 10ms and 1m, or leave it 0 for %v", c.MetadataTTL, defaultMetadataTTL))
	}
	if c.Parallel < 1 || c.Parallel > 1024 {
		found = append(found, fmt.Errorf("KafkaConfig.Parallel is %d: set it between 1 and 1024, or leave it 0 for %d", c.Parallel, defaultParallel))
	}
	return found
}

// clientProblems lists what would lose events or hang with c.
func clientProblems(c *kafka.Client, k KafkaConfig) []error {
	if c == nil {
		return []error{errors.New(`the kafka.Client is nil: pass &kafka.Client{Addr: kafka.TCP("host:9092")}`)}
	}
	var found []error
	if c.Addr == nil || c.Addr.String() == "" {
		found = append(found, errors.New(`kafka.Client.Addr is empty: set it, for instance to kafka.TCP("host:9092")`))
	}
	if c.Timeout < 0 || c.Timeout > 0 && c.Timeout < k.ProduceTimeout {
		found = append(found, fmt.Errorf("kafka.Client.Timeout is %v, shorter than KafkaConfig.ProduceTimeout (%v): requests would be given up while the broker still writes them: leave it 0, or lower ProduceTimeout", c.Timeout, k.ProduceTimeout))
	}
	t, ours := c.Transport.(*kafka.Transport)
	switch {
	case !ours:
	case t == nil:
		found = append(found, errors.New("kafka.Client.Transport is a nil *kafka.Transport: leave it out, or make one"))
	default:
		if t.MetadataTTL > time.Minute {
			found = append(found, fmt.Errorf("kafka.Transport.MetadataTTL is %v: a partition whose leader moves would be written to nowhere for as long: set it to 1m or less", t.MetadataTTL))
		}
		if t.Context != nil && t.Context.Err() != nil {
			found = append(found, errors.New("kafka.Transport.Context is done: its connections are closed: give it one that lives as long as the relay, or none"))
		}
	}
	return found
}

// KafkaDial connects for a kafka.Transport. A connection that is closed while it still holds unsent bytes drops them
// instead of sending them later, from behind: kafka-go closes a connection when a request's time is over, and the
// kernel would otherwise go on for minutes trying to deliver what by then has been sent again.
func KafkaDial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 3 * time.Second}
	c, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			c.Close()
			return nil, fmt.Errorf("set linger of the connection to %s: %w", address, err)
		}
	}
	return c, nil
}

// Partition says which partition e would go to, by the metadata at hand. It is false for a topic that no call of
// Publish has met yet, and for one that does not exist. It never asks the network.
func (k *Kafka) Partition(e holdfast.Event) (int, bool) {
	t := k.topics.known(e.Topic)
	if t == nil {
		return -1, false
	}
	p := k.config.Partitioner(e, t.partitions)
	return p, p >= 0 && p < t.partitions
}

// Publish sends events to Kafka, the partitions at the same time, and answers once for each: nil when all in-sync
// replicas have it, else an error that wraps a *PublishError. A batch that is refused because of one record is divided
// until that record stands alone; it is refused, the later events of its topic and key are not sent and answer with its
// error, wrapped, and everything else is sent. Any other failure ends its partition for this call: what has not left
// does not leave.
//
// Publish does not change events; on an error that is not from a broker, kafka-go may read the payloads a moment longer.
func (k *Kafka) Publish(ctx context.Context, events []holdfast.Event) []error {
	answers := make([]error, len(events))
	if len(events) == 0 {
		return answers
	}
	queues := k.route(ctx, events, answers)

	// Workers take one partition after the other; this goroutine is one of them.
	var taken atomic.Int64
	work := func() {
		for i := taken.Add(1) - 1; i < int64(len(queues)); i = taken.Add(1) - 1 {
			k.drain(ctx, &queues[i])
		}
	}
	var others sync.WaitGroup
	for range min(len(queues), k.config.Parallel) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	return answers
}

// route divides events by partition, in their order. Events of topics that cannot be written to get their answers here.
func (k *Kafka) route(ctx context.Context, events []holdfast.Event, answers []error) []partitionQueue {
	topics := k.topics.lookup(ctx, events)
	places := place(events, topics, k.config.Partitioner)
	queues := divide(events, answers, topics, places)
	for i := range queues {
		q := &queues[i]
		q.limit = k.config.MaxRequestBytes
		if learned := int(q.info.limit.Load()); learned > 0 {
			q.limit = min(q.limit, learned)
		}
	}
	return queues
}

// drain sends one partition's events: ask the queue for a batch, send it, tell the queue how it went.
func (k *Kafka) drain(ctx context.Context, q *partitionQueue) {
	limit := q.limit
	for batch := q.next(); batch != nil; batch = q.next() {
		err, records := k.produce(ctx, q, batch)
		q.settle(batch, err, records)
		if err != nil && err.Fault != FaultRecord {
			k.topics.expire(q.topic)
		}
	}
	if q.limit < limit {
		q.info.limit.Store(int64(q.limit))
	}
}
