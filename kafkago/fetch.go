package kafkago

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	fetchapi "github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file reads records from a partition, page by page. What a fetch brings is packed, and may unpack to a thousand times
// its size: so it stays packed, and each page unpacks the next records only.

// Fetch speaks the protocol itself, because Client.Fetch leaves out which transactions were aborted, and unpacks
// everything at once.
func (g *generation) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if g.hasMissed() {
		return source.Page{}, errTopicMissed
	}
	u := g.unread.take(tp, offset, maxBytes)
	for size := int32(min(maxBytes, fetchBytes)); u == nil; {
		p, err := g.fetchOnce(ctx, tp, offset, size, maxBytes)
		if err != nil {
			return source.Page{}, g.meets(err)
		}
		switch {
		case p.page != nil:
			return *p.page, p.refused
		case len(p.packed) == 0:
			return source.Page{Next: offset, Withheld: p.withheld}, nil
		}
		if whole := sizeOfFirst(p.packed); int64(len(p.packed)) < whole { // The first batch was cut off.
			if whole > fetchMost || whole <= int64(size) {
				return source.Page{}, fmt.Errorf("read %s/%d: the batch with offset %d has %d bytes, and the broker sent %d of them",
					tp.Topic, tp.Partition, offset, whole, len(p.packed))
			}
			size = int32(whole)
			continue
		}
		u = &unread{packed: p.packed, transactions: p.transactions}
	}
	select {
	case g.s.unpacking <- struct{}{}:
		defer func() { <-g.s.unpacking }()
	case <-ctx.Done():
		return source.Page{}, ctx.Err()
	}
	pg := newPage(tp, offset, maxBytes)
	rest, err := pg.readAll(u.packed, u.transactions)
	if err != nil && len(pg.Records) == 0 {
		return source.Page{}, err
	}
	if len(rest) > 0 {
		again := pg.Next
		if n := len(pg.Records); n > 0 && pg.Records[n-1].LeftOut > 0 {
			again = pg.Records[n-1].Offset
		}
		g.unread.keep(tp, &unread{
			offset:       pg.Next,
			again:        again,
			packed:       rest,
			transactions: u.transactions,
		})
	}
	return pg.Page, nil // An error after some records comes again with the next page.
}

func (g *generation) fetchOnce(ctx context.Context, tp source.TopicPartition, offset int64, size int32, maxBytes int64) (*fetched, error) {
	isolation := kafka.ReadCommitted
	if g.s.g.ReadUncommitted {
		isolation = kafka.ReadUncommitted
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	m, err := g.s.transport.RoundTrip(ctx, g.s.addr, &fetchRequest{
		Request: fetchapi.Request{
			ReplicaID:      -1,
			MaxWaitTime:    int32(fetchWait.Milliseconds()),
			MinBytes:       1,
			MaxBytes:       size,
			IsolationLevel: int8(isolation),
			SessionID:      0,
			SessionEpoch:   -1,
			Topics: []fetchapi.RequestTopic{{Topic: tp.Topic, Partitions: []fetchapi.RequestPartition{{
				Partition: int32(tp.Partition), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: size,
			}}}},
		},
		clientID: g.s.clientID, tp: tp, offset: offset, maxBytes: maxBytes,
	})
	if err != nil {
		return nil, err
	}
	p, ok := m.(*fetched)
	switch {
	case !ok:
		return nil, fmt.Errorf("the broker answered a fetch with a %T", m)
	case kafka.Error(p.code) == kafka.OffsetOutOfRange:
		return nil, fmt.Errorf("%w: %w", source.ErrOffsetOutOfRange, kafka.OffsetOutOfRange)
	case p.code != 0:
		return nil, kafka.Error(p.code)
	case !p.answered:
		return nil, fmt.Errorf("the broker said nothing of %s/%d", tp.Topic, tp.Partition)
	}
	return p, nil
}
