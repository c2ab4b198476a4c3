//go:build unix

package franz

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// costLane is a lane's client, for what a transaction costs by where its mark is.
type costLane struct {
	client       *kgo.Client
	topic, marks string
	id, group    string
}

// transact is one transaction of a hundred events in three partitions, with more records beside them, and with what comes after them. What
// comes beside them from another connection would be refused while the coordinator takes the first partition in.
func (l costLane) transact(ctx context.Context, beside []*kgo.Record, after func(ctx context.Context) error) error {
	if err := l.client.BeginTransaction(); err != nil {
		return err
	}
	events := slices.Clone(beside)
	for i := range 100 {
		events = append(events, &kgo.Record{Topic: l.topic, Partition: int32(i % 3), Value: make([]byte, 300)})
	}
	err := l.client.ProduceSync(ctx, events...).FirstErr()
	if err == nil && after != nil {
		err = after(ctx)
	}
	if err != nil {
		return errors.Join(err, l.client.EndTransaction(ctx, kgo.TryAbort))
	}
	return l.client.EndTransaction(ctx, kgo.TryCommit)
}

// offset keeps it in the metadata of an offset of a group, committed in the transaction. Kafka 4 adds the group to it by that.
func (l costLane) offset(ctx context.Context, metadata string) error {
	id, epoch, err := l.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group, commit.Generation = l.id, id, epoch, l.group, -1
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Offset, p.Metadata = 1, &metadata
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic, topic.Partitions = l.marks, append(topic.Partitions, p)
	commit.Topics = append(commit.Topics, topic)
	for {
		committed, err := commit.RequestWith(ctx, l.client)
		if err != nil {
			return err
		}
		err = kerr.ErrorForCode(committed.Topics[0].Partitions[0].ErrorCode)
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		time.Sleep(5 * time.Millisecond) // sleep: the last transaction is being ended; franz-go waits so for records, too
	}
}

// What a transaction costs whose mark is a record, and whose mark is the metadata of a group's offset, in turns of 20 transactions. A group's offset has no
// room for a mark of more than 256 events: see decisions.md#kafka.
func BenchmarkMarks_ARecordAgainstAnOffset(b *testing.B) {
	cluster := kafkatest.Container(b)
	l := costLane{topic: cluster.Topic(b, 3), marks: marksTopic(b, cluster), id: newID()}
	l.group = l.id
	l.client = clientOf(b, cluster.Brokers, kgo.TransactionalID(l.id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	ctx, cancel := context.WithTimeout(b.Context(), longEnough)
	defer cancel()
	full := func(n int) func(context.Context) error {
		return func(ctx context.Context) error { return l.offset(ctx, strings.Repeat("x", n)) }
	}
	if err := wait.Try(ctx, func(ctx context.Context) error { return l.transact(ctx, nil, full(1600)) }); err != nil { // The coordinators are being made.
		b.Fatal(err)
	}
	if err := l.transact(ctx, nil, full(4097)); !errors.Is(err, kerr.OffsetMetadataTooLarge) {
		b.Errorf("an offset with 4,097 bytes of metadata: %v", err)
	}
	record := func() []*kgo.Record {
		m := mark{epoch: 1, number: 1, events: hashes(0, 100)}
		return []*kgo.Record{{Topic: l.marks, Key: []byte(l.id), Value: m.records()[0]}}
	}
	ways := []struct {
		name string
		do   func() error
		took time.Duration
	}{
		{"none", func() error { return l.transact(ctx, nil, nil) }, 0},
		{"record", func() error { return l.transact(ctx, record(), nil) }, 0},
		{"offset", func() error { return l.transact(ctx, nil, full(1600)) }, 0},
	}
	const block = 20 // one after the other: the end of a transaction delays the next one, which is of the same way then
	rounds := 0
	for b.Loop() {
		for i := range ways {
			w := &ways[(rounds+i)%len(ways)]
			began := time.Now()
			for range block {
				if err := w.do(); err != nil {
					b.Fatalf("%s: %v", w.name, err)
				}
			}
			w.took += time.Since(began)
		}
		rounds++
	}
	for _, w := range ways {
		b.ReportMetric(float64(w.took.Microseconds())/float64(rounds*block)/1000, w.name+"-ms")
	}
}
