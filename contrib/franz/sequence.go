package franz

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay"
)

// eventID is what an event is recognised by.
type eventID struct{ source, id string }

func idOf(e *holdfast.Event) eventID { return eventID{e.Source, e.ID} }

// sequence is what we have sent to a partition. A broker takes a batch under the number that follows the last one's, and recognises one
// that it has. So a batch of which we do not know what became of it, open, is sent again as it was, before anything else is sent to the
// partition, by whatever call of Publish comes next: it is written once. Nothing else may have its numbers: the broker would take
// it for the open one, and acknowledge what it has not written.
type sequence struct {
	place
	turn chan struct{} // holds one while a call sends to the partition; guards what follows

	by    *identity // nil before the first batch, and after forget
	next  int32     // the number of the next record
	renew bool      // by has to be another than that of all partitions
	open  *sentBatch

	// written are events whose batch was open, and that turned out to be written. Who publishes them again has his answer.
	written map[eventID]struct{}

	// slow says that the partition did not answer a shared request in time. It has requests of its own until it answers promptly.
	slow bool
}

// sentBatch is a batch as it was sent.
type sentBatch struct {
	bytes   []byte
	records int
	ids     []eventID
}

// writtenMost bounds sequence.written. Most of it is forgotten when another relay has taken the lane, and asks for nothing.
const writtenMost = 50_000

// take waits for the partition's turn.
func (s *sequence) take(ctx context.Context, most time.Duration) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return kerr.RequestTimedOut // of the calls before this one
	}
}

func (s *sequence) release() { <-s.turn }

// settled notes that a batch was written, and that nothing of the partition is open.
func (s *sequence) settled(b *sentBatch) {
	s.next = after(s.next, b.records)
	if s.open == nil {
		return
	}
	if s.written == nil || len(s.written)+len(b.ids) > writtenMost {
		s.written = make(map[eventID]struct{}, len(b.ids))
	}
	for _, id := range b.ids {
		s.written[id] = struct{}{}
	}
	s.open = nil
}

// forget gives the sequence up: another identity begins a new one. An open batch may be written twice then, which the inbox finds by
// the events' ids.
func (s *sequence) forget() { s.by, s.next, s.renew, s.open = nil, 0, true, nil }

// wasWritten says that an event was written by an open batch, once.
func (s *sequence) wasWritten(e *holdfast.Event) bool {
	_, ok := s.written[idOf(e)]
	delete(s.written, idOf(e))
	return ok
}

// drain sends one partition's events: it asks the queue for a batch, sends it, and tells the queue how it went.
func (k *Publisher) drain(ctx context.Context, q *queue) {
	s := k.sequence(q.place)
	if err := s.take(ctx, k.config.ProduceTimeout); err != nil {
		q.abandon(nil, notSent(q.place, err))
		return
	}
	defer s.release()
	if b := s.open; b != nil {
		if err, _ := k.send(ctx, q, s, b); err != nil && s.open != nil {
			q.abandon(nil, err)
			k.topics.expire(q.topic)
			return
		}
	}
	if len(s.written) > 0 {
		q.drop(s.wasWritten)
	}
	limit := q.limit
	for batch := q.next(); batch != nil; batch = q.next() {
		err, records := k.produce(ctx, q, s, batch)
		q.settle(batch, err, records)
		if err != nil && err.Fault != relay.FaultRecord {
			k.topics.expire(q.topic)
		}
	}
	if q.limit < limit {
		q.info.limit.Store(int64(q.limit))
	}
}

// produce writes a batch and sends it: nil when it is acknowledged, else what is wrong with it, and, when the broker says so, which
// records are to blame. A partition whose broker has forgotten us begins another sequence, once.
func (k *Publisher) produce(ctx context.Context, q *queue, s *sequence, batch []int32) (err *relay.PublishError, records map[int]error) {
	for range 2 {
		if s.by == nil {
			by, failed := k.identify(ctx, s.renew)
			if failed != nil {
				return notSent(q.place, failed), nil
			}
			s.by, s.next = by, 0
		}
		if ctx.Err() != nil {
			return notSent(q.place, ctx.Err()), nil
		}
		w := k.writers.Get().(*batchWriter)
		b := &sentBatch{bytes: w.write(q.events, batch, *s.by, s.next, time.Now(), k.codec), records: len(batch), ids: make([]eventID, len(batch))}
		k.writers.Put(w)
		for n, i := range batch {
			b.ids[n] = idOf(&q.events[i])
		}
		if err, records = k.send(ctx, q, s, b); err == nil || !forgotten(err) {
			return err, records
		}
	}
	return err, records
}

// send sends a batch until its fate is known, or ProduceTimeout is over: then the batch stays open. Only time ends it once it has
// begun, so that an answer is never missed for a caller that gives up.
func (k *Publisher) send(ctx context.Context, q *queue, s *sequence, b *sentBatch) (*relay.PublishError, map[int]error) {
	began := time.Now()
	deadline := began.Add(k.config.ProduceTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	for {
		leader := q.info.leaders[q.partition]
		if leader < 0 {
			return notSent(q.place, kerr.LeaderNotAvailable), nil
		}
		tried := time.Now()
		a := k.line(leader, s.slow).exchange(&load{place: q.place, id: q.info.id, bytes: b.bytes, deadline: deadline})
		if a.err == nil || errors.Is(a.err, kerr.DuplicateSequenceNumber) {
			s.settled(b)
			k.ackedAt.Store(int64(time.Since(k.start)))
			if time.Since(tried) < promptly {
				s.slow = false
			}
			return nil, nil
		}
		switch {
		case forgotten(a.err):
			s.forget()
		case s.open != nil && nothingWritten(a.err) && !neverSent(a.err) && meaningOf(a.err).fault != relay.FaultPartition:
			s.forget() // What became of it before is not known, and this answer is about the batch as it is.
		case !nothingWritten(a.err):
			s.open = b
			if errors.Is(a.err, kerr.RequestTimedOut) && time.Until(deadline) > replicate {
				s.slow = true // Its replicas are late: it waits for them where it delays nobody.
				continue
			}
		}
		err := publishError(q.place, a.err)
		if err.Fault == relay.FaultBroker && unanswered(a.err) && k.leaderAway(ctx, leader, began) {
			err.Fault = relay.FaultPartition // it is this partition's leader that is away, not the cluster
		}
		return err, a.records
	}
}

// identify returns an identity: the one that all partitions share, or, for a partition whose broker has forgotten that, another.
func (k *Publisher) identify(ctx context.Context, another bool) (*identity, error) {
	k.identifying.Lock()
	defer k.identifying.Unlock()
	if k.shared != nil && !another {
		return k.shared, nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.config.ProduceTimeout)
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, k.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for a producer id: %w", err)
	}
	by := &identity{resp.ProducerID, resp.ProducerEpoch}
	if !another {
		k.shared = by
	}
	return by, nil
}
