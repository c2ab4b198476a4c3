package kafkago

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox/source"
)

var _ source.Bounded = (*session)(nil)

// Extents asks for the first offset of each partition, for its end, and for the first offset of a time. Three requests, because
// Kafka refuses two questions about a partition in one.
func (s *session) Extents(ctx context.Context, at time.Time) (map[source.TopicPartition]source.Extent, error) {
	counts, err := s.count(ctx, s.g.Topics)
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	for _, topic := range s.g.Topics {
		if counts[topic] == 0 {
			return nil, fmt.Errorf("%w: topic %s does not exist, or this user may not see it", source.ErrConfiguration, topic)
		}
	}
	all := map[source.TopicPartition]source.Extent{}
	if err := s.askEach(ctx, counts, kafka.FirstOffsetOf, func(tp source.TopicPartition, p kafka.PartitionOffsets) {
		all[tp] = source.Extent{First: p.FirstOffset}
	}); err != nil {
		return nil, err
	}
	if err := s.askEach(ctx, counts, kafka.LastOffsetOf, func(tp source.TopicPartition, p kafka.PartitionOffsets) {
		x := all[tp]
		x.End, x.At = p.LastOffset, p.LastOffset
		all[tp] = x
	}); err != nil || at.IsZero() {
		return all, err
	}
	err = s.askEach(ctx, counts, func(partition int) kafka.OffsetRequest { return kafka.TimeOffsetOf(partition, at) }, func(tp source.TopicPartition, p kafka.PartitionOffsets) {
		x := all[tp]
		for offset := range p.Offsets { // one; -1 if no record is as late
			if offset >= 0 {
				x.At = min(offset, x.End)
			}
		}
		all[tp] = x
	})
	return all, err
}

// askEach asks the same of each partition, and hands out the answers.
func (s *session) askEach(ctx context.Context, counts map[string]int, what func(partition int) kafka.OffsetRequest, each func(source.TopicPartition, kafka.PartitionOffsets)) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request := &kafka.ListOffsetsRequest{
		Addr:           s.addr,
		Topics:         map[string][]kafka.OffsetRequest{},
		IsolationLevel: kafka.ReadCommitted,
	}
	if s.g.ReadUncommitted {
		request.IsolationLevel = kafka.ReadUncommitted
	}
	asked := 0
	for topic, n := range counts {
		for p := range n {
			request.Topics[topic] = append(request.Topics[topic], what(p))
			asked++
		}
	}
	answer, err := s.client.ListOffsets(ctx, request)
	if err != nil {
		return fmt.Errorf("list offsets: %w", err)
	}
	for topic, partitions := range answer.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				return fmt.Errorf("list offsets of %s/%d: %w", topic, p.Partition, p.Error)
			}
			each(source.TopicPartition{Topic: topic, Partition: p.Partition}, p)
			asked--
		}
	}
	if asked != 0 {
		return fmt.Errorf("list offsets: the brokers left out %d partitions", asked)
	}
	return nil
}
