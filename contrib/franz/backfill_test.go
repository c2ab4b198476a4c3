package franz

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
)

// transact writes records to partition 0 of a topic in a transaction, which leaves a marker after them.
func transact(t *testing.T, client *kgo.Client, topic string, from, to int, commit kgo.TransactionEndTry) {
	t.Helper()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for i := from; i < to; i++ {
		r := &kgo.Record{Topic: topic, Partition: 0, Value: []byte("{}"), Headers: []kgo.RecordHeader{
			{Key: "ce_id", Value: []byte(fmt.Sprint(i))}, {Key: "ce_type", Value: []byte("order.placed")}}}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.EndTransaction(t.Context(), commit); err != nil {
		t.Fatal(err)
	}
}

// The last offsets of the log are a marker, and a transaction that was aborted: no record has the last offset. Partition 1 is empty.
func TestBackfill_ABackfillEndsAtTransactionMarkers(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 2)
		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Brokers...), kgo.TransactionalID("tx-"+topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		transact(t, client, topic, 0, 5, kgo.TryCommit)
		transact(t, client, topic, 5, 8, kgo.TryAbort)
		kafkaGo, err := kafkago.NewGroup(kafkago.Connection{Brokers: cluster.Brokers}, kafkago.GroupConfig{GroupID: "kafkago-" + topic, Topics: []string{topic}})
		if err != nil {
			t.Fatal(err)
		}
		for name, source := range map[string]inbox.Source{
			"franz": groupOn(t, cluster, GroupConfig{GroupID: "franz-" + topic, Topics: []string{topic}}), "kafkago": kafkaGo,
		} {
			t.Run(name, func(t *testing.T) {
				db := migrated.New(t)
				pgtest.Exec(t, db, "create table effect (id text primary key)")
				in, err := inbox.New(db.Pool, inbox.Config{Consumer: "billing", Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
					_, err := tx.Exec(ctx, "insert into effect values ($1)", e.ID)
					return err
				})
				ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
				defer cancel()
				done, err := in.ConsumeUntil(ctx, source, inbox.Until{ProgressEvery: time.Second})
				if err != nil || done.Left != 0 || len(done.Partitions) != 2 {
					t.Fatalf("got %+v, %v", done, err)
				}
				if at := done.Partitions[0]; at.Until != 10 || at.Position != 10 {
					t.Errorf("five records, three aborted ones and two markers: %+v", at)
				}
				if n := pgtest.Count(t, db, "select count(*) from effect where id::int < 5"); n != 5 {
					t.Errorf("%d events were handled", n)
				}
				if n := pgtest.Count(t, db, "select count(*) from effect"); n != 5 {
					t.Errorf("%d events were handled, with the aborted ones", n)
				}
			})
		}
	})
}
