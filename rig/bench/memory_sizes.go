package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/outbox"
)

// memoryCase is a backlog of events of one size.
type memoryCase struct {
	name string
	size int // of a payload
}

var memoryCases = []memoryCase{{"100 KB", 100_000}, {"1 MB", 1_000_000}}

const (
	memoryMost     = 256 // MiB
	unpackedMemory = "resident memory of a consumer, records that unpack to 200 MB, peak"
)

func relayMemory(size string) string {
	return "resident memory of a relay, events of " + size + ", peak"
}
func consumerMemory(size string) string {
	return "resident memory of a consumer, events of " + size + ", peak"
}

var memorySizesFigures = []string{relayMemory("100 KB"), consumerMemory("100 KB"), relayMemory("1 MB"), consumerMemory("1 MB"), unpackedMemory}

// measureMemorySizes lets a relay in a process of its own publish backlogs of large events, and a consumer in another one
// handle them. What is reported is the peak of the resident set, as the kernel has it.
func measureMemorySizes(ctx context.Context, e *env, r *report) error {
	for _, c := range memoryCases {
		if !selected(e.options.only, []string{relayMemory(c.name), consumerMemory(c.name)}) {
			continue
		}
		if err := e.measureMemoryOf(ctx, r, c); err != nil {
			return fmt.Errorf("events of %s: %w", c.name, err)
		}
	}
	if !selected(e.options.only, []string{unpackedMemory}) {
		return nil
	}
	if err := e.measureUnpacking(ctx, r); err != nil {
		return fmt.Errorf("records that unpack to 200 MB: %w", err)
	}
	return nil
}

func (e *env) measureMemoryOf(ctx context.Context, r *report, c memoryCase) error {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return err
	}
	defer drop()
	events := e.large / c.size
	r.progress("memory: %d events of %s", events, c.name)
	if err := e.writeLarge(ctx, database, topic, c.size, events); err != nil {
		return err
	}
	var peak float64
	if err := e.exactly(ctx, r, topic, events, "relay", func() (err error) {
		_, peak, err = e.sampleMemory(ctx, childOptions{database: database}, events)
		return err
	}); err != nil {
		return err
	}
	r.goal(relayMemory(c.name), peak, "MiB", atMost(memoryMost))
	return e.consumerMemory(ctx, r, consumerMemory(c.name), topic, 1, events, atMost(memoryMost))
}

// consumerMemory lets a consumer in a process of its own handle the first events of a topic.
func (e *env) consumerMemory(ctx context.Context, r *report, figure, topic string, batch, events int, goal goal) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	r.progress("memory: a consumer of %d of them", events)
	samples, peak, err := e.sampleMemory(ctx, childOptions{
		database: database,
		topic:    topic,
		batch:    batch,
	}, events)
	if err != nil {
		return err
	}
	r.goal(figure, peak, "MiB", goal)
	r.note("%s: %s", figure, sketch(samples))
	return nil
}

// writeLarge writes events whose payloads do not compress.
func (e *env) writeLarge(ctx context.Context, database, topic string, size, events int) error {
	const writers = 4
	pool, err := e.pool(ctx, database, writers, "synchronous_commit", "off")
	if err != nil {
		return err
	}
	defer pool.Close()
	var group sync.WaitGroup
	var next atomic.Int64
	failed := make([]error, writers)
	for w := range writers {
		group.Go(func() {
			random := rand.NewChaCha8([32]byte{byte(w)})
			for failed[w] == nil {
				n := next.Add(1)
				if n > int64(events) {
					return
				}
				payload := make([]byte, size)
				_, _ = random.Read(payload)
				failed[w] = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					return outbox.Write(ctx, tx, holdfast.Event{
						Topic:   topic,
						Source:  eventSource,
						Type:    eventType,
						Key:     fmt.Sprint(n % keys),
						Payload: payload,
					})
				})
			}
		})
	}
	group.Wait()
	for _, err := range failed {
		if err != nil {
			return fmt.Errorf("write the backlog: %w", err)
		}
	}
	return nil
}

// measureUnpacking lets a consumer meet records of 200 MB of zeros, packed with each codec, among small ones. The broker refuses
// one that is packed with zstd; a test of package kafkago unpacks that.
func (e *env) measureUnpacking(ctx context.Context, r *report) error {
	const unpacked, small = 200_000_000, 50
	e.count++
	topic := fmt.Sprintf("holdfast-bench-unpack-%d", e.count)
	if err := e.kafka.CreateTopic(ctx, topic, 1, map[string]string{"max.message.bytes": "20000000"}); err != nil {
		return err
	}
	defer func() { _ = e.kafka.DeleteTopic(context.WithoutCancel(ctx), topic) }()
	record := func(id string, value []byte) kafka.Record {
		headers := wire.Headers([]kafka.Header(nil), holdfast.Event{
			ID:     id,
			Source: eventSource,
			Type:   eventType,
			Time:   time.Now(),
		})
		return kafka.Record{
			Key:     kafka.NewBytes([]byte(id)),
			Value:   kafka.NewBytes(value),
			Headers: headers,
		}
	}
	codecs := []compress.Compression{kafka.Gzip, kafka.Snappy, kafka.Lz4}
	zeros := make([]byte, unpacked)
	for _, codec := range codecs {
		r.progress("memory: a record of 200 MB, packed with %s", codec)
		produce := func() error {
			records := []kafka.Record{record(codec.String(), zeros)}
			for i := range small {
				records = append(records, record(fmt.Sprint(codec, i), []byte("{}")))
			}
			res, err := e.kafka.Client.Produce(ctx, &kafka.ProduceRequest{
				Topic:        topic,
				RequiredAcks: kafka.RequireAll,
				Compression:  codec,
				Records:      kafka.NewRecordReader(records...),
			})
			if err == nil {
				err = res.Error
			}
			return err
		}
		for began := time.Now(); ; {
			err := produce()
			if err == nil {
				break
			}
			if time.Since(began) > stalled || pause(ctx, time.Second) != nil { // A broker refuses a new topic for a moment.
				return fmt.Errorf("produce: %w", err)
			}
		}
	}
	return e.consumerMemory(ctx, r, unpackedMemory, topic, 1, len(codecs)*(1+small), atMost(memoryMost))
}
