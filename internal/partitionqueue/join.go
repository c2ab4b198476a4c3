package partitionqueue

import (
	"sync/atomic"

	"github.com/holdfast-go/holdfast"
)

// Joined are the batches of a call of PublishTogether as one list of events, with one queue for each partition: a batch of a topic whose
// partitions were not known has several, and a queue may have events of several batches.
type Joined struct {
	Events  []holdfast.Event
	Answers []error

	answered func(batch int, answers []error)
	starts   []int // of the batches, and the end of the last
	batchOf  []int // of each event
	left     []atomic.Int64
	batches  [][]int // of each queue
}

// Join puts batches one after the other. answered is called once for each, when all its queues are done.
func Join(batches [][]holdfast.Event, answered func(batch int, answers []error)) *Joined {
	g := &Joined{
		answered: answered,
		starts:   make([]int, 0, len(batches)+1),
		batchOf:  make([]int, 0, len(batches)),
		left:     make([]atomic.Int64, len(batches)),
	}
	for i, batch := range batches {
		g.starts = append(g.starts, len(g.Events))
		g.Events = append(g.Events, batch...)
		for range batch {
			g.batchOf = append(g.batchOf, i)
		}
	}
	g.starts = append(g.starts, len(g.Events))
	g.Answers = make([]error, len(g.Events))
	return g
}

// Divided takes in how the events were divided: runsOf gives what each of so many queues has. What is in no queue is answered.
func (j *Joined) Divided(queues int, runsOf func(queue int) [][]int32) {
	for batch := range j.left {
		j.left[batch].Store(1)
	}
	j.batches = make([][]int, queues)
	for i := range j.batches {
		last := -1
		for _, run := range runsOf(i) {
			for _, e := range run {
				if j.batchOf[e] != last {
					last = j.batchOf[e]
					j.batches[i] = append(j.batches[i], last)
					j.left[last].Add(1)
				}
			}
		}
	}
	for batch := range j.left {
		j.finish(batch)
	}
}

// Done is for each queue, when nothing of it is left. Many goroutines may call it at once.
func (j *Joined) Done(queue int) {
	for _, batch := range j.batches[queue] {
		j.finish(batch)
	}
}

func (j *Joined) finish(batch int) {
	if j.left[batch].Add(-1) == 0 {
		from, to := j.starts[batch], j.starts[batch+1]
		j.answered(batch, j.Answers[from:to:to])
	}
}
