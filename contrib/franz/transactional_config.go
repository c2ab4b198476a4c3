package franz

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
)

// The defaults of TransactionalConfig.
const (
	defaultLinger             = 2 * time.Millisecond
	defaultTransactionTimeout = time.Minute
)

// TransactionalConfig says how events are put into Kafka in transactions. TransactionalID and MarksTopic are required; the rest may be left
// out.
type TransactionalConfig struct {
	// TransactionalID is what the transactional ids of the lanes begin with: a dot, the schema, another dot and the lane's number
	// follow. No two databases may share it, nor may one use it again after a restore from a backup, unless its relays are to
	// publish again what they published since. Required.
	TransactionalID string

	// MarksTopic is the topic in which each transaction notes what it has published. Make it with cleanup.policy=compact and one partition
	// for each lane. Several databases may share it; nothing else may write to it. Required.
	MarksTopic string

	// PartitionFunc says which of a topic's partitions an event goes to: 0 to partitions-1. It must look at nothing but the event's topic
	// and key, or, for an event without a key, at its ID: then events of one key share a partition, which is what their order rests on,
	// and an event that is sent again goes where it went before. It is called from many goroutines at once. Changing it on a live topic
	// moves keys to other partitions, past their own earlier events. Defaults to Murmur2, as the Java client and franz-go.
	PartitionFunc func(e holdfast.Event, partitions int) int

	// ProduceTimeout bounds what one transaction may take. A partition that has not answered in it delays the lane that long, and its
	// events are then published apart from the others'. A call may wait for three transactions. Between 1 s and 5 min. Defaults to 10 s.
	ProduceTimeout time.Duration

	// TransactionTimeout is after what time the broker aborts the transaction of a relay that is dead or frozen, if no other relay has
	// done so before. Readers of committed records wait that long at most. More than ProduceTimeout, and at most the broker's
	// transaction.max.timeout.ms (15 min by default). Defaults to 1 min.
	TransactionTimeout time.Duration

	// Linger is how long a transaction waits for events of more partitions before it begins. -1 means not at all, otherwise at most 1 s.
	// Defaults to 2 ms.
	Linger time.Duration

	// MaxRequestBytes bounds what a partition has in one transaction, before compression. Between 1 KiB and 100 MiB. Defaults to 1 MiB
	// less 4 KiB.
	MaxRequestBytes int

	// MetadataTTL is after how long a topic's partitions are asked for again; after every failure they are, too. What is known serves until
	// there is an answer; only a partition that failed waits for it. Between 10 ms and 1 min. Defaults to 5 s.
	MetadataTTL time.Duration

	// OnSkipped is called when events were not sent, because the lane's mark says that they are in Kafka: each would be a repeat. It happens
	// after a takeover, and after a commit without an answer. Count them for a metric. It must not block. Optional.
	OnSkipped func(lane, events int)
}

func (c TransactionalConfig) withDefaults() TransactionalConfig {
	p := c.publisher().withDefaults()
	c.PartitionFunc, c.ProduceTimeout, c.MaxRequestBytes, c.MetadataTTL = p.PartitionFunc, p.ProduceTimeout, p.MaxRequestBytes, p.MetadataTTL
	if c.TransactionTimeout == 0 {
		c.TransactionTimeout = max(defaultTransactionTimeout, 2*c.ProduceTimeout)
	}
	if c.Linger == 0 {
		c.Linger = defaultLinger
	}
	return c
}

// publisher is what a Publisher's configuration has too.
func (c TransactionalConfig) publisher() PublisherConfig {
	return PublisherConfig{
		PartitionFunc:   c.PartitionFunc,
		ProduceTimeout:  c.ProduceTimeout,
		MaxRequestBytes: c.MaxRequestBytes,
		MetadataTTL:     c.MetadataTTL,
	}
}

// problems lists what is missing or out of range; c has its defaults.
func (c TransactionalConfig) problems() []error {
	found := c.publisher().problems()
	if c.TransactionalID == "" {
		found = append(found, errors.New("transactional id is empty: it is required, and each database must have its own"))
	}
	if c.MarksTopic == "" {
		found = append(found, errors.New("marks topic is empty: it is required"))
	}
	if c.TransactionTimeout <= c.ProduceTimeout {
		found = append(found, fmt.Errorf("transaction timeout is %v: it must be more than the produce timeout of %v, or 0 for %v", c.TransactionTimeout, c.ProduceTimeout, defaultTransactionTimeout))
	}
	if c.Linger != -1 && (c.Linger < 0 || c.Linger > time.Second) {
		found = append(found, fmt.Errorf("linger is %v: it must be at most 1s, -1 for none, or 0 for %v", c.Linger, defaultLinger))
	}
	return found
}

const (
	batchMost     = 64 << 20  // of one partition in a transaction: the publisher keeps to MaxRequestBytes, unless one event is longer
	markBatchMost = 900 << 10 // so that the records of a long mark keep to the default max.message.bytes
)

// options are those of a lane's producer, after the user's.
func (c TransactionalConfig) options(id string) []kgo.Opt {
	return []kgo.Opt{
		kgo.TransactionalID(id),
		kgo.TransactionTimeout(c.TransactionTimeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(1 << 20), // a transaction has a bound of its own
		kgo.ProducerLinger(0),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
			if topic == c.MarksTopic {
				return markBatchMost
			}
			return batchMost
		}),
	}
}
