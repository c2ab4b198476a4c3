package franz

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/holdfast-go/holdfast"
)

// The defaults of PublisherConfig.
const (
	defaultProduceTimeout  = 10 * time.Second
	defaultMaxRequestBytes = 1<<20 - 4<<10
	defaultMetadataTTL     = 5 * time.Second
)

// PublisherConfig says how events are put into Kafka. The zero value works and is safe. All in-sync replicas acknowledge: have
// min.insync.replicas at 2 on the topics. Batches are packed as the client says, by kgo.ProducerBatchCompression or
// kgo.WithCompressor, and with snappy if it says nothing.
type PublisherConfig struct {
	// Slow is a second client, of the same cluster. A broker answers the requests of a connection one after the other, so partitions
	// whose replicas are late wait on the connections of this one and delay no other. It must be in no consumer group.
	// Defaults to one that is made of the options of the first client, and closed by Close. Give one if those options serve one
	// client only, as kprom's hooks do.
	Slow *kgo.Client

	// PartitionFunc says which of a topic's partitions an event goes to: 0 to partitions-1. It must look at nothing but the event's topic
	// and key, or, for an event without a key, at its ID: then events of one key share a partition, which is what their order rests on,
	// and an event that is sent again goes where it went before. It is called from many goroutines at once. Changing it on a live topic
	// moves keys to other partitions, past their own earlier events. Defaults to Murmur2, as the Java client and franz-go.
	PartitionFunc func(e holdfast.Event, partitions int) int

	// ProduceTimeout bounds what one batch may take, with all that is sent again. After it the outcome is unknown; the next call for the
	// partition asks again, and nothing is written twice. Between 1 s and 5 min. Defaults to 10 s.
	ProduceTimeout time.Duration

	// MaxRequestBytes bounds a batch before compression; a partition's events beyond it follow in a batch of their own, after the first
	// is acknowledged. A topic's smaller max.message.bytes is found out by refusals and remembered for a while. An event longer than
	// this is sent alone, and the broker decides. Between 1 KiB and 100 MiB. Defaults to 1 MiB less 4 KiB.
	MaxRequestBytes int

	// MetadataTTL is after how long a topic's partitions are asked for again; after every failure they are, too. What is known serves until
	// there is an answer; only a partition that failed waits for it. Between 10 ms and 1 min. Defaults to 5 s.
	MetadataTTL time.Duration
}

func (c PublisherConfig) withDefaults() PublisherConfig {
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
	return c
}

// problems lists what is out of range; c has its defaults.
func (c PublisherConfig) problems() []error {
	var found []error
	if c.ProduceTimeout < time.Second || c.ProduceTimeout > 5*time.Minute {
		found = append(found, fmt.Errorf("produce timeout is %v: it must be between 1s and 5m, or 0 for %v", c.ProduceTimeout, defaultProduceTimeout))
	}
	if c.MaxRequestBytes < 1<<10 || c.MaxRequestBytes > 100<<20 {
		found = append(found, fmt.Errorf("max request bytes is %d: it must be between 1024 and 104857600, or 0 for %d", c.MaxRequestBytes, defaultMaxRequestBytes))
	}
	if c.MetadataTTL < 10*time.Millisecond || c.MetadataTTL > time.Minute {
		found = append(found, fmt.Errorf("metadata ttl is %v: it must be between 10ms and 1m, or 0 for %v", c.MetadataTTL, defaultMetadataTTL))
	}
	return found
}

// clientProblems lists the options of a client with which events would be lost, or topics made. name is what the message calls it.
func clientProblems(name string, client *kgo.Client) []error {
	if client == nil {
		return []error{fmt.Errorf("%s is nil: it must be one of kgo.NewClient", name)}
	}
	var found []error
	bad := func(format string, args ...any) { found = append(found, fmt.Errorf(name+": "+format, args...)) }
	if acks, _ := client.OptValue(kgo.RequiredAcks).(kgo.Acks); acks != kgo.AllISRAcks() {
		bad("required acks are not those of all in-sync replicas: they must be, because an event that one broker alone has is lost with it; leave out kgo.RequiredAcks")
	}
	if off, _ := client.OptValue(kgo.DisableIdempotentWrite).(bool); off {
		bad("idempotent writes are disabled: they must not be, because a batch that is sent again would be written again; leave out kgo.DisableIdempotentWrite")
	}
	if auto, _ := client.OptValue(kgo.AllowAutoTopicCreation).(bool); auto {
		bad("topics are created automatically: they must not be, because an event with a mistyped topic would be lost to its readers; leave out kgo.AllowAutoTopicCreation")
	}
	if id, _ := client.OptValue(kgo.TransactionalID).(string); id != "" {
		bad("transactional id is %q: it must be empty, because events are not published in the client's transactions; use another client", id)
	}
	if versions, _ := client.OptValue(kgo.MaxVersions).(*kversion.Versions); versions != nil {
		if most, ok := versions.LookupMaxKeyVersion(produceKey); !ok || most < 3 {
			bad("max versions are those of a Kafka before 0.11: they must be newer, because older ones know neither headers nor idempotent writes")
		}
	}
	return found
}

// produceKey is Kafka's number of the Produce request.
const produceKey = 0

// slowClient makes PublisherConfig.Slow of the options of a client.
func slowClient(client *kgo.Client) (slow *kgo.Client, err error) {
	if group, _ := client.OptValue(kgo.ConsumerGroup).(string); group != "" {
		return nil, fmt.Errorf("client is in the consumer group %q, and a second client with its options would join that: set slow to a client without a group, or publish with one", group)
	}
	defer func() {
		if p := recover(); p != nil { // of a hook
			slow, err = nil, fmt.Errorf("the client's options serve one client only: set slow: %v", p)
		}
	}()
	slow, err = kgo.NewClient(client.Opts()...)
	if err != nil {
		return nil, errors.Join(errors.New("the client's options make no second client: set slow"), err)
	}
	return slow, nil
}
