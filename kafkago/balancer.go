package kafkago

import (
	"context"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
)

// balancer assigns partitions as kafka-go's balancers do. kafka-go asks for the partitions of all topics at once, and
// takes the answer that one topic is unknown for "there are no partitions": the group would read nothing, without a
// word, for as long as one of its topics is missing or a broker that has just started does not know it yet.
type balancer struct {
	kafka.GroupBalancer
	s *session
}

func (b balancer) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	if len(partitions) == 0 {
		var err error
		if partitions, err = b.s.partitionsOf(members); err != nil {
			b.s.blind.Store(&err) // There is no way to fail here: next does it, and the group assigns again.
			return b.GroupBalancer.AssignGroups(members, nil)
		}
	}
	b.s.assigns(partitions)
	return b.GroupBalancer.AssignGroups(members, partitions)
}

// assigns notes what the group has been assigned by: whoever leads it looks for what differs from that (generation.watch), and not from
// what was there before. A topic that was made again while the group formed would look the same, and nobody would have its partitions.
func (s *session) assigns(partitions []kafka.Partition) {
	counts := map[string]int{}
	for _, topic := range s.g.Topics {
		counts[topic] = 0
	}
	for _, p := range partitions {
		if _, ours := counts[p.Topic]; ours {
			counts[p.Topic]++
		}
	}
	s.mu.Lock()
	s.counts = counts
	s.mu.Unlock()
}

// partitionsOf are the partitions of the topics that exist. Members may name other topics than we do, in a rolling deploy.
func (s *session) partitionsOf(members []kafka.GroupMember) ([]kafka.Partition, error) {
	var topics []string
	for _, m := range members {
		topics = append(topics, m.Topics...)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	counts, err := s.count(ctx, topics)
	if err != nil {
		return nil, err
	}
	var all []kafka.Partition
	for _, topic := range topics {
		for id := range counts[topic] {
			all = append(all, kafka.Partition{Topic: topic, ID: id})
		}
	}
	return all, nil
}
