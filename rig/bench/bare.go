package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/kafkago"
)

// The bare loop is the limit of this stack. It reads the same rows of the same log, in pages of 2,000 for each lane, one
// page ahead, and produces them with the same headers, codec and partitions. It does nothing else: it has no window, lease
// or saved cursor, handles no failure, and sends events in the wrong order (by xid).
const (
	bareLanes = 8 // as a new schema has
	barePage  = 2000
)

const barePageSQL = `select e.xid::text, e.seq, e.id, e.source, e.type, e.topic, e.key, e.time, e.payload
  from holdfast.event e
 where e.lane = $1::smallint and (e.xid, e.seq) > ($2::text::xid8, $3::bigint)
 order by e.xid, e.seq limit $4::integer`

// bareDrain publishes a backlog for a topic with the usual partitions, and returns events a second.
func (e *env) bareDrain(ctx context.Context, database string, events int) (float64, error) {
	return e.bareDrainOf(ctx, database, bareLanes, partitions, events)
}

// bareDrainOf is bareDrain of so many lanes, a few at a time, for topics of so many partitions each.
func (e *env) bareDrainOf(ctx context.Context, database string, lanes, partitions, events int) (float64, error) {
	pool, err := e.pool(ctx, database, bareLanes)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	transport := &kafka.Transport{Dial: kafkago.Dial}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{
		Addr:      kafka.TCP(e.kafka.Brokers...),
		Transport: transport,
		Timeout:   10 * time.Second,
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var published atomic.Int64
	began := time.Now()
	var group sync.WaitGroup
	atOnce := make(chan struct{}, bareLanes)
	for lane := range lanes {
		group.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			n, err := bareLane(ctx, pool, client, lane, partitions)
			published.Add(int64(n))
			if err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	took := time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if published.Load() != int64(events) {
		return 0, fmt.Errorf("the bare loop read %d of %d events", published.Load(), events)
	}
	return float64(events) / took.Seconds(), nil
}

// bareLane reads a page while the one before it is produced, as the relay does.
func bareLane(ctx context.Context, pool *pgxpool.Pool, client *kafka.Client, lane, partitions int) (published int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	pages := make(chan *pageOfLane)
	failed := make(chan error, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(pages)
		failed <- bareRead(ctx, pool, lane, partitions, pages)
	})
	defer reading.Wait()
	defer cancel()
	for page := range pages {
		if err := bareProduce(ctx, client, page.batches); err != nil {
			return published, err
		}
		published += page.events
	}
	return published, <-failed
}

// bareSpot is a partition.
type bareSpot struct {
	topic     string
	partition int
}

// pageOfLane is a page of a lane, by partition.
type pageOfLane struct {
	batches map[bareSpot]*bareBatch
	events  int
}

// bareRead reads the pages of a lane.
func bareRead(ctx context.Context, pool *pgxpool.Pool, lane, partitions int, pages chan<- *pageOfLane) error {
	xid, seq := "0", int64(0)
	words := map[string]string{}
	for {
		rows, err := pool.Query(ctx, barePageSQL, lane, xid, seq, barePage)
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		page := &pageOfLane{batches: map[bareSpot]*bareBatch{}}
		for rows.Next() {
			v := rows.RawValues()
			event := bareEvent(rows, v, words)
			at := bareSpot{event.Topic, kafkago.Murmur2(event, partitions)}
			batch := page.batches[at]
			if batch == nil {
				batch = &bareBatch{bareSpot: at}
				page.batches[at] = batch
			}
			batch.events = append(batch.events, event)
			if page.events++; page.events == barePage {
				xid, seq = string(v[0]), int64(binary.BigEndian.Uint64(v[1]))
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		select {
		case pages <- page:
		case <-ctx.Done():
			return ctx.Err()
		}
		if page.events < barePage {
			return nil
		}
	}
}

// bareEvent takes the values as they come on the wire.
func bareEvent(rows pgx.Rows, v [][]byte, words map[string]string) holdfast.Event {
	const microsecondsTo2000 = 946_684_800_000_000
	word := func(b []byte) string {
		s, known := words[string(b)]
		if !known {
			s = string(b)
			words[s] = s
		}
		return s
	}
	return holdfast.Event{
		ID:      string(v[2]),
		Source:  word(v[3]),
		Type:    word(v[4]),
		Topic:   word(v[5]),
		Key:     string(v[6]),
		Time:    time.UnixMicro(int64(binary.BigEndian.Uint64(v[7])) + microsecondsTo2000).UTC(),
		Payload: append([]byte(nil), v[8]...),
	}
}

// bareShared is how many partitions a request of many has. A page for few partitions is sent by a request for each, at the same
// time: that is faster then.
const bareShared = 128

// bareProduce sends a page, and waits for all answers.
func bareProduce(ctx context.Context, client *kafka.Client, batches map[bareSpot]*bareBatch) error {
	requests := 1
	if len(batches) > bareShared/2 {
		requests = bareShared
	}
	var group sync.WaitGroup
	chunks := slices.Collect(slices.Chunk(slices.Collect(maps.Values(batches)), requests))
	errs := make([]error, len(chunks))
	for i, together := range chunks {
		group.Go(func() { errs[i] = bareSend(ctx, client, together) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// bareSend sends the batches of some partitions, the first of each in one request, then what is left.
func bareSend(ctx context.Context, client *kafka.Client, together []*bareBatch) error {
	for {
		request := &produce.Request{Acks: -1, Timeout: 5000}
		for _, b := range together {
			if b.next() {
				request.Topics = append(request.Topics, produce.RequestTopic{Topic: b.topic, Partitions: []produce.RequestPartition{{Partition: int32(b.partition),
					RecordSet: protocol.RecordSet{Attributes: protocol.Attributes(codec), Records: b}}}})
			}
		}
		if len(request.Topics) == 0 {
			return nil
		}
		if err := bareRequest(ctx, client, request); err != nil {
			return err
		}
	}
}

func bareRequest(ctx context.Context, client *kafka.Client, request *produce.Request) error {
	// Without a time of its own, the call has what the connection had to be made in.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	answer, err := client.Transport.RoundTrip(ctx, client.Addr, request)
	if err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	for _, t := range answer.(*produce.Response).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return fmt.Errorf("produce to %s/%d: %w", t.Topic, p.Partition, kafka.Error(p.ErrorCode))
			}
		}
	}
	return nil
}

// bareCall is how many bytes of payloads a call may have: a broker takes a batch of 1 MiB by default.
const bareCall = 900_000

// bareBatch gives kafka-go the records of a partition one by one, in the same memory, a call after the other.
type bareBatch struct {
	bareSpot
	events     []holdfast.Event
	read, end  int // of the call
	record     kafka.Record
	key, value bareBytes
	scratch    []byte
}

// next goes on to the next call. It returns false if there is nothing left.
func (b *bareBatch) next() bool {
	b.read = b.end
	for bytes := 0; b.end < len(b.events) && (b.end == b.read || bytes+len(b.events[b.end].Payload) <= bareCall); b.end++ {
		bytes += len(b.events[b.end].Payload)
	}
	return b.end > b.read
}

func (b *bareBatch) ReadRecord() (*kafka.Record, error) {
	if b.read == b.end {
		return nil, io.EOF
	}
	event := &b.events[b.read]
	b.read++
	b.scratch = append(b.scratch[:0], event.Key...)
	b.key.bytes, b.value.bytes = b.scratch, event.Payload
	b.record.Key, b.record.Value = &b.key, &b.value
	b.record.Headers, b.scratch = wire.Append(b.record.Headers[:0], b.scratch, *event)
	return &b.record, nil
}

type bareBytes struct{ bytes []byte }

func (b *bareBytes) Len() int     { return len(b.bytes) }
func (b *bareBytes) Close() error { return nil }

func (b *bareBytes) Read(p []byte) (int, error) {
	if len(b.bytes) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.bytes)
	b.bytes = b.bytes[n:]
	return n, nil
}

func (b *bareBytes) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.bytes)
	b.bytes = b.bytes[n:]
	return int64(n), err
}
