package kafkago

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/partitionqueue"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// A request of many partitions is answered when the last of them is. So it has less time than others: half a second, or eight times
// what such requests have taken of late. A partition that does not answer delays those beside it for so long, once, and then they
// are sent without it.
const togetherTimeout = 500 * time.Millisecond

// patience is how long a request of many partitions may take. The broker has a part of it to replicate; then it answers for the
// partitions that have, and for those that have not.
func (pu *Publisher) patience() (all, replicate time.Duration) {
	all = min(max(togetherTimeout, 8*time.Duration(pu.usual.Load())), pu.config.ProduceTimeout)
	return all, all * 3 / 5
}

// noteTogether records what a request of many partitions took. One that had no answer doubles what is usual: the broker may
// have more to do than it can, and to be sent everything again is yet more.
func (pu *Publisher) noteTogether(took time.Duration, answered bool) {
	usual := time.Duration(pu.usual.Load())
	if answered {
		usual += (took - usual) / 8
	} else {
		usual = max(2*usual, took/8)
	}
	pu.usual.Store(int64(min(usual, pu.config.ProduceTimeout))) // two at a time may count as one
}

var _ publish.Gatherer = (*Publisher)(nil)

// PublishTogether is publish.Gatherer: it sends one request to each leader with all partitions that have events in batches. What
// does not fit in a request of at most MaxRequestBytes a partition, and what is divided because a record of it was refused,
// follows in requests of its partition alone. answered is called for each batch when its leader has answered for it.
func (pu *Publisher) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error)) {
	if len(batches) == 0 {
		return
	}
	g := partitionqueue.Join(batches, answered)
	queues := pu.route(ctx, g.Events, g.Answers)
	g.Divided(len(queues), func(i int) [][]int32 { return queues[i].Runs })
	pu.send(ctx, queues, 1, g.Done)
}

// togetherMost is how many partitions a request has at most: one of them that does not answer keeps the others waiting.
const togetherMost = 128

// send sends queues, those of a leader together if they are more than alone. done is called for each as soon as nothing of it is
// left.
func (pu *Publisher) send(ctx context.Context, queues []partitionQueue, alone int, done func(queue int)) {
	groups := map[int][]int{}
	for i := range queues {
		leader := noLeader
		if len(queues) > alone {
			leader = queues[i].info.leader(queues[i].Partition)
		}
		groups[leader] = append(groups[leader], i)
	}
	var all sync.WaitGroup
	for leader, group := range groups {
		all.Go(func() {
			if leader == noLeader {
				pu.sendGroup(ctx, queues, group, false, done)
				return
			}
			for part := range slices.Chunk(group, togetherMost) {
				pu.sendGroup(ctx, queues, part, len(part) > 1, done)
			}
		})
	}
	all.Wait()
}

// sendGroup sends the partitions of one leader, together if they may, and what is left of each alone.
func (pu *Publisher) sendGroup(ctx context.Context, queues []partitionQueue, group []int, together bool, done func(queue int)) {
	if together {
		pu.produceTogether(ctx, queues, group)
	}
	var rest []int
	for _, i := range group {
		if len(queues[i].Runs) == 0 {
			done(i)
		} else {
			rest = append(rest, i)
		}
	}
	each(len(rest), pu.config.Parallel, func(n int) {
		pu.drain(ctx, &queues[rest[n]])
		done(rest[n])
	})
}

// each calls do for 0 to n-1, at most so many at a time.
func each(n, atOnce int, do func(i int)) {
	var taken atomic.Int64
	work := func() {
		for i := taken.Add(1) - 1; i < int64(n); i = taken.Add(1) - 1 {
			do(int(i))
		}
	}
	var others sync.WaitGroup
	for range min(n, atOnce) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// produceTogether sends the first batch of each queue in one request, and tells the queues how it went. What certainly was not
// sent stays in its queue.
func (pu *Publisher) produceTogether(ctx context.Context, queues []partitionQueue, group []int) {
	if err := pu.throttle(ctx); err != nil {
		for _, i := range group {
			q := &queues[i]
			q.Abandon(q.Next(), notSent(q.Topic, q.Partition, publish.FaultBroker, err))
		}
		return
	}
	began := time.Now()
	patience, replicate := pu.patience()
	deadline := began.Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	request, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()

	sent, message := pu.requestOf(queues, group, replicate)
	res, err := pu.client.Transport.RoundTrip(request, pu.client.Addr, message)
	if err != nil {
		if unanswered(err) {
			pu.noteTogether(time.Since(began), false)
		}
		pu.failTogether(ctx, sent, began, err)
		return
	}
	pu.noteTogether(time.Since(began), true)
	for _, b := range sent {
		b.records.reset(nil, nil)
		pu.records.Put(b.records)
	}
	response, ok := res.(*produce.Response)
	if !ok {
		pu.failTogether(ctx, sent, began, fmt.Errorf("the answer to a Produce request is a %T", res))
		return
	}
	pu.noteThrottle(time.Duration(response.ThrottleTimeMs) * time.Millisecond)
	for _, t := range response.Topics {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			at := leadership{t.Topic, int(p.Partition)}
			b := sent[at]
			if b == nil {
				continue
			}
			delete(sent, at)
			pu.settleTogether(b, p)
		}
	}
	if len(sent) > 0 {
		pu.failTogether(ctx, sent, began, protocol.ErrNoPartition)
	}
}

// sentBatch is what a request has of a partition.
type sentBatch struct {
	queue   *partitionQueue
	batch   []int32
	records *recordReader
}

// requestOf takes the next batch of each queue, and makes one request of them.
func (pu *Publisher) requestOf(queues []partitionQueue, group []int, replicate time.Duration) (sent map[leadership]*sentBatch, r *produce.Request) {
	r = &produce.Request{Acks: int16(kafka.RequireAll), Timeout: int32(replicate.Milliseconds())}
	sent = make(map[leadership]*sentBatch, len(group))
	topics := map[string]int{}
	for _, i := range group {
		q := &queues[i]
		b := &sentBatch{queue: q, batch: q.Next(), records: pu.records.Get().(*recordReader)}
		b.records.reset(q.Events, b.batch)
		sent[leadership{q.Topic, q.Partition}] = b
		at, known := topics[q.Topic]
		if !known {
			at = len(r.Topics)
			topics[q.Topic] = at
			r.Topics = append(r.Topics, produce.RequestTopic{Topic: q.Topic})
		}
		t := &r.Topics[at]
		t.Partitions = append(t.Partitions, produce.RequestPartition{Partition: int32(q.Partition),
			RecordSet: protocol.RecordSet{Attributes: protocol.Attributes(pu.config.Compression) & 0x7, Records: b.records}})
	}
	return sent, r
}

// settleTogether takes in what the broker answered for one partition.
func (pu *Publisher) settleTogether(b *sentBatch, p *produce.ResponsePartition) {
	if p.ErrorCode == 0 {
		pu.ackedAt.Store(int64(time.Since(pu.start)))
		b.queue.Settle(b.batch, nil, nil)
		return
	}
	var err error = kafka.Error(p.ErrorCode)
	if p.ErrorMessage != "" {
		err = fmt.Errorf("%w: %s", err, p.ErrorMessage)
	}
	records := make(map[int]error, len(p.RecordErrors))
	for _, r := range p.RecordErrors {
		records[int(r.BatchIndex)] = recordError(err, errors.New(r.BatchIndexErrorMessage))
	}
	pu.settleFailed(b, err, records)
}

// failTogether takes in that a request failed as a whole. If it never left, because a partition is not where it was, each
// partition is sent alone.
func (pu *Publisher) failTogether(ctx context.Context, sent map[leadership]*sentBatch, began time.Time, err error) {
	if as[*produce.Error](err) {
		for _, b := range sent {
			b.queue.Runs = append(b.queue.Runs, b.batch)
			pu.topics.expire(b.queue.Topic)
		}
		return
	}
	fault := meaningOf(err).Fault
	away, asked := false, false
	for at, b := range sent {
		if fault == publish.FaultBroker && unanswered(err) {
			if !asked { // they have one leader
				away, asked = pu.leaderAway(ctx, at.topic, at.partition, began), true
			}
			if away {
				b.queue.Settle(b.batch, publishError(at.topic, at.partition, publish.FaultPartition, err), nil)
				pu.topics.expire(at.topic)
				continue
			}
		}
		pu.settleFailed(b, err, nil)
	}
}

func (pu *Publisher) settleFailed(b *sentBatch, err error, records map[int]error) {
	fault := meaningOf(err).Fault
	q, limit := b.queue, b.queue.Limit
	q.Settle(b.batch, publishError(q.Topic, q.Partition, fault, err), records)
	if fault != publish.FaultRecord {
		pu.topics.expire(q.Topic)
	}
	if q.Limit < limit {
		q.info.limit.Store(int64(q.Limit))
	}
}
