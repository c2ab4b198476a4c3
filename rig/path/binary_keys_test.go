package path

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
)

// A service in Java writes keys of LongSerializer, of 16 bytes of a UUID, and of Avro. A handler writes an event under the key that
// it got, and dead letters are published: each record has the bytes of the first one, in the same partition.
func TestBinaryKeys_BinaryKeysAreTheSameBytesOnEveryTopic(t *testing.T) {
	t.Parallel()
	skip.InShort(t, "it takes some seconds on a real Kafka")
	const partitions = 6
	p := endtoend.Setup(t, migrated.New(t), kafkatest.New(t), partitions)
	theirs, ours, dead := p.Topic(), p.Cluster.Topic(t, partitions), p.Cluster.Topic(t, partitions)
	keys := []string{"\x00\x00\x00\x00\x00\x00\x00\x2a", "\x01\x8f\x3c\x2e\x9a\x10\x7d\x4b\x8f\xff\x00\xde\xad\xbe\xef\x99", "\x00\x00\x00\x00\x07\x0eorder-1",
		"data:;base64,AAAAAAAAACo=", "text"}
	for i, key := range keys {
		for n := range 3 {
			header := func(name, value string) kafka.Header { return kafka.Header{Key: name, Value: []byte(value)} }
			res, err := p.Cluster.Client.Produce(t.Context(), &kafka.ProduceRequest{Topic: theirs, Partition: murmur2.Partition(key, partitions), RequiredAcks: kafka.RequireAll,
				Records: kafka.NewRecordReader(kafka.Record{Key: kafka.NewBytes([]byte(key)), Value: kafka.NewBytes([]byte("p")),
					Headers: []kafka.Header{header("ce_id", fmt.Sprint(i, "/", n)), header("ce_type", "changed")}})})
			if err == nil {
				err = res.Error
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	var mu sync.Mutex
	fixed, handled := false, map[string][]string{} // ids by the bytes of the key
	p.Consume("billing", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if e.ID == "0/1" && !fixed {
			return retry.Permanent(errors.New("it cannot be read"))
		}
		key := string(inbox.KeyBytes(e.Key))
		handled[key] = append(handled[key], e.ID)
		return outbox.Write(ctx, tx, holdfast.Event{ID: e.ID, Type: "seen", Topic: ours, Key: e.Key, Payload: []byte("p")})
	}, func(c *inbox.Config) { c.HoldKey, c.DeadLetterTopic = true, dead })
	p.Relay(nil)

	check := func(topic string, want int) {
		t.Helper()
		var records []kafkatest.Record
		wait.Until(t, fmt.Sprint(want, " records"), func() bool {
			records = p.Cluster.ReadAll(t, topic)
			return len(records) >= want
		})
		for _, r := range records {
			if !slices.Contains(keys, string(r.Key)) || r.Partition != murmur2.Partition(string(r.Key), partitions) {
				t.Errorf("a record with the key %q is in partition %d", r.Key, r.Partition)
			}
		}
	}
	check(ours, 3*len(keys)-2)
	check(dead, 1)
	mu.Lock()
	fixed = true
	mu.Unlock()
	d, err := dlq.New(p.Db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Replay(t.Context(), dlq.Filter{Key: "data:;base64,AAAAAAAAACo="}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	check(ours, 3*len(keys))
	mu.Lock()
	defer mu.Unlock()
	for i, key := range keys {
		if want := []string{fmt.Sprint(i, "/", 0), fmt.Sprint(i, "/", 1), fmt.Sprint(i, "/", 2)}; !slices.Equal(handled[key], want) {
			t.Errorf("of the key %q %v are handled", key, handled[key])
		}
	}
}
