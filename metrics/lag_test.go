package metrics_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/metrics"
)

func TestLag_TheLagIsTheDistanceToTheEndsOfPartitions(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values
		('billing', 'orders', 0, 10), ('billing', 'orders', 1, 20), ('billing', 'bills', 0, 5), ('billing', 'gone', 0, 5), ('mail', 'orders', 0, 100), ('mail', 'orders', 1, 25)`)
	var of []source.TopicPartition
	calls, failure := 0, error(nil)
	ends := func(_ context.Context, partitions []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		of = partitions
		calls++
		return map[source.TopicPartition]int64{{Topic: "orders", Partition: 0}: 30, {Topic: "orders", Partition: 1}: 27, {Topic: "bills", Partition: 0}: 5}, failure
	}
	g := newGauges()
	if _, err := metrics.ObserveDatabase(g, db.Pool, metrics.DatabaseConfig{Interval: time.Second, EndsFunc: ends}); err != nil {
		t.Fatal(err)
	}
	// mail's position in partition 0 is past the end, as after a topic was recreated, and nobody knows the topic gone.
	want := map[string]float64{"0[billing orders]": 27, "0[billing bills]": 0, "0[mail orders]": 2, "1[]": 0}
	begun := time.Now()
	for range 2 { // The second does not ask, unless a second has passed.
		got := g.readings(t, "holdfast.consumer.lag")
		if most := 1 + int(time.Since(begun)/time.Second); !maps.Equal(got, want) || calls == 0 || calls > most {
			t.Errorf("got %v by %d calls, want %v by %d at most", got, calls, want, most)
		}
	}
	if len(of) != 4 || !slices.Contains(of, source.TopicPartition{Topic: "gone", Partition: 0}) {
		t.Errorf("it asked for %v, want each partition once", of)
	}
	failure = errors.New("planned")
	time.Sleep(time.Second) // sleep: the next sample is due
	if got := g.readings(t, "holdfast.consumer.lag"); !maps.Equal(got, map[string]float64{"1[]": 1}) {
		t.Errorf("the broker does not answer: got %v", got)
	}
}
