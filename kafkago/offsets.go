package kafkago

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox/source"
)

const (
	// offsetsTTL is how long Offsets believes which topics there are.
	offsetsTTL = 10 * time.Second

	// offsetsTimeout bounds each of its questions.
	offsetsTimeout = 10 * time.Second
)

// Offsets asks the brokers where partitions end: for metrics.ObserveDatabase and package console. A question ends after 10 s.
// Close it. Many goroutines may use it at once.
type Offsets struct {
	client *kafka.Client
	own    *kafka.Transport
}

// NewOffsets returns an Offsets. It connects when it is first asked. The error lists every problem of the connection.
func NewOffsets(c Connection) (*Offsets, error) {
	problems := c.problems()
	own, use := c.transport(Dial, offsetsTTL)
	if err := errors.Join(append(problems, transportProblems(use)...)...); err != nil {
		return nil, fmt.Errorf("kafka connection: %w", err)
	}
	return &Offsets{client: &kafka.Client{
		Addr:      kafka.TCP(c.Brokers...),
		Transport: use,
		Timeout:   offsetsTimeout,
	}, own: own}, nil
}

// Ends returns the offset that the next event of each partition gets. A partition that the brokers do not know is left out. An error of
// one partition is the error of all.
func (o *Offsets) Ends(ctx context.Context, of []source.TopicPartition) (map[source.TopicPartition]int64, error) {
	ends := map[source.TopicPartition]int64{}
	if len(of) == 0 {
		return ends, nil
	}
	there, err := o.known(ctx, of)
	if err != nil {
		return nil, err
	}
	request := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}}
	for _, tp := range of {
		if there[tp] {
			request.Topics[tp.Topic] = append(request.Topics[tp.Topic], kafka.LastOffsetOf(tp.Partition))
		}
	}
	if len(request.Topics) == 0 {
		return ends, nil
	}
	answer, err := o.client.ListOffsets(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", err)
	}
	for topic, partitions := range answer.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				return nil, fmt.Errorf("list offsets of %s/%d: %w", topic, p.Partition, p.Error)
			}
			ends[source.TopicPartition{Topic: topic, Partition: p.Partition}] = p.LastOffset
		}
	}
	return ends, nil
}

// known are the partitions that the brokers know: they refuse a whole request for one that they do not.
func (o *Offsets) known(ctx context.Context, of []source.TopicPartition) (map[source.TopicPartition]bool, error) {
	var topics []string
	for _, tp := range of {
		if !slices.Contains(topics, tp.Topic) {
			topics = append(topics, tp.Topic)
		}
	}
	meta, err := o.client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	there := map[source.TopicPartition]bool{}
	for _, t := range meta.Topics {
		for _, p := range t.Partitions {
			there[source.TopicPartition{Topic: t.Name, Partition: p.ID}] = true
		}
	}
	return there, nil
}

// Close closes the connections.
func (o *Offsets) Close() { o.own.CloseIdleConnections() }
