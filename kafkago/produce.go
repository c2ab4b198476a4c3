package kafkago

import (
	"context"
	"io"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// maxThrottle bounds how long we do as a broker's quota asks. Kafka's own bound is its quota window, 11 s by default.
const maxThrottle = 30 * time.Second

// produce sends one batch of q's partition and waits for the answer: nil when it is acknowledged, else what is wrong
// with it, and, when the broker says so, which records are to blame, by their place in the batch.
func (pu *Publisher) produce(ctx context.Context, q *partitionQueue, batch []int32) (*publish.Error, map[int]error) {
	fail := func(fault publish.Fault, err error) *publish.Error {
		return publishError(q.Topic, q.Partition, fault, err)
	}
	if err := pu.throttle(ctx); err != nil {
		return notSent(q.Topic, q.Partition, publish.FaultBroker, err), nil
	}

	// From here on only time ends the request. kafka-go would return on a cancelled context and leave the request under
	// way, to be written behind the next one; at a deadline the connection itself stops.
	began := time.Now()
	deadline := began.Add(pu.config.ProduceTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	request, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()

	records := pu.records.Get().(*recordReader)
	records.reset(q.Events, batch)
	res, err := pu.client.Produce(request, &kafka.ProduceRequest{
		Topic:        q.Topic,
		Partition:    q.Partition,
		RequiredAcks: kafka.RequireAll,
		Compression:  pu.config.Compression,
		Records:      records,
	})
	if err != nil {
		// records is not used again: at a deadline the connection's goroutine may still be reading it.
		fault := meaningOf(err).Fault
		if fault == publish.FaultBroker && unanswered(err) && pu.leaderAway(ctx, q.Topic, q.Partition, began) {
			fault = publish.FaultPartition // it is this partition's leader that is away, not the cluster
		}
		return fail(fault, err), nil
	}
	records.reset(nil, nil)
	pu.records.Put(records)

	pu.noteThrottle(res.Throttle)
	if res.Error != nil {
		fault := meaningOf(res.Error).Fault
		for at, why := range res.RecordErrors {
			res.RecordErrors[at] = recordError(res.Error, why)
		}
		return fail(fault, res.Error), res.RecordErrors
	}
	pu.ackedAt.Store(int64(time.Since(pu.start)))
	return nil, nil
}

// noteThrottle remembers how long a broker asked us to wait.
func (pu *Publisher) noteThrottle(wait time.Duration) {
	if wait > 0 {
		pu.resumeAt.Store(int64(time.Since(pu.start) + min(wait, maxThrottle)))
	}
}

// throttle waits as long as the brokers have asked. A broker over its quota stops reading from the connection: a
// request sent meanwhile would time out unread, be sent again, and be written as often as it was sent.
func (pu *Publisher) throttle(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	wait := time.Duration(pu.resumeAt.Load()) - time.Since(pu.start)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recordReader gives kafka-go the records of a batch one by one, all in the same memory: kafka-go encodes each before
// it asks for the next. Records carry no time of their own, so kafka-go stamps them with this moment. The event's
// time is in ce_time; as the record's time it would let a topic's retention delete an old event as soon as it is
// written.
type recordReader struct {
	events  []holdfast.Event
	batch   []int32
	read    int
	record  kafka.Record
	key     recordBytes
	value   recordBytes
	scratch []byte
}

// reset starts the reader on another batch and forgets the memory of the last one.
func (r *recordReader) reset(events []holdfast.Event, batch []int32) {
	clear(r.record.Headers[:cap(r.record.Headers)])
	*r = recordReader{
		events:  events,
		batch:   batch,
		record:  kafka.Record{Headers: r.record.Headers[:0]},
		scratch: r.scratch[:0],
	}
}

// ReadRecord is for kafka-go.
func (r *recordReader) ReadRecord() (*kafka.Record, error) {
	if r.read == len(r.batch) {
		// Start again: should somebody's RoundTripper send a request twice, it sends the same records twice and not
		// none, which kafka-go would report as acknowledged.
		r.read = 0
		return nil, io.EOF
	}
	e := &r.events[r.batch[r.read]]
	r.read++

	r.record.Key, r.record.Value = nil, nil
	r.scratch = r.scratch[:0]
	if e.Key != "" {
		r.scratch = append(r.scratch, wire.RecordKey(e.Key)...)
		r.key.bytes = r.scratch
		r.record.Key = &r.key
	}
	if e.Payload != nil {
		r.value.bytes = e.Payload
		r.record.Value = &r.value
	}
	r.record.Headers, r.scratch = wire.Append(r.record.Headers[:0], r.scratch, *e)
	return &r.record, nil
}

// recordBytes is a kafka.Bytes that is used over and over.
type recordBytes struct{ bytes []byte }

func (b *recordBytes) Len() int     { return len(b.bytes) }
func (b *recordBytes) Close() error { return nil }

func (b *recordBytes) Read(p []byte) (int, error) {
	if len(b.bytes) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.bytes)
	b.bytes = b.bytes[n:]
	return n, nil
}

// WriteTo spares kafka-go's io.Copy a buffer of 32 KiB for every key and value.
func (b *recordBytes) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.bytes)
	b.bytes = b.bytes[n:]
	return int64(n), err
}
