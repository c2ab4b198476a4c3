package kafkago

import (
	"context"
	"slices"

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
	b.s.assigns(members, partitions)
	return b.GroupBalancer.AssignGroups(members, partitions)
}

// UserData is asked for when we are about to join. Whether we lead the group then is not known yet.
func (b balancer) UserData() ([]byte, error) {
	b.s.mu.Lock()
	b.s.assigned = nil
	b.s.mu.Unlock()
	return b.GroupBalancer.UserData()
}

// assigns notes what we have assigned the group by, for the topics of all members: members may name other topics than we do, in a rolling
// deploy. As with Kafka's own client it is for the leader to look for what differs from that (generation.watch), because a group forms anew
// when its leader asks, and not when another member does. It is not compared with what was there before: a topic that was recreated
// while the group formed would look the same, and nobody would have its partitions.
func (s *session) assigns(members []kafka.GroupMember, partitions []kafka.Partition) {
	counts := map[string]int{}
	for _, topic := range topicsOf(members) {
		counts[topic] = 0
	}
	for _, p := range partitions {
		if _, asked := counts[p.Topic]; asked {
			counts[p.Topic]++
		}
	}
	s.mu.Lock()
	s.counts, s.assigned = counts, counts
	s.mu.Unlock()
}

// topicsOf are the topics of all members, in order.
func topicsOf(members []kafka.GroupMember) (topics []string) {
	for _, m := range members {
		topics = append(topics, m.Topics...)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// partitionsOf are the partitions of the members' topics that exist.
func (s *session) partitionsOf(members []kafka.GroupMember) ([]kafka.Partition, error) {
	topics := topicsOf(members)
	counts, err := s.count(context.Background(), topics)
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
