package franz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// sequence is what we have sent to a partition. A broker takes a batch under the number that follows the last one's, and recognises one
// that it has. So a batch of which we do not know what became of it, open, is sent again as it was, before anything else is sent to the
// partition, by whatever call of Publish comes next: it is written once. Nothing else may have its numbers: the broker would take
// it for the open one, and acknowledge what it has not written.
type sequence struct {
	place

	mu      sync.Mutex
	waiting []*call
	busy    bool      // run is there
	usedAt  time.Time // when it was last asked for, or ended

	// Owned by run, from here on.

	id      [16]byte  // of the topic: of one that is recreated nothing is known
	by      *identity // nil before the first batch, and after forget
	next    int32     // the number of the next record
	renew   bool      // by has to be another than that of all partitions
	open    *sentBatch
	written written // under by, in the topic with id

	// slow says that the partition did not answer a shared request in time. It has requests of its own until it answers promptly.
	slow bool
}

// sentBatch is a batch as it was sent.
type sentBatch struct {
	bytes   []byte
	records int
	failed  []recordHash // what calls were told had failed
}

// settled notes that a batch was written, and that nothing of the partition is open.
func (s *sequence) settled(b *sentBatch) { s.next, s.open = after(s.next, b.records), nil }

// forget gives the sequence up: another identity begins a new one. An open batch may be written twice then, which the inbox finds by
// the events' ids.
func (s *sequence) forget() { s.by, s.next, s.renew, s.open, s.written = nil, 0, true, nil, nil }

// in notes which topic it is that calls have events for. A topic that was recreated has none of what we sent.
func (s *sequence) in(id [16]byte) {
	if id == s.id {
		return
	}
	if s.by != nil {
		s.forget()
	}
	s.id = id
}

// idle says that nobody has published to the partition for so long that all of it may be forgotten.
func (s *sequence) idle(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.busy && now.Sub(s.usedAt) >= rememberedFor
}

func (s *sequence) used(now time.Time) {
	s.mu.Lock()
	s.usedAt = now
	s.mu.Unlock()
}

// call is what one call of Publish has for the partition.
type call struct {
	ctx   context.Context
	q     *queue
	limit int           // of q, at the beginning
	ended chan struct{} // closed when q has no more to send
}

// part is a batch of one call, and a part of what is sent at once.
type part struct {
	*call
	batch []int32
}

// drain has one partition's events sent, together with what other calls have for it.
func (pu *Publisher) drain(ctx context.Context, q *queue) {
	if q.renew(ctx, &pu.topics); len(q.Runs) == 0 {
		return
	}
	s := pu.sequence(q.place())
	c := &call{ctx: ctx, q: q, limit: q.Limit, ended: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, c)
	if !s.busy {
		s.busy = true
		go pu.run(s)
	}
	s.mu.Unlock()
	timer := time.NewTimer(pu.config.ProduceTimeout)
	defer timer.Stop()
	err := error(kerr.RequestTimedOut) // of the calls before this one
	select {
	case <-c.ended:
		return
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
	}
	if s.withdraw(c) {
		q.Abandon(nil, notSent(q.place(), err))
		return
	}
	<-c.ended
}

// withdraw takes a call back that has not begun.
func (s *sequence) withdraw(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.waiting, c)
	if at >= 0 {
		s.waiting = slices.Delete(s.waiting, at, at+1)
	}
	return at >= 0
}

// run sends what calls have for the partition, until none waits.
func (pu *Publisher) run(s *sequence) {
	var calls []*call
	for {
		s.mu.Lock()
		calls, s.waiting = append(calls, s.waiting...), nil
		s.busy, s.usedAt = len(calls) > 0, time.Now()
		s.mu.Unlock()
		if len(calls) == 0 {
			return
		}
		pu.round(s, calls)
		calls = slices.DeleteFunc(calls, func(c *call) bool {
			if len(c.q.Runs) > 0 {
				return false
			}
			if c.q.Limit < c.limit {
				c.q.info.limit.Store(int64(c.q.Limit))
			}
			close(c.ended)
			return true
		})
	}
}

// round asks what became of an open batch, and then sends a batch of what the calls have.
func (pu *Publisher) round(s *sequence, calls []*call) {
	for _, c := range calls {
		if err := c.ctx.Err(); err != nil {
			c.q.Abandon(nil, notSent(s.place, err))
		}
	}
	s.in(calls[0].q.info.id)
	if b := s.open; b != nil {
		err, _ := pu.send(calls[0].q, s, b, pu.deadline(nil))
		switch {
		case err == nil:
			s.written.add(b.failed, time.Now())
		case s.open != nil:
			for _, c := range calls {
				c.q.Abandon(nil, err)
			}
			pu.topics.expire(s.place)
			return
		}
	}
	if len(s.written) > 0 {
		pu.dropWritten(s, calls)
	}
	parts := pu.parts(calls)
	if len(parts) == 0 {
		return
	}
	err, records := pu.produce(s, parts)
	if err == nil || err.Fault != publish.FaultRecord || len(parts) == 1 {
		for _, p := range parts {
			pu.settle(p, err, records)
		}
		return
	}
	// One of them is to blame: each is sent by itself.
	for n, p := range parts {
		err, records := pu.produce(s, []part{p})
		pu.settle(p, err, records)
		p.q.alone = err != nil
		if err != nil && err.Fault != publish.FaultRecord {
			for _, p := range parts[n+1:] { // Nothing has its numbers while it is open.
				p.q.Runs = append(p.q.Runs, p.batch)
			}
			return
		}
	}
}

// dropWritten answers for events that are written. Before the first of them it asks the leader whether the topic is still the one that
// they were written to: the answer that we have may be older than that.
func (pu *Publisher) dropWritten(s *sequence, calls []*call) {
	w := pu.writers.Get().(*batchWriter)
	defer pu.writers.Put(w)
	now, asked, same := time.Now(), false, false
	var failed *publish.Error
	for _, c := range calls {
		found := false
		c.q.Drop(func(e *holdfast.Event) bool {
			h := w.hashOf(e)
			if !s.written.has(h, now) {
				return false
			}
			if found = true; !asked {
				asked = true
				same, failed = pu.stillIn(s, c.q)
			}
			if same {
				delete(s.written, h)
			}
			return same
		})
		if found && failed != nil {
			c.q.Abandon(nil, failed)
		}
	}
	if asked && !same && failed == nil {
		s.forget()
		pu.topics.expire(s.place)
	}
}

// stillIn asks the leader whether the topic is the one that a sequence has written to.
func (pu *Publisher) stillIn(s *sequence, q *queue) (bool, *publish.Error) {
	leader, began := q.info.leaders[q.Partition], time.Now()
	if leader < 0 {
		return false, notSent(s.place, kerr.LeaderNotAvailable)
	}
	ctx, cancel := context.WithTimeout(context.Background(), pu.config.ProduceTimeout)
	defer cancel()
	found, err := describe(ctx, pu.client.Broker(int(leader)), []string{s.topic})
	if err != nil {
		e := pu.failure(s.place, leader, began, err)
		e.NotSent = true
		return false, e
	}
	d := found[s.topic]
	return d.err == nil && d.id == s.id && s.id != [16]byte{}, nil
}

func (pu *Publisher) settle(p part, err *publish.Error, records map[int]error) {
	p.q.Settle(p.batch, err, records)
	if err != nil && err.Fault != publish.FaultRecord {
		pu.topics.expire(p.q.place())
	}
}

// parts takes the next batch of each call, as many as fit in one.
func (pu *Publisher) parts(calls []*call) (parts []part) {
	size := 0
	for _, c := range calls {
		if len(parts) > 0 && (c.q.alone || c.q.info.id != parts[0].q.info.id) {
			continue
		}
		batch := c.q.Next()
		if batch == nil {
			continue
		}
		n := c.q.SizeOf(batch)
		if len(parts) > 0 && size+n > min(c.q.Limit, parts[0].q.Limit) {
			c.q.Runs = append(c.q.Runs, batch)
			continue
		}
		size += n
		parts = append(parts, part{c, batch})
		if c.q.alone {
			break
		}
	}
	return parts
}

// deadline is until when what some calls have is sent.
func (pu *Publisher) deadline(parts []part) time.Time {
	end := time.Now().Add(pu.config.ProduceTimeout)
	for _, p := range parts {
		if d, ok := p.ctx.Deadline(); ok && d.Before(end) {
			end = d
		}
	}
	return end
}

// produce writes a batch and sends it: nil when it is acknowledged, else what is wrong with it, and, when the broker says so, which
// records are to blame. A partition whose broker has forgotten us begins another sequence, once.
func (pu *Publisher) produce(s *sequence, parts []part) (err *publish.Error, records map[int]error) {
	for range 2 {
		if s.by == nil {
			by, failed := pu.identify(s.renew)
			if failed != nil {
				return notSent(s.place, failed), nil
			}
			s.by, s.next = by, 0
		}
		b := &sentBatch{}
		w := pu.writers.Get().(*batchWriter)
		w.begin()
		for _, p := range parts {
			b.records += len(p.batch)
			for _, i := range p.batch {
				w.append(&p.q.Events[i])
			}
		}
		b.bytes = w.write(*s.by, s.next, time.Now(), pu.codec)
		pu.writers.Put(w)
		err, records = pu.send(parts[0].q, s, b, pu.deadline(parts))
		if s.open == b {
			b.failed = pu.hashes(parts)
		}
		if err == nil || !forgotten(err) {
			return err, records
		}
	}
	return err, records
}

// hashes are those of the records of some parts.
func (pu *Publisher) hashes(parts []part) (all []recordHash) {
	w := pu.writers.Get().(*batchWriter)
	defer pu.writers.Put(w)
	for _, p := range parts {
		for _, i := range p.batch {
			all = append(all, w.hashOf(&p.q.Events[i]))
		}
	}
	return all
}

// send sends a batch until its fate is known, or its time is over: then the batch stays open. Nothing else ends it once it has begun, so
// that an answer is never missed for a caller that gives up.
func (pu *Publisher) send(q *queue, s *sequence, b *sentBatch, deadline time.Time) (*publish.Error, map[int]error) {
	began := time.Now()
	for {
		leader := q.info.leaders[q.Partition]
		if leader < 0 {
			return notSent(q.place(), kerr.LeaderNotAvailable), nil
		}
		tried := time.Now()
		a := pu.line(leader, s.slow).exchange(&load{
			place:    q.place(),
			id:       q.info.id,
			bytes:    b.bytes,
			deadline: deadline,
		})
		if a.err == nil || s.open == b && errors.Is(a.err, kerr.DuplicateSequenceNumber) {
			s.settled(b)
			pu.ackedAt.Store(int64(time.Since(pu.start)))
			if time.Since(tried) < promptly {
				s.slow = false
			}
			return nil, nil
		}
		switch {
		case forgotten(a.err):
			s.forget()
		case s.open != nil && nothingWritten(a.err) && !neverSent(a.err) && meaningOf(a.err).Fault != publish.FaultPartition:
			s.forget() // What became of it before is not known, and this answer is about the batch as it is.
		case !nothingWritten(a.err):
			s.open = b
			if errors.Is(a.err, kerr.RequestTimedOut) && time.Until(deadline) > replicate {
				s.slow = true // Its replicas are late: it waits for them where it delays nobody.
				continue
			}
		}
		return pu.failure(q.place(), leader, began, a.err), a.records
	}
}

// failure is the answer for an event that is not acknowledged because of err, which a leader gave to a request that began at some time.
func (pu *Publisher) failure(at place, leader int32, began time.Time, err error) *publish.Error {
	e := publishError(at, err)
	if e.Fault == publish.FaultBroker && unanswered(err) && pu.leaderAway(leader, began) {
		e.Fault = publish.FaultPartition // it is this partition's leader that is away, not the cluster
	}
	return e
}

// identify returns an identity: the one that all partitions share, or, for a partition whose broker has forgotten that, another. Who asks
// for another holds up nobody who shares.
func (pu *Publisher) identify(another bool) (*identity, error) {
	if another {
		return pu.newIdentity()
	}
	if by := pu.shared.Load(); by != nil {
		return by, nil
	}
	shared, err, _ := pu.asking.Do("identity", func() (any, error) {
		if by := pu.shared.Load(); by != nil {
			return by, nil
		}
		by, err := pu.newIdentity()
		if err == nil {
			pu.shared.Store(by)
		}
		return by, err
	})
	return shared.(*identity), err
}

// newIdentity asks any broker for an identity that nobody has.
func (pu *Publisher) newIdentity() (*identity, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pu.config.ProduceTimeout)
	defer cancel()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, pu.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for a producer id: %w", err)
	}
	return &identity{resp.ProducerID, resp.ProducerEpoch}, nil
}
