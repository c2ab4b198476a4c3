package kafkago

import (
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/partitionqueue"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// nowhere is the place of an event that cannot be sent.
const nowhere = -1

// place returns every event's partition, nowhere for topics that have an error in topics. A partition that does not
// exist is the PartitionFunc's mistake and ends its topic for this call, so that no later event of a key overtakes.
func place(events []holdfast.Event, topics map[string]topicAnswer, partitioner func(holdfast.Event, int) int) []int32 {
	places := make([]int32, len(events))
	var topic string
	var answer topicAnswer
	for i := range events {
		e := &events[i]
		if e.Topic != topic || i == 0 {
			topic, answer = e.Topic, topics[e.Topic]
		}
		if answer.err != nil {
			places[i] = nowhere
			continue
		}
		p := partitioner(*e, answer.info.partitions)
		if p < 0 || p >= answer.info.partitions {
			answer.err = notSent(topic, -1, publish.FaultTopic,
				fmt.Errorf("PublisherConfig.PartitionFunc answered %d of %d partitions: it must answer from 0 to one less", p, answer.info.partitions))
			topics[topic] = answer
			p = nowhere
		}
		places[i] = int32(p)
	}
	return places
}

// divide makes a queue of every partition that has events, in the order of the events, and answers for those of
// topics that have an error.
func divide(events []holdfast.Event, answers []error, topics map[string]topicAnswer, places []int32) []partitionQueue {
	// 1. Give every topic's partitions a range of slots.
	type slots struct {
		from int
		topicAnswer
	}
	ranges := make(map[string]slots, len(topics))
	total := 0
	for topic, answer := range topics {
		ranges[topic] = slots{from: total, topicAnswer: answer}
		if answer.err == nil {
			total += answer.info.partitions
		}
	}

	// 2. Count each slot's events, and make the places into slots.
	counts := make([]int32, total)
	sent := 0
	eachTopic(events, func(topic string) slots { return ranges[topic] }, func(i int, s slots) {
		if s.err != nil {
			answers[i] = s.err
			places[i] = nowhere
			return
		}
		places[i] += int32(s.from)
		counts[places[i]]++
		sent++
	})

	// 3. Cut one array into the slots' parts.
	index := make([]int32, sent)
	used := 0
	ends := make([]int32, total)
	for slot, from := 0, int32(0); slot < total; slot++ {
		ends[slot] = from
		from += counts[slot]
		if counts[slot] > 0 {
			used++
		}
	}

	// 4. Fill them in the order of the events.
	for i, slot := range places {
		if slot != nowhere {
			index[ends[slot]] = int32(i)
			ends[slot]++
		}
	}

	queues := make([]partitionQueue, 0, used)
	for slot, count := range counts {
		if count == 0 {
			continue
		}
		run := index[ends[slot]-count : ends[slot] : ends[slot]]
		topic := events[run[0]].Topic
		r := ranges[topic]
		queues = append(queues, partitionQueue{info: r.info, Queue: partitionqueue.Queue{
			Topic:       topic,
			Partition:   slot - r.from,
			Events:      events,
			Answers:     answers,
			Runs:        [][]int32{run},
			TooLongFunc: sizeRefused,
		}})
	}
	return queues
}

// eachTopic calls do for every event with what of gives for its topic, asking once for a run of events of one topic.
func eachTopic[T any](events []holdfast.Event, of func(topic string) T, do func(i int, t T)) {
	var t T
	for i := range events {
		if i == 0 || events[i].Topic != events[i-1].Topic {
			t = of(events[i].Topic)
		}
		do(i, t)
	}
}

// partitionQueue is what of one partition a call sends, and what is known of its topic.
type partitionQueue struct {
	partitionqueue.Queue
	info *topicInfo
}
