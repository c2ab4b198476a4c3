package franz

import "github.com/holdfast-go/holdfast/internal/partitionqueue"

// queue is what of one partition a call sends, and what is known of its topic.
type queue struct {
	partitionqueue.Queue
	info  *topicInfo
	alone bool // something of it was refused: it shares no batch with others
}

func (q *queue) place() place { return place{q.Topic, q.Partition} }
