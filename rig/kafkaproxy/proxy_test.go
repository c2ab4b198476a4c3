package kafkaproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// bundle is a publisher whose way to the broker is a proxy.
type bundle struct {
	proxy     *Proxy
	broker    *kafkaserver.Server
	publisher *kafkago.Publisher
}

func setup(t *testing.T) bundle {
	t.Helper()
	broker, err := kafkaserver.InProcess()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Stop)
	if err := broker.CreateTopic(t.Context(), "orders", 2, nil); err != nil {
		t.Fatal(err)
	}
	proxy, err := Start(broker.Brokers[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: broker.Brokers, Dial: Dial(proxy.Address())},
		kafkago.PublisherConfig{ProduceTimeout: 5 * time.Minute, PartitionFunc: func(e holdfast.Event, _ int) int {
			if e.Key == "slow" {
				return 1
			}
			return 0
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(publisher.Close)
	return bundle{proxy, broker, publisher}
}

// publish sends one event of a key, and says how long the answer took.
func (b bundle) publish(t *testing.T, key string) (time.Duration, error) {
	t.Helper()
	return b.publishWithin(t, wait.Limit(), key)
}

// publishWithin is publish by a caller who waits for so long.
func (b bundle) publishWithin(t *testing.T, most time.Duration, key string) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	began := time.Now()
	errs := b.publisher.Publish(ctx, []holdfast.Event{{ID: fmt.Sprint(key, began.UnixNano()), Topic: "orders", Key: key, Type: "t", Source: "s", Time: began}})
	return time.Since(began), errs[0]
}

func (b bundle) count(t *testing.T, partition int) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
	defer cancel()
	records, err := b.broker.ReadFrom(ctx, "orders", partition, 0)
	if err != nil {
		t.Fatal(err)
	}
	return len(records)
}

func TestProxy_EachFaultHitsItsPartitionAlone(t *testing.T) {
	t.Parallel()
	const delay = 300 * time.Millisecond
	for name, c := range map[string]struct {
		fault   Fault
		answer  error
		written int // records of the slow partition, while the fault lasts
		least   time.Duration
		most    time.Duration // that the caller waits
	}{
		"late":       {Late("orders", 1, delay), nil, 1, delay, wait.Limit()},
		"leaderless": {Leaderless("orders", 1), kafka.LeaderNotAvailable, 0, 0, wait.Limit()},
		"refuse":     {Refuse("orders", 1), kafka.NotEnoughReplicas, 0, 0, wait.Limit()},
		"hang":       {Hang("orders", 1), context.DeadlineExceeded, 0, time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			for _, key := range []string{"quick", "slow"} { // connections and metadata are there
				if _, err := b.publish(t, key); err != nil {
					t.Fatal(err)
				}
			}
			b.proxy.Set(c.fault)
			took, err := b.publishWithin(t, c.most, "slow")
			for tries := 1; err != nil && b.proxy.Hits() == 0 && tries < 20; tries++ { // On a busy machine it may not come as far as the proxy in time.
				took, err = b.publishWithin(t, c.most, "slow")
			}
			if errors.Is(err, os.ErrDeadlineExceeded) { // the connection's deadline comes at the same time
				err = context.DeadlineExceeded
			}
			if took < c.least || (err == nil) != (c.answer == nil) || c.answer != nil && !errors.Is(err, c.answer) {
				t.Errorf("the slow partition answered %v after %v", err, took)
			}
			if _, err := b.publish(t, "quick"); err != nil {
				t.Errorf("the other partition answered %v", err)
			}
			if got := b.proxy.Hits(); got != 1 {
				t.Errorf("the fault met %d requests", got)
			}
			if got := b.count(t, 1) - 1; got != c.written {
				t.Errorf("%d records were written", got)
			}
			b.proxy.Set(Pass())
			if _, err := b.publish(t, "slow"); err != nil {
				t.Errorf("after the fault it answered %v", err)
			}
			if got := b.count(t, 1) - 2; got != c.written {
				t.Errorf("%d records arrived late", got)
			}
		})
	}
}

func TestProxy_WhatIsNoProduceRequestPasses(t *testing.T) {
	t.Parallel()
	for name, frame := range map[string][]byte{
		"empty":        {0, 0, 0, 0},
		"metadata":     {0, 0, 0, 4, 0, 3, 0, 8},
		"short":        {0, 0, 0, 4, 0, 0, 0, 7},
		"too new":      {0, 0, 0, 4, 0, 0, 0, 9},
		"negative":     {0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 1, 0xff, 0xff, 0, 1},
		"a huge text":  {0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 1, 0x7f, 0xff, 0, 1},
		"no partition": {0, 0, 0, 20, 0, 0, 0, 2, 0, 0, 0, 1, 0xff, 0xff, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0},
	} {
		if r, ok := readProduce(frame); ok {
			t.Errorf("%s: it is taken for a request to %v", name, r.all)
		}
	}
}

func TestProxy_ARequestOfManyPartitionsIsRead(t *testing.T) {
	t.Parallel()
	set := func() protocol.RecordSet {
		return protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(protocol.Record{Value: protocol.NewBytes([]byte("v"))})}
	}
	var frame bytes.Buffer
	err := protocol.WriteRequest(&frame, 8, 1, "", &produce.Request{Acks: -1, Topics: []produce.RequestTopic{
		{Topic: "orders", Partitions: []produce.RequestPartition{{Partition: 3, RecordSet: set()}, {Partition: 5, RecordSet: set()}}},
		{Topic: "bills", Partitions: []produce.RequestPartition{{Partition: 0, RecordSet: set()}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r, ok := readProduce(frame.Bytes())
	if want := []place{{"orders", 3}, {"orders", 5}, {"bills", 0}}; !ok || !slices.Equal(r.all, want) {
		t.Errorf("it is read as %v of %v, want %v", ok, r.all, want)
	}
}
