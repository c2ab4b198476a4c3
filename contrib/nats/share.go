package natsjs

import (
	"cmp"
	"maps"
	"slices"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file decides which member of a group gets which partition. It is pure: values in, values out. Every member decides for itself,
// by the same keys of the bucket, so all come to the same.

// share gives each partition of the topics, by their numbers of partitions, to a member that consumes its topic: to the one that has
// the fewest so far, and of those to the first by its id. members are the topics of each by its id.
func share(members map[string][]string, partitions map[string]int) map[source.TopicPartition]string {
	ids := slices.Sorted(maps.Keys(members))
	has := map[string]int{}
	owners := map[source.TopicPartition]string{}
	for _, topic := range slices.Sorted(maps.Keys(partitions)) {
		var wants []string
		for _, id := range ids {
			if slices.Contains(members[id], topic) {
				wants = append(wants, id)
			}
		}
		if len(wants) == 0 {
			continue
		}
		for p := range partitions[topic] {
			least := slices.MinFunc(wants, func(a, b string) int { return cmp.Or(cmp.Compare(has[a], has[b]), cmp.Compare(a, b)) })
			has[least]++
			owners[source.TopicPartition{Topic: topic, Partition: p}] = least
		}
	}
	return owners
}

// sharesOf are the partitions that share gives one member.
func sharesOf(owners map[source.TopicPartition]string, id string) map[source.TopicPartition]bool {
	mine := map[source.TopicPartition]bool{}
	for tp, owner := range owners {
		if owner == id {
			mine[tp] = true
		}
	}
	return mine
}
