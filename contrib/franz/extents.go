package franz

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/holdfast-go/holdfast/inbox/source"
)

var _ source.Bounded = (*session)(nil)

// Extents asks for the first offset of each partition, for its end, and for the first offset of a time. Three requests to each leader,
// because Kafka refuses two questions about a partition in one.
func (s *session) Extents(ctx context.Context, at time.Time) (map[source.TopicPartition]source.Extent, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	found, err := describe(ctx, s.client, s.g.Topics)
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	byLeader := map[int32][]place{}
	for _, topic := range s.g.Topics {
		d := found[topic]
		if d.err != nil && d.err != kerr.UnknownTopicOrPartition {
			return nil, fmt.Errorf("topic %s: %w", topic, d.err)
		}
		if len(d.leaders) == 0 {
			return nil, fmt.Errorf("%w: topic %s does not exist, or this user may not see it", source.ErrConfiguration, topic)
		}
		for n, leader := range d.leaders {
			if leader < 0 {
				return nil, fmt.Errorf("list offsets of %s/%d: %w", topic, n, kerr.LeaderNotAvailable)
			}
			byLeader[leader] = append(byLeader[leader], place{topic, n})
		}
	}
	isolation := committedRecords
	if s.g.ReadUncommitted {
		isolation = allRecords
	}
	all := map[source.TopicPartition]source.Extent{}
	for leader, of := range byLeader {
		ask := func(when int64) (offsets map[place]int64, err error) {
			if offsets, err = offsetsOf(ctx, s.client, leader, of, when, isolation); err != nil {
				err = fmt.Errorf("list offsets: %w", err)
			}
			return offsets, err
		}
		firsts, err := ask(earliest)
		if err != nil {
			return nil, err
		}
		ends, err := ask(latest)
		if err != nil {
			return nil, err
		}
		var times map[place]int64
		if !at.IsZero() {
			if times, err = ask(at.UnixMilli()); err != nil {
				return nil, err
			}
		}
		for _, p := range of {
			x := source.Extent{First: firsts[p], End: ends[p], At: ends[p]}
			if offset, ok := times[p]; ok && offset >= 0 { // -1 if no record is as late
				x.At = min(offset, x.End)
			}
			all[source.TopicPartition{Topic: p.topic, Partition: p.partition}] = x
		}
	}
	return all, nil
}
