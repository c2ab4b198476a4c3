package franz

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/partitionqueue"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// router says where events go.
type router struct {
	topics      *topics
	partitioner func(holdfast.Event, int) int
	most        int // bytes of a batch
}

// partition is publish.Partitioner's method.
func (r router) partition(e holdfast.Event) (partition, partitions int) {
	t := r.topics.get(e.Topic)
	if t == nil {
		return 0, 0
	}
	p := r.partitioner(e, len(t.leaders))
	if p < 0 || p >= len(t.leaders) {
		return 0, 0 // Publish says what is wrong
	}
	return p, len(t.leaders)
}

// route divides events by partition, in their order. Events of topics that cannot be written to get their answers here.
func (r router) route(ctx context.Context, events []holdfast.Event, answers []error) []*queue {
	var names []string
	for i := range events {
		if t := events[i].Topic; (i == 0 || t != events[i-1].Topic) && !slices.Contains(names, t) {
			names = append(names, t)
		}
	}
	topics := r.topics.lookup(ctx, names)
	var queues []*queue
	at := map[place]*queue{}
	for i := range events {
		e := &events[i]
		t := topics[e.Topic]
		if t.err == nil {
			n := len(t.info.leaders)
			p := r.partitioner(*e, n)
			if p >= 0 && p < n {
				q := at[place{e.Topic, p}]
				if q == nil {
					q = &queue{info: t.info, Queue: partitionqueue.Queue{
						Topic:       e.Topic,
						Partition:   p,
						Events:      events,
						Answers:     answers,
						Runs:        [][]int32{nil},
						Limit:       r.most,
						TooLongFunc: sizeRefused,
					}}
					if learned := int(t.info.limit.Load()); learned > 0 {
						q.Limit = min(q.Limit, learned)
					}
					at[q.place()], queues = q, append(queues, q)
				}
				q.Runs[0] = append(q.Runs[0], int32(i))
				continue
			}
			// The PartitionFunc's mistake ends its topic for this call, so that no later event of a key overtakes.
			t.err = notSent(place{e.Topic, nowhere}, fmt.Errorf("PublisherConfig.PartitionFunc answered %d of %d partitions: it must answer from 0 to one less", p, n))
			t.err.Fault = publish.FaultTopic
			topics[e.Topic] = t
		}
		answers[i] = t.err
	}
	return queues
}
