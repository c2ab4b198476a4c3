package franz

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// A relay's answers are lost again and again, and while its process lives no event is in the log twice.
func TestRelay_ARelayWhoseAnswersAreLostRepeatsNothing(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		const keys, each = 20, 60
		topic := cluster.Topic(t, 4)
		db := migrated.New(t)
		c := &cutter{}
		k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.Dialer(c.dial)), PublisherConfig{})
		var published atomic.Int64
		r, err := relay.New(db.Pool, k, relay.Config{BatchSize: 100, Lease: wait.Limit(), Logger: slog.New(slog.DiscardHandler), Observer: relay.Observer{
			OnPublished: func(_ int, events []holdfast.Event) { published.Add(int64(len(events))) },
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		for n := range each {
			tx, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var events []holdfast.Event
			for key := range keys {
				events = append(events, holdfast.Event{Topic: topic, Source: "shop", Type: "counted", ID: fmt.Sprintf("%02d/%03d", key, n), Key: fmt.Sprint("k", key), Payload: []byte(fmt.Sprint(n))})
			}
			if err := outbox.Write(t.Context(), tx, events...); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n%5 == 4 {
				c.armed.Store(1)
			}
			time.Sleep(20 * time.Millisecond) // sleep: the relay is to have something to send after each loss
		}
		wait.Until(t, "everything is published", func() bool { return published.Load() >= keys*each })
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		seen, last := map[string]bool{}, map[string]string{}
		for _, rec := range cluster.ReadAll(t, topic) {
			e := parsed(t, topic, rec)
			if seen[e.ID] {
				t.Errorf("%s is in the log twice", e.ID)
			}
			if e.ID <= last[e.Key] {
				t.Errorf("key %s: %s came after %s", e.Key, e.ID, last[e.Key])
			}
			seen[e.ID], last[e.Key] = true, e.ID
		}
		if len(seen) != keys*each {
			t.Errorf("the log has %d events, want %d", len(seen), keys*each)
		}
		if n := c.cuts.Load(); n == 0 {
			t.Error("no answer was lost")
		}
	})
}
