package kafkago

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// benchPartitions and benchPage are the shape of the relay's own load: pages of one lane over a topic's partitions.
const (
	benchPartitions = 8
	benchPage       = 2000
)

// benchEvents makes events with payloads of about 300 bytes of JSON, as services write it.
func benchEvents(n int) []holdfast.Event {
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"placed", "paid", "packed", "shipped", "returned"}
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = holdfast.Event{
			ID:     fmt.Sprintf("0190%04x-%04x-7%03x-8%03x-%012x", r.Uint32N(1<<16), r.Uint32N(1<<16), r.Uint32N(1<<12), r.Uint32N(1<<12), r.Uint64N(1<<48)),
			Source: "shop/orders", Type: "order." + names[r.IntN(len(names))], Topic: "t", Key: fmt.Sprintf("order-%d", r.IntN(100000)),
			Time:    time.Unix(1_800_000_000, 0).Add(time.Duration(i) * time.Millisecond),
			Headers: map[string]string{"traceparent": fmt.Sprintf("00-%016x%016x-%016x-01", r.Uint64(), r.Uint64(), r.Uint64())},
			Payload: fmt.Appendf(nil, `{"order_id":"order-%d","customer":{"id":%d,"name":"customer %d","country":"DE"},"currency":"EUR","total":%d.%02d,"lines":[{"sku":"%08x","quantity":%d,"price":%d.%02d},{"sku":"%08x","quantity":%d,"price":%d.%02d}],"placed_at":"2026-11-21T12:%02d:%02d.%06dZ","note":"leave it at the door"}`,
				r.IntN(100000), r.IntN(100000), r.IntN(100000), r.IntN(500), r.IntN(100), r.Uint32(), r.IntN(5), r.IntN(100), r.IntN(100), r.Uint32(), r.IntN(5), r.IntN(100), r.IntN(100), r.IntN(60), r.IntN(60), r.IntN(1000000)),
		}
	}
	return events
}

// encoder is a transport that does what kafka-go does with a request, encoding and compression, and throws the bytes
// away instead of sending them.
type encoder struct{ bytes atomic.Int64 }

func (e *encoder) RoundTrip(_ context.Context, _ net.Addr, r kafka.Request) (kafka.Response, error) {
	if m, ok := r.(*metadata.Request); ok {
		return (&script{topics: map[string]int{"t": benchPartitions}}).describe(m)
	}
	p := r.(*produce.Request)
	p.Prepare(8)
	n, err := p.Topics[0].Partitions[0].RecordSet.WriteTo(io.Discard)
	e.bytes.Add(n)
	return &produce.Response{Topics: []produce.ResponseTopic{{Topic: "t", Partitions: make([]produce.ResponsePartition, 1)}}}, err
}

// ready makes the records of events, by partition, for kafka-go as it is.
func ready(events []holdfast.Event) [][]kafka.Record {
	partitions := make([][]kafka.Record, benchPartitions)
	for _, e := range events {
		p := Murmur2(e, benchPartitions)
		partitions[p] = append(partitions[p], kafka.Record{Headers: wire.Headers[kafka.Header](nil, e)})
	}
	return partitions
}

// bare sends a page with Client.Produce and nothing around it: the partitions at the same time, records and headers
// made before. Keys and values can be read but once, so they are made anew, as any caller must.
func bare(b *testing.B, c *kafka.Client, events []holdfast.Event, partitions [][]kafka.Record) {
	at := make([]int, benchPartitions)
	for i := range events {
		p := Murmur2(events[i], benchPartitions)
		r := &partitions[p][at[p]]
		r.Key, r.Value = kafka.NewBytes([]byte(events[i].Key)), kafka.NewBytes(events[i].Payload)
		at[p]++
	}
	var group sync.WaitGroup
	for p, records := range partitions {
		group.Go(func() {
			res, err := c.Produce(context.Background(), &kafka.ProduceRequest{Topic: "t", Partition: p, RequiredAcks: kafka.RequireAll,
				Compression: defaultCompression, Records: kafka.NewRecordReader(records...)})
			if err != nil || res.Error != nil {
				b.Error(err, res)
			}
		})
	}
	group.Wait()
}

// lanes runs a page on each of eight goroutines until the benchmark is over, and reports events a second.
func lanes(b *testing.B, page func(lane int)) {
	b.ReportAllocs()
	var pages atomic.Int64
	var group sync.WaitGroup
	b.ResetTimer()
	for lane := range 8 {
		group.Go(func() {
			for pages.Add(1) <= int64(b.N) {
				page(lane)
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)*benchPage/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchPage, "ns/event")
}

// BenchmarkPublish compares eight lanes that publish pages of 2,000 events over eight partitions with bare
// Client.Produce of ready records, both against nothing but kafka-go's encoder and against an imitation of Kafka.
func BenchmarkPublish(b *testing.B) {
	cluster := kafkatest.Imitate(b, kafkatest.Imitation{Topics: map[string]int{"t": benchPartitions}}, "log.retention.bytes", "1")
	network := &kafka.Transport{Dial: Dial}
	defer network.CloseIdleConnections()
	var events [8][]holdfast.Event
	var records [8][][]kafka.Record
	for lane := range events {
		events[lane] = benchEvents(benchPage)
		records[lane] = ready(events[lane])
	}
	for _, to := range []struct {
		name      string
		transport kafka.RoundTripper
	}{{"encoder", new(encoder)}, {"in-process Kafka", network}} {
		client := &kafka.Client{Addr: kafka.TCP(cluster.Brokers...), Transport: to.transport}
		connection := Connection{Brokers: cluster.Brokers, Wrap: via(to.transport)}
		k, err := NewPublisher(connection, PublisherConfig{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(to.name+"/Client.Produce", func(b *testing.B) {
			lanes(b, func(lane int) { bare(b, client, events[lane], records[lane]) })
		})
		b.Run(to.name+"/Publish", func(b *testing.B) {
			lanes(b, func(lane int) {
				for _, err := range k.Publish(context.Background(), events[lane]) {
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkCompression is what the default of PublisherConfig.Compression goes by: the time and the size of batches of 250
// events, a page's share of one partition.
func BenchmarkCompression(b *testing.B) {
	events := benchEvents(250)
	index := make([]int32, len(events))
	for i := range index {
		index[i] = int32(i)
	}
	for _, compression := range []kafka.Compression{0, kafka.Snappy, kafka.Lz4, kafka.Gzip, kafka.Zstd} {
		b.Run(compression.String(), func(b *testing.B) {
			t := new(encoder)
			client := &kafka.Client{Addr: kafka.TCP("x:1"), Transport: t}
			r := new(recordReader)
			r.reset(events, index)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Produce(context.Background(), &kafka.ProduceRequest{Topic: "t", RequiredAcks: kafka.RequireAll, Compression: compression, Records: r}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(events)), "ns/event")
			b.ReportMetric(float64(t.bytes.Load())/float64(b.N)/float64(len(events)), "bytes/event")
		})
	}
}
