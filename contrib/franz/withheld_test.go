package franz

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
)

// Behind an open transaction of another producer a partition gives nothing out, and says how much there is.
func TestWithheld_APageSaysWhatAnOpenTransactionWithholds(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1)
		tp := source.TopicPartition{Topic: topic}
		publishAll(t, publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{}), numbered(topic, 0, 1))
		writer := clientOf(t, cluster.Brokers, kgo.TransactionalID("open-"+topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err := writer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := writer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		publishAll(t, publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{}), numbered(topic, 2, 3))

		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
		defer cancel()
		generations := map[string]source.Generation{}
		for name, committed := range map[string]bool{"franz": true, "kafkago": true, "franz, uncommitted": false, "kafkago, uncommitted": false} {
			var group inbox.Source = groupOn(t, cluster, GroupConfig{GroupID: name + topic, Topics: []string{topic}, ReadUncommitted: !committed})
			if name[0] == 'k' {
				var err error
				if group, err = kafkago.NewGroup(kafkago.Connection{Brokers: cluster.Brokers}, kafkago.GroupConfig{GroupID: name + topic, Topics: []string{topic}, ReadUncommitted: !committed}); err != nil {
					t.Fatal(err)
				}
			}
			session, err := group.Open(ctx, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			var generation source.Generation
			if err := wait.Try(ctx, func(ctx context.Context) (err error) { // The group's coordinator is being made.
				generation, err = session.Next(ctx)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer generation.Leave()
			got := 0
			var page source.Page
			for page.Next < 2 || !committed && page.Next < 5 {
				if page, err = generation.Fetch(ctx, tp, page.Next, 1<<20); err != nil {
					t.Fatal(err)
				}
				if got += len(page.Records); len(page.Records) > 0 && page.Withheld != 0 {
					t.Errorf("%s: a page with records withholds %d", name, page.Withheld)
				}
			}
			if !committed {
				if page, err = generation.Fetch(ctx, tp, 5, 1<<20); err != nil || got != 5 || page.Withheld != 0 {
					t.Errorf("%s: %d records, and at the end %+v, %v", name, got, page, err)
				}
				continue
			}
			if page, err = generation.Fetch(ctx, tp, 2, 1<<20); err != nil || got != 2 || len(page.Records) != 0 || page.Next != 2 || page.Withheld != 3 {
				t.Errorf("%s: %d records, and then %+v, %v, want one that withholds 3", name, got, page, err)
			}
			generations[name] = generation
		}
		if err := writer.EndTransaction(ctx, kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
		for name, generation := range generations {
			page := source.Page{Next: 2}
			for got := 0; page.Next < 6; { // two records, and the marker
				var err error
				if page, err = generation.Fetch(ctx, tp, page.Next, 1<<20); err != nil {
					t.Fatal(err)
				}
				if got += len(page.Records); page.Next >= 6 && got != 2 {
					t.Errorf("%s: %d records, want 2", name, got)
				}
			}
			if page, err := generation.Fetch(ctx, tp, page.Next, 1<<20); err != nil || page.Withheld != 0 {
				t.Errorf("%s: %+v, %v, want a page that withholds nothing", name, page, err)
			}
		}
	})
}
