package kafkago

import (
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
)

// The defaults of PublisherConfig.
const (
	defaultCompression     = kafka.Snappy
	defaultProduceTimeout  = 10 * time.Second
	defaultMaxRequestBytes = 1<<20 - 4<<10
	defaultMetadataTTL     = 5 * time.Second
	defaultParallel        = 64
)

// PublisherConfig says how events are put into Kafka. The zero value works and is safe. Acknowledgement by all in-sync
// replicas is not configurable: without it "published" means nothing; have min.insync.replicas at 2 on the topics.
type PublisherConfig struct {
	// Compression of the batches. -1 means none. Defaults to kafka.Snappy: against Lz4, on events
	// of 300 bytes of JSON, it takes a quarter less processor time and a tenth of the memory in kafka-go, for 4 % more bytes.
	Compression kafka.Compression

	// PartitionFunc says which of a topic's partitions an event goes to: 0 to partitions-1. It must look at nothing but the event's topic
	// and key, or, for an event without a key, at its ID: then events of one key share a partition, which is what their order rests on,
	// and an event that is sent again goes where it went before. It is called from many goroutines at once. Changing it on a live topic
	// moves keys to other partitions, past their own earlier events. Defaults to Murmur2, as the Java client.
	PartitionFunc func(e holdfast.Event, partitions int) int

	// ProduceTimeout bounds one request, from finding a connection to the answer. The brokers get half of it to
	// replicate. After it the outcome is unknown, and the events are sent again. The relay keeps its lanes while requests are
	// under way, so this may be longer than its lease. Between 100 ms and 5 min. Defaults to 10 s.
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

func (c PublisherConfig) withDefaults() PublisherConfig {
	switch c.Compression {
	case 0:
		c.Compression = defaultCompression
	case -1:
		c.Compression = 0
	}
	if c.PartitionFunc == nil {
		c.PartitionFunc = Murmur2
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

// problems lists what is out of range; c has its defaults.
func (c PublisherConfig) problems() []error {
	var found []error
	if c.Compression != 0 && c.Compression.Codec() == nil {
		found = append(found, fmt.Errorf("compression is %d: it must be -1 for none, or a codec of kafka-go such as kafka.Snappy", c.Compression))
	}
	if c.ProduceTimeout < 100*time.Millisecond || c.ProduceTimeout > 5*time.Minute {
		found = append(found, fmt.Errorf("produce timeout is %v: it must be between 100ms and 5m, or 0 for %v", c.ProduceTimeout, defaultProduceTimeout))
	}
	if c.MaxRequestBytes < 1<<10 || c.MaxRequestBytes > 100<<20 {
		found = append(found, fmt.Errorf("max request bytes is %d: it must be between 1024 and 104857600, or 0 for %d", c.MaxRequestBytes, defaultMaxRequestBytes))
	}
	if c.MetadataTTL < 10*time.Millisecond || c.MetadataTTL > time.Minute {
		found = append(found, fmt.Errorf("metadata ttl is %v: it must be between 10ms and 1m, or 0 for %v", c.MetadataTTL, defaultMetadataTTL))
	}
	if c.Parallel < 1 || c.Parallel > 1024 {
		found = append(found, fmt.Errorf("parallel is %d: it must be between 1 and 1024, or 0 for %d", c.Parallel, defaultParallel))
	}
	return found
}
