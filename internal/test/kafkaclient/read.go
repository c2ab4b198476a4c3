package kafkaclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// Record is one record as the broker keeps it.
type Record struct {
	Partition int
	Offset    int64
	Time      time.Time
	Key       []byte // nil when the record has none
	Value     []byte // nil in a tombstone
	Headers   []kafka.Header
}

// Header returns the value of the first header of that name, and whether there is one.
func (r Record) Header(name string) (string, bool) {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// ReadAll returns every record of a topic, partition by partition in offset order, from the
// first offset to what was the end when ReadAll was called. Markers of transactions are left
// out; records of transactions that were aborted or are still open are not.
func (c *Cluster) ReadAll(ctx context.Context, topic string) ([]Record, error) {
	var meta kafka.Topic
	believed := time.Now().Add(2 * metadataTTL) // The transport may answer with what was so before the topic was created.
	err := patiently(ctx, func() (err error) {
		meta, err = c.topic(ctx, topic)
		if errors.Is(err, kafka.UnknownTopicOrPartition) && time.Now().Before(believed) {
			return fmt.Errorf("%w: %w", errNotYet, err)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find topic %s: %w", topic, err)
	}
	var all []Record
	for partition := range len(meta.Partitions) {
		records, err := c.ReadPartition(ctx, topic, partition)
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	return all, nil
}

// ReadPartition is ReadAll for one partition.
func (c *Cluster) ReadPartition(ctx context.Context, topic string, partition int) ([]Record, error) {
	return c.ReadFrom(ctx, topic, partition, 0)
}

// ReadFrom is ReadPartition from an offset on.
func (c *Cluster) ReadFrom(ctx context.Context, topic string, partition int, offset int64) ([]Record, error) {
	var first, end int64
	err := patiently(ctx, func() (err error) {
		if first, err = c.offset(ctx, topic, kafka.FirstOffsetOf(partition)); err != nil {
			return err
		}
		end, err = c.offset(ctx, topic, kafka.LastOffsetOf(partition))
		return err
	})
	if err != nil {
		return nil, err
	}
	var records []Record
	for next := max(first, offset); next < end; {
		var batch []Record
		var after int64
		err := patiently(ctx, func() (err error) {
			batch, after, err = c.fetch(ctx, topic, partition, next)
			return err
		})
		if err != nil {
			return nil, err
		}
		if after <= next {
			// The log has a hole here: compaction may remove any record but never the last.
			return nil, fmt.Errorf("fetch %s/%d: no records at offset %d below the end %d", topic, partition, next, end)
		}
		records = append(records, batch...)
		next = after
	}
	return slices.DeleteFunc(records, func(r Record) bool { return r.Offset >= end }), nil
}

// offset asks for one end of a partition.
func (c *Cluster) offset(ctx context.Context, topic string, which kafka.OffsetRequest) (int64, error) {
	resp, err := c.Client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {which}},
	})
	if err != nil {
		return 0, fmt.Errorf("list offsets of %s/%d: %w", topic, which.Partition, err)
	}
	for _, p := range resp.Topics[topic] {
		if p.Partition != which.Partition {
			continue
		}
		if p.Error != nil {
			return 0, fmt.Errorf("list offsets of %s/%d: %w", topic, which.Partition, p.Error)
		}
		return max(p.FirstOffset, p.LastOffset), nil // the one that was not asked for is -1
	}
	return 0, fmt.Errorf("list offsets of %s/%d: no answer for that partition", topic, which.Partition)
}

// fetch reads some records from offset on, and returns the offset to go on from.
func (c *Cluster) fetch(ctx context.Context, topic string, partition int, offset int64) ([]Record, int64, error) {
	resp, err := c.Client.Fetch(ctx, &kafka.FetchRequest{
		Topic:     topic,
		Partition: partition,
		Offset:    offset,
		MinBytes:  1,
		MaxBytes:  16 << 20,
		MaxWait:   time.Second,
	})
	if err == nil {
		err = resp.Error
	}
	if err != nil {
		return nil, 0, fmt.Errorf("fetch %s/%d at %d: %w", topic, partition, offset, err)
	}
	batches := []kafka.RecordReader{resp.Records}
	if stream, ok := resp.Records.(*protocol.RecordStream); ok {
		batches = stream.Records
	}
	var records []Record
	next := offset
	for _, batch := range batches {
		_, control := batch.(*protocol.ControlBatch)
		for {
			r, err := batch.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, 0, fmt.Errorf("decode %s/%d at %d: %w", topic, partition, offset, err)
			}
			record, err := copyRecord(partition, r)
			if err != nil {
				return nil, 0, fmt.Errorf("decode %s/%d at %d: %w", topic, partition, offset, err)
			}
			// A batch is sent whole: its first records may lie before the offset asked for.
			if !control && record.Offset >= offset {
				records = append(records, record)
			}
			next = max(next, record.Offset+1)
		}
	}
	return records, next, nil
}

// copyRecord takes a record out of the client's pooled buffers, which it gives back.
func copyRecord(partition int, r *kafka.Record) (Record, error) {
	key, err := readBytes(r.Key)
	if err != nil {
		return Record{}, err
	}
	value, err := readBytes(r.Value)
	if err != nil {
		return Record{}, err
	}
	return Record{
		Partition: partition,
		Offset:    r.Offset,
		Time:      r.Time,
		Key:       key,
		Value:     value,
		Headers:   slices.Clone(r.Headers),
	}, nil
}

func readBytes(b kafka.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	defer b.Close()
	return kafka.ReadAll(b)
}
