package franz

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/partitionqueue"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// queue is what of one partition a call sends, and what is known of its topic.
type queue struct {
	partitionqueue.Queue
	info  *topicInfo
	alone bool // something of it was refused: it shares no batch with others
}

func (q *queue) place() place { return place{q.Topic, q.Partition} }

// renew waits for what is known of a queue's topic now, if its partition has failed. It ends the queue if the events may have other
// partitions now: the next call finds those.
func (q *queue) renew(ctx context.Context, t *topics) {
	if !q.info.doubts(q.Partition) {
		return
	}
	a := t.at(ctx, q.place())
	switch {
	case a.err != nil:
		q.Abandon(nil, a.err)
	case len(a.info.leaders) != len(q.info.leaders):
		e := notSent(q.place(), fmt.Errorf("the topic had %d partitions and has %d now", len(q.info.leaders), len(a.info.leaders)))
		e.Fault = publish.FaultPartition
		q.Abandon(nil, e)
	default:
		q.info = a.info
	}
}
