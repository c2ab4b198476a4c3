//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// brokerFaults are those of one broker of three. The others go on, and take over.
func brokerFaults() []fault {
	all := []fault{
		{name: "kill-broker", what: "kill -9 of one broker of three: of the one that leads most partitions, or that coordinates the group", hold: outlasting(kafkaserver.FencedAfter),
			// Its partitions have new leaders soon.
			alarms: []oracle.Alarm{{By: roleRelay, Messages: partitionWaits, Before: sayEvery}}, begin: killBroker},
		{name: "pause-broker", what: "one broker of three stands still, sometimes until others lead its partitions, and goes on", hold: [2]time.Duration{2 * time.Second, outlasting(kafkaserver.FencedAfter)[1]}, begin: pauseBroker},
		{name: "roll-brokers", what: "each of three brokers stops in order and starts again, when all replicas are in sync", begin: rollBrokers},
		{name: "move-leaders", what: "partitions, and those of the group's offsets, get other leaders again and again", hold: seconds(4, 7), begin: moveLeaders},
	}
	for i := range all {
		all[i].impossible = func(g *ground) string {
			if len(g.kafka.Nodes()) < 2 {
				return "there is one broker: -brokers 3 starts three"
			}
			return ""
		}
	}
	return all
}

// partitionWaits are what a relay logs about a partition that takes no events for a while.
var partitionWaits = []string{"partition held", "partition waits", "still held"}

// groupID is the group of a run's consumers. The first topic is another in each run.
func groupID(firstTopic string) string { return consumerName + " of " + firstTopic }

// killBroker kills a broker that matters. It has hit when other brokers lead all that it led.
func killBroker(ctx context.Context, s *stage) (func(context.Context) error, error) {
	partitions, err := s.kafka.Partitions(ctx)
	if err != nil {
		return nil, err
	}
	id, led := mostLeads(s.mine(partitions))
	s.about = fmt.Sprintf("broker %d, which led %d partitions", id, led)
	if s.rng.IntN(2) == 0 {
		if id, err = s.coordinator(ctx); err != nil {
			return nil, err
		}
		s.about = fmt.Sprintf("broker %d, which coordinated the group", id)
	}
	killed, err := s.node(id)
	if err != nil {
		return nil, err
	}
	s.hit = func() (bool, error) {
		now, err := s.kafka.Partitions(ctx)
		moved := err == nil && !slices.ContainsFunc(s.mine(now), func(p kafka.Partition) bool { return p.Leader.Host == "" || p.Leader.ID == id })
		return moved, nil // an error says that those that are left are busy
	}
	return killed.Start, killed.Kill(ctx)
}

// pauseBroker pauses any broker.
func pauseBroker(ctx context.Context, s *stage) (func(context.Context) error, error) {
	nodes := s.kafka.Nodes()
	n := nodes[s.rng.IntN(len(nodes))]
	s.about = fmt.Sprintf("broker %d", n.ID)
	return n.Unpause, n.Pause(ctx)
}

// wholeWithin bounds how long the replicas of a broker that has started may take to be in sync again.
const wholeWithin = 2 * time.Minute

// rollBrokers is over when the last broker is back, so there is nothing left to heal. It starts again what it has stopped,
// also where the run is interrupted.
func rollBrokers(ctx context.Context, s *stage) (func(context.Context) error, error) {
	nodes := slices.Clone(s.kafka.Nodes())
	s.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, n := range nodes {
		if err := s.awaitReplicas(ctx); err != nil {
			return nil, err
		}
		if err := n.Stop(ctx); err != nil {
			return nil, err
		}
		sleep(ctx, between(s.rng, 0, 2*time.Second))
		if err := n.Start(context.WithoutCancel(ctx)); err != nil {
			return nil, err
		}
	}
	return nil, s.awaitReplicas(ctx)
}

func (g *ground) awaitReplicas(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, wholeWithin)
	defer cancel()
	return g.kafka.AwaitReplicas(ctx)
}

// moveLeaders runs for as long as the fault is held, so there is nothing left to heal. It has hit when a leader has moved.
func moveLeaders(ctx context.Context, s *stage) (func(context.Context) error, error) {
	moved := 0
	for end := time.Now().Add(s.held); time.Now().Before(end); {
		before, err := s.kafka.Partitions(ctx)
		if err != nil {
			return nil, err
		}
		before = s.mine(before)
		if err := s.giveTo(ctx, before, nextReplicas(before)); err != nil {
			return nil, err
		}
		after, err := s.kafka.Partitions(ctx)
		if err != nil {
			return nil, err
		}
		moved += changedLeaders(before, after)
		sleep(ctx, between(s.rng, 200*time.Millisecond, 1500*time.Millisecond))
	}
	s.held = 0
	s.about = fmt.Sprintf("%d changes of a leader", moved)
	s.hit = func() (bool, error) { return moved > 0, nil }
	return nil, nil
}

// giveTo makes the first of each partition's new replicas, which are the old ones in another order, its leader.
func (g *ground) giveTo(ctx context.Context, of []kafka.Partition, replicas map[partition][]int) error {
	order := &kafka.AlterPartitionReassignmentsRequest{Timeout: 10 * time.Second}
	numbers := map[string][]int{}
	for _, p := range of {
		order.Assignments = append(order.Assignments, kafka.AlterPartitionReassignmentsRequestAssignment{
			Topic:       p.Topic,
			PartitionID: p.ID,
			BrokerIDs:   replicas[partition{p.Topic, p.ID}],
		})
		numbers[p.Topic] = append(numbers[p.Topic], p.ID)
	}
	ordered, err := g.kafka.Client.AlterPartitionReassignments(ctx, order)
	if err == nil {
		err = ordered.Error
	}
	if err != nil {
		return fmt.Errorf("order replicas: %w", err)
	}
	for topic, partitions := range numbers {
		elected, err := g.kafka.Client.ElectLeaders(ctx, &kafka.ElectLeadersRequest{
			Topic:      topic,
			Partitions: partitions,
			Timeout:    10 * time.Second,
		})
		if err == nil {
			err = elected.Error
		}
		if err != nil {
			return fmt.Errorf("elect leaders of %s: %w", topic, err)
		}
		// A replica that is not in sync is no leader: the partition keeps the one that it has.
	}
	return nil
}

// nextReplicas are the replicas of each partition, so ordered that the one after its leader is first.
func nextReplicas(of []kafka.Partition) map[partition][]int {
	next := map[partition][]int{}
	for _, p := range of {
		var ids []int
		for _, r := range p.Replicas {
			ids = append(ids, r.ID)
		}
		slices.Sort(ids)
		from := (slices.Index(ids, p.Leader.ID) + 1) % len(ids)
		next[partition{p.Topic, p.ID}] = append(ids[from:len(ids):len(ids)], ids[:from]...)
	}
	return next
}

// changedLeaders counts the partitions of before that have another leader after.
func changedLeaders(before, after []kafka.Partition) (n int) {
	leaders := map[partition]int{}
	for _, p := range after {
		leaders[partition{p.Topic, p.ID}] = p.Leader.ID
	}
	for _, p := range before {
		if now := leaders[partition{p.Topic, p.ID}]; now != 0 && now != p.Leader.ID {
			n++
		}
	}
	return n
}

// offsetsTopic is where Kafka keeps the offsets of groups. The leader of a group's partition of it coordinates the group.
const offsetsTopic = "__consumer_offsets"

// mine are the partitions that this run depends on.
func (g *ground) mine(all []kafka.Partition) (some []kafka.Partition) {
	topics := append(g.allTopics(), offsetsTopic)
	for _, p := range all {
		if slices.Contains(topics, p.Topic) {
			some = append(some, p)
		}
	}
	return some
}

// mostLeads is the broker that leads most partitions, the lowest of equals.
func mostLeads(of []kafka.Partition) (id, led int) {
	leads := map[int]int{}
	for _, p := range of {
		if p.Leader.Host != "" {
			leads[p.Leader.ID]++
		}
	}
	for broker, n := range leads {
		if n > led || n == led && broker < id {
			id, led = broker, n
		}
	}
	return id, led
}

// coordinator is the broker that coordinates the consumers' group.
func (g *ground) coordinator(ctx context.Context) (id int, err error) {
	res, err := g.kafka.Client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: groupID(g.topics[0]), KeyType: kafka.CoordinatorKeyTypeConsumer})
	if err == nil && res.Error != nil {
		err = res.Error
	}
	if err == nil && res.Coordinator == nil {
		err = errors.New("there is none")
	}
	if err != nil {
		return 0, fmt.Errorf("find the group's coordinator: %w", err)
	}
	return res.Coordinator.NodeID, nil
}

func (g *ground) node(id int) (*kafkaserver.Node, error) {
	for _, n := range g.kafka.Nodes() {
		if n.ID == id {
			return n, nil
		}
	}
	return nil, fmt.Errorf("there is no broker %d", id)
}
