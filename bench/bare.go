package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

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

// bareDrain publishes the backlog and returns events a second.
func (e *env) bareDrain(ctx context.Context, database, topic string, events int) (float64, error) {
	pool, err := e.pool(ctx, database, bareLanes)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	transport := &kafka.Transport{Dial: kafkago.Dial}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(e.kafka.Brokers...), Transport: transport, Timeout: 10 * time.Second}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var published atomic.Int64
	began := time.Now()
	var group sync.WaitGroup
	for lane := range bareLanes {
		group.Go(func() {
			n, err := bareLane(ctx, pool, client, topic, lane)
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
func bareLane(ctx context.Context, pool *pgxpool.Pool, client *kafka.Client, topic string, lane int) (published int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	pages := make(chan *pageOfLane)
	failed := make(chan error, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(pages)
		failed <- bareRead(ctx, pool, lane, pages)
	})
	defer reading.Wait()
	defer cancel()
	for page := range pages {
		if err := bareProduce(ctx, client, topic, &page.batches); err != nil {
			return published, err
		}
		published += page.events
	}
	return published, <-failed
}

// pageOfLane is a page of a lane, by partition.
type pageOfLane struct {
	batches [partitions]bareBatch
	events  int
}

// bareRead reads the pages of a lane.
func bareRead(ctx context.Context, pool *pgxpool.Pool, lane int, pages chan<- *pageOfLane) error {
	xid, seq := "0", int64(0)
	words := map[string]string{}
	for {
		rows, err := pool.Query(ctx, barePageSQL, lane, xid, seq, barePage)
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		page := &pageOfLane{}
		for rows.Next() {
			v := rows.RawValues()
			event := bareEvent(rows, v, words)
			batch := &page.batches[kafkago.Murmur2(event, partitions)]
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
		ID: string(v[2]), Source: word(v[3]), Type: word(v[4]), Topic: word(v[5]), Key: string(v[6]),
		Time:    time.UnixMicro(int64(binary.BigEndian.Uint64(v[7])) + microsecondsTo2000).UTC(),
		Payload: append([]byte(nil), v[8]...),
	}
}

// bareProduce sends a page, its partitions at the same time, and waits for all of them.
func bareProduce(ctx context.Context, client *kafka.Client, topic string, batches *[partitions]bareBatch) error {
	var errs [partitions]error
	var group sync.WaitGroup
	for p := range batches {
		if len(batches[p].events) == 0 {
			continue
		}
		group.Go(func() {
			for batches[p].next() && errs[p] == nil {
				res, err := client.Produce(ctx, &kafka.ProduceRequest{Topic: topic, Partition: p, RequiredAcks: kafka.RequireAll, Compression: codec, Records: &batches[p]})
				if err == nil {
					err = res.Error
				}
				errs[p] = err
			}
		})
	}
	group.Wait()
	for p, err := range errs {
		if err != nil {
			return fmt.Errorf("produce to partition %d: %w", p, err)
		}
	}
	return nil
}

// bareCall is how many bytes of payloads a call may have: a broker takes a batch of 1 MiB by default.
const bareCall = 900_000

// bareBatch gives kafka-go the records of a partition one by one, in the same memory, a call after the other.
type bareBatch struct {
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
