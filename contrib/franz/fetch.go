package franz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/inbox/source"
)

const (
	fetchBytes      = 4 << 20  // of one partition in a fetch, unless its first batch is larger
	fetchAllBytes   = 32 << 20 // of a fetch
	fetchWait       = 100 * time.Millisecond
	fetchTimeout    = 30 * time.Second
	fetchedTogether = 256 // partitions of a fetch

	// What a record and a header take in memory beside their bytes.
	recordCost = 256
	headerCost = 64
)

// fetcher asks brokers for records. A broker answers the requests of a connection one after the other, so partitions of a leader that
// are asked for at the same time share one. Safe for use by many goroutines.
type fetcher struct {
	client    *kgo.Client
	committed bool // only records of committed transactions

	mu    sync.Mutex
	polls map[int32]*poll // by leader
}

// poll is what is asked of one leader.
type poll struct {
	waiting []*want
	busy    bool
}

// want is a question for records of a partition.
type want struct {
	place
	id       [16]byte
	offset   int64
	size     int32
	answered chan found // of one, filled once
}

// found is the answer.
type found struct {
	partition *kmsg.FetchResponseTopicPartition
	err       error
}

// ask asks a leader, together with others.
func (f *fetcher) ask(ctx context.Context, leader int32, w *want) (*kmsg.FetchResponseTopicPartition, error) {
	w.answered = make(chan found, 1)
	f.mu.Lock()
	if f.polls == nil {
		f.polls = map[int32]*poll{}
	}
	p := f.polls[leader]
	if p == nil {
		p = &poll{}
		f.polls[leader] = p
	}
	p.waiting = append(p.waiting, w)
	if !p.busy {
		p.busy = true
		go f.run(leader, p)
	}
	f.mu.Unlock()
	select {
	case a := <-w.answered:
		return a.partition, a.err
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		if at := slices.Index(p.waiting, w); at >= 0 {
			p.waiting = slices.Delete(p.waiting, at, at+1)
		}
		return nil, ctx.Err()
	}
}

// run asks until nobody waits.
func (f *fetcher) run(leader int32, p *poll) {
	for {
		f.mu.Lock()
		n := min(len(p.waiting), fetchedTogether)
		wants := slices.Clone(p.waiting[:n])
		p.waiting = slices.Delete(p.waiting, 0, n)
		p.busy = n > 0
		f.mu.Unlock()
		if n == 0 {
			return
		}
		f.fetch(leader, wants)
	}
}

// fetch makes one request, and answers all that it is for.
func (f *fetcher) fetch(leader int32, wants []*want) {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, int32(fetchWait.Milliseconds()), 1, fetchAllBytes
	req.SessionEpoch = -1
	if f.committed {
		req.IsolationLevel = 1
	}
	type topic struct {
		name string
		id   [16]byte
	}
	at, names := map[topic]int{}, map[[16]byte]string{}
	left := map[place]*want{}
	for _, w := range wants {
		t := topic{w.topic, w.id}
		n, ok := at[t]
		if !ok {
			n = len(req.Topics)
			at[t], names[w.id] = n, w.topic
			r := kmsg.NewFetchRequestTopic()
			r.Topic, r.TopicID = w.topic, w.id
			req.Topics = append(req.Topics, r)
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = int32(w.partition), w.offset, w.size
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
		left[w.place] = w
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	resp, err := f.client.Broker(int(leader)).Request(ctx, req)
	if fetched, ok := resp.(*kmsg.FetchResponse); ok && err == nil {
		if err = kerr.ErrorForCode(fetched.ErrorCode); err == nil {
			err = errUnnamed
			for _, t := range fetched.Topics {
				if fetched.Version >= 13 { // topics have ids only
					t.Topic = names[t.TopicID]
				}
				for i := range t.Partitions {
					where := place{t.Topic, int(t.Partitions[i].Partition)}
					if w := left[where]; w != nil {
						delete(left, where)
						w.answered <- found{partition: &t.Partitions[i]}
					}
				}
			}
		}
	}
	for _, w := range left {
		w.answered <- found{err: err}
	}
}

// Fetch returns a page of records. What one fetch brings is in memory as a whole, as it was sent: a batch may have as many bytes as its
// topic's max.message.bytes. It is unpacked to at most twice maxBytes; a batch that needs more is an *source.TooLargeError.
func (g *generation) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if err := g.hasMissed(); err != nil {
		return source.Page{}, err
	}
	if pg, ok := g.unread.take(tp, offset, maxBytes); ok {
		return pg, nil
	}
	leader, id, err := g.leaderOf(ctx, tp)
	if err != nil {
		return source.Page{}, err
	}
	p, err := g.s.fetcher.ask(ctx, leader, &want{
		place:  place{tp.Topic, tp.Partition},
		id:     id,
		offset: offset,
		size:   int32(min(maxBytes, fetchBytes)),
	})
	if err == nil {
		err = kerr.ErrorForCode(p.ErrorCode)
	}
	switch {
	case ctx.Err() != nil && err != nil:
		return source.Page{}, ctx.Err()
	case errors.Is(err, kerr.OffsetOutOfRange):
		return source.Page{}, fmt.Errorf("%w: %w", source.ErrOffsetOutOfRange, err)
	case err != nil:
		g.s.topics.expire(place{tp.Topic, tp.Partition})
		return source.Page{}, g.meets(err)
	}
	records, next, err := unpacked(p, tp, offset, 2*maxBytes, g.s.fetcher.committed)
	if err != nil {
		return source.Page{}, fmt.Errorf("read %s/%d from offset %d on: %w", tp.Topic, tp.Partition, offset, err)
	}
	pg, rest := pageOf(records, offset, next, maxBytes)
	if stable := p.LastStableOffset; g.s.fetcher.committed && pg.Next == offset && stable >= 0 && stable <= offset {
		pg.Withheld = max(0, p.HighWatermark-offset) // What comes from there on is given out when the transaction there ends.
	}
	if len(rest) > 0 {
		g.unread.keep(tp, unread{offset: pg.Next, records: rest, next: next})
	}
	return pg, nil
}

// leaderOf is who has a partition, and the id of its topic.
func (g *generation) leaderOf(ctx context.Context, tp source.TopicPartition) (leader int32, id [16]byte, err error) {
	info, err := g.s.topic(ctx, place{tp.Topic, tp.Partition})
	if err != nil {
		return 0, id, g.meets(err)
	}
	if tp.Partition >= len(info.leaders) || info.leaders[tp.Partition] < 0 {
		g.s.topics.expire(place{tp.Topic, tp.Partition})
		return 0, id, fmt.Errorf("%s/%d: %w", tp.Topic, tp.Partition, kerr.LeaderNotAvailable)
	}
	return info.leaders[tp.Partition], g.idOf(tp.Topic, info.id), nil
}

// Bounds asks the leader for the first offset and for that after the last one.
func (g *generation) Bounds(ctx context.Context, tp source.TopicPartition) (first, end int64, err error) {
	if err := g.hasMissed(); err != nil {
		return 0, 0, err
	}
	leader, _, err := g.leaderOf(ctx, tp)
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if first, end, err = boundsOf(ctx, g.s.client, leader, place{tp.Topic, tp.Partition}); err != nil {
		g.s.topics.expire(place{tp.Topic, tp.Partition})
		return 0, 0, fmt.Errorf("ask for the bounds of %s/%d: %w", tp.Topic, tp.Partition, g.meets(err))
	}
	return first, end, nil
}

// unpacked are the records of an answer from offset on, and the offset after them. They unpack to at most so many bytes.
func unpacked(p *kmsg.FetchResponseTopicPartition, tp source.TopicPartition, offset, most int64, committed bool) ([]*kgo.Record, int64, error) {
	o := kgo.ProcessFetchPartitionOpts{
		Offset:         offset,
		Topic:          tp.Topic,
		Partition:      int32(tp.Partition),
		IsolationLevel: kgo.ReadUncommitted(),
	}
	if committed {
		o.IsolationLevel = kgo.ReadCommitted()
	}
	got, next := kgo.ProcessFetchPartition(o, p, &unpacker{left: most, most: most}, nil)
	var large *source.TooLargeError
	if errors.As(got.Err, &large) {
		if next > offset { // Batches without records to keep came before it.
			return nil, next, nil
		}
		large.Next = lastOf(p.RecordBatches, offset) + 1
	}
	if got.Err != nil && len(got.Records) == 0 {
		return nil, 0, got.Err
	}
	return got.Records, next, nil // An error after some records comes again with the next page.
}

// lastOf is the last offset of the batch that holds an offset.
func lastOf(batches []byte, offset int64) int64 {
	for len(batches) > 17 && batches[16] == 2 {
		var b kmsg.RecordBatch
		size := int64(int32FromBytes(batches[8:])) + 12
		if size > int64(len(batches)) || size < 61 || b.ReadFrom(batches[:size]) != nil {
			break
		}
		if last := b.FirstOffset + int64(b.LastOffsetDelta); last >= offset {
			return last
		}
		batches = batches[size:]
	}
	return offset
}

func int32FromBytes(b []byte) int32 {
	return int32(b[0])<<24 | int32(b[1])<<16 | int32(b[2])<<8 | int32(b[3])
}

// pageOf is as many records as have maxBytes, and the others. One that alone has more comes without its value.
func pageOf(records []*kgo.Record, offset, next, maxBytes int64) (pg source.Page, rest []*kgo.Record) {
	pg.Next = offset
	room := maxBytes
	for n, r := range records {
		cost := costOf(r)
		if cost > room && len(pg.Records) > 0 {
			return pg, records[n:]
		}
		pg.Records, pg.Next = append(pg.Records, copied(r, cost, cost > maxBytes)), r.Offset+1
		if room -= cost; cost > maxBytes { // It is asked for again, with more bytes.
			return pg, nil
		}
	}
	pg.Next = max(pg.Next, next)
	return pg, nil
}

// costOf is what a record takes in memory.
func costOf(r *kgo.Record) int64 {
	n := int64(recordCost + len(r.Key) + len(r.Value))
	for _, h := range r.Headers {
		n += int64(headerCost + len(h.Key) + len(h.Value))
	}
	return n
}

// copied takes a record out of the memory of its batch.
func copied(r *kgo.Record, cost int64, leaveOut bool) source.Record {
	const longKey, longHeaders = 4 << 10, 64 << 10
	rec := source.Record{Offset: r.Offset, Time: r.Timestamp}
	if leaveOut {
		rec.LeftOut = cost
	} else {
		rec.Value = bytes.Clone(r.Value)
	}
	if !leaveOut || len(r.Key) <= longKey {
		rec.Key = bytes.Clone(r.Key)
	}
	room := longHeaders
	for _, h := range r.Headers {
		if room -= headerCost + len(h.Key) + len(h.Value); leaveOut && room < 0 {
			break
		}
		rec.Headers = append(rec.Headers, source.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
	}
	return rec
}

// unread is what a fetch brought and no page had room for yet.
type unread struct {
	offset  int64
	records []*kgo.Record
	next    int64 // the offset after them
}

// unreads keeps, for each partition, what the next page takes without another fetch. Safe for use by many goroutines.
type unreads struct {
	mu sync.Mutex
	of map[source.TopicPartition]unread
}

func (un *unreads) keep(tp source.TopicPartition, u unread) {
	un.mu.Lock()
	defer un.mu.Unlock()
	if un.of == nil {
		un.of = map[source.TopicPartition]unread{}
	}
	un.of[tp] = u
}

// take makes a page of what is kept for an offset. What is kept for another is dropped.
func (un *unreads) take(tp source.TopicPartition, offset, maxBytes int64) (source.Page, bool) {
	un.mu.Lock()
	defer un.mu.Unlock()
	u, ok := un.of[tp]
	delete(un.of, tp)
	if !ok || u.offset != offset {
		return source.Page{}, false
	}
	pg, rest := pageOf(u.records, offset, u.next, maxBytes)
	if len(rest) > 0 {
		un.of[tp] = unread{offset: pg.Next, records: rest, next: u.next}
	}
	return pg, true
}

// drop forgets partitions.
func (un *unreads) drop(of []source.TopicPartition) {
	un.mu.Lock()
	defer un.mu.Unlock()
	for _, tp := range of {
		delete(un.of, tp)
	}
}
