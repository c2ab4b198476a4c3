package kafkago

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	fetchapi "github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/holdfast-go/holdfast/inbox"
)

// This file reads records from a partition by the protocol itself.

// Fetch speaks the protocol itself, because Client.Fetch leaves out which transactions were aborted, and where batches
// begin.
func (k *generation) Fetch(ctx context.Context, tp inbox.TopicPartition, offset int64) (inbox.Page, error) {
	isolation := kafka.ReadCommitted
	if k.s.g.ReadUncommitted {
		isolation = kafka.ReadUncommitted
	}
	for size := int32(fetchBytes); ; size *= 2 {
		if k.hasMissed() {
			return inbox.Page{}, errTopicMissed
		}
		p, err := k.fetchOnce(ctx, tp, offset, isolation, size)
		if err != nil {
			return inbox.Page{}, k.meets(err)
		}
		batches := batchesOf(p.RecordSet.Records)
		end := p.HighWatermark
		if isolation == kafka.ReadCommitted && p.LastStableOffset >= 0 {
			end = min(end, p.LastStableOffset)
		}
		if len(batches) == 0 {
			if end > offset && size < fetchMost { // The first batch was cut off: it is larger than what we asked for.
				continue
			}
			return inbox.Page{Next: offset}, nil
		}
		return readBatches(batches, p.AbortedTransactions, isolation, offset)
	}
}

func (k *generation) fetchOnce(ctx context.Context, tp inbox.TopicPartition, offset int64, isolation kafka.IsolationLevel, size int32) (*fetchapi.ResponsePartition, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	m, err := k.s.transport.RoundTrip(ctx, k.s.addr, &fetchapi.Request{
		ReplicaID: -1, MaxWaitTime: int32(fetchWait.Milliseconds()), MinBytes: 1, MaxBytes: size,
		IsolationLevel: int8(isolation), SessionID: 0, SessionEpoch: -1,
		Topics: []fetchapi.RequestTopic{{Topic: tp.Topic, Partitions: []fetchapi.RequestPartition{{
			Partition: int32(tp.Partition), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: size,
		}}}},
	})
	if err != nil {
		return nil, err
	}
	res, ok := m.(*fetchapi.Response)
	if !ok {
		return nil, fmt.Errorf("the broker answered a fetch with a %T", m)
	}
	code := res.ErrorCode
	var p *fetchapi.ResponsePartition
	if len(res.Topics) > 0 && len(res.Topics[0].Partitions) > 0 {
		p = &res.Topics[0].Partitions[0]
		code = cmp.Or(code, p.ErrorCode)
	}
	switch {
	case kafka.Error(code) == kafka.OffsetOutOfRange:
		return nil, fmt.Errorf("%w: %w", inbox.ErrOffsetOutOfRange, kafka.OffsetOutOfRange)
	case code != 0:
		return nil, kafka.Error(code)
	case p == nil:
		return nil, fmt.Errorf("the broker said nothing of %s/%d", tp.Topic, tp.Partition)
	}
	return p, nil
}

func batchesOf(r protocol.RecordReader) []protocol.RecordReader {
	switch r := r.(type) {
	case nil:
		return nil
	case *protocol.RecordStream:
		return r.Records
	default:
		return []protocol.RecordReader{r}
	}
}

// readBatches copies the records out, and leaves out control records and those of aborted transactions. Every batch is
// read to its end, which gives its memory back.
func readBatches(batches []protocol.RecordReader, aborted []fetchapi.ResponseTransaction, isolation kafka.IsolationLevel, offset int64) (inbox.Page, error) {
	aborted = slices.Clone(aborted)
	slices.SortFunc(aborted, func(a, b fetchapi.ResponseTransaction) int { return int(min(max(a.FirstOffset-b.FirstOffset, -1), 1)) })
	dropping := map[int64]bool{} // producers whose transaction, as far as we have read, was aborted
	pg := inbox.Page{Next: offset}
	for _, batch := range batches {
		drop := false
		switch b := batch.(type) {
		case *protocol.ControlBatch:
			for {
				c, err := b.ReadControlRecord()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					return inbox.Page{}, fmt.Errorf("read control record: %w", err)
				}
				if c.Type == 0 { // ABORT
					delete(dropping, b.ProducerID)
				}
				pg.Next = max(pg.Next, c.Offset+1)
			}
			continue
		case *protocol.RecordBatch:
			for len(aborted) > 0 && aborted[0].FirstOffset <= b.BaseOffset {
				dropping[aborted[0].ProducerID] = true
				aborted = aborted[1:]
			}
			drop = isolation == kafka.ReadCommitted && b.Attributes.Transactional() && dropping[b.ProducerID]
		}
		for {
			r, err := batch.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return inbox.Page{}, fmt.Errorf("read record: %w", err)
			}
			rec, err := copied(r)
			if err != nil {
				return inbox.Page{}, fmt.Errorf("read record: %w", err)
			}
			if rec.Offset < pg.Next { // A batch may begin before the offset that was asked for.
				continue
			}
			pg.Next = rec.Offset + 1
			if !drop {
				pg.Records = append(pg.Records, rec)
			}
		}
	}
	if pg.Next == offset {
		// The batch that holds the offset has no record there, nor later: compaction took it. On to the next offset.
		pg.Next = offset + 1
	}
	return pg, nil
}

// copied takes a record out of kafka-go's shared pages, and gives those back.
func copied(r *protocol.Record) (inbox.Record, error) {
	rec := inbox.Record{Offset: r.Offset, Time: r.Time}
	var err error
	if r.Key != nil {
		defer r.Key.Close()
		if rec.Key, err = protocol.ReadAll(r.Key); err != nil {
			return rec, err
		}
	}
	if r.Value != nil {
		defer r.Value.Close()
		if rec.Value, err = protocol.ReadAll(r.Value); err != nil {
			return rec, err
		}
	}
	if len(r.Headers) > 0 {
		rec.Headers = make([]inbox.Header, len(r.Headers))
		for i, h := range r.Headers {
			rec.Headers[i] = inbox.Header(h)
		}
	}
	return rec, nil
}
