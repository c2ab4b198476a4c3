package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/metrics"
)

// asked is a Meter that keeps what Observe reads.
type asked struct {
	*ledger
	read func(context.Context) ([]metrics.Reading, error)
}

func (a *asked) Observe(_ []metrics.Instrument, read func(context.Context) ([]metrics.Reading, error)) (func() error, error) {
	a.read = read
	return func() error { return nil }, nil
}

// values are what is read, by instrument and labels.
func (a *asked) readings(t *testing.T) map[string]float64 {
	t.Helper()
	all, err := a.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, r := range all {
		got[fmt.Sprintf("%d%v", r.Index, r.Labels)] = r.Value
	}
	return got
}

func TestLag_TheLagIsTheDistanceToTheEndsOfPartitions(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values
		('billing', 'orders', 0, 10), ('billing', 'orders', 1, 20), ('billing', 'bills', 0, 5), ('billing', 'gone', 0, 5), ('mail', 'orders', 0, 100), ('mail', 'orders', 1, 25)`)
	d, err := metrics.NewDatabase(db.Pool, metrics.DatabaseConfig{Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var of []source.TopicPartition
	calls, failure := 0, error(nil)
	a := &asked{ledger: newLedger()}
	if _, err := metrics.ObserveLag(a, d, func(_ context.Context, partitions []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		of = partitions
		calls++
		return map[source.TopicPartition]int64{{Topic: "orders", Partition: 0}: 30, {Topic: "orders", Partition: 1}: 27, {Topic: "bills", Partition: 0}: 5}, failure
	}); err != nil {
		t.Fatal(err)
	}
	// mail's position in partition 0 is past the end, as after a topic was made again, and nobody knows the topic gone.
	want := map[string]float64{"0[billing orders]": 27, "0[billing bills]": 0, "0[mail orders]": 2, "1[]": 0}
	begun := time.Now()
	for range 2 { // The second does not ask, unless a second has passed.
		got := a.readings(t)
		if most := 1 + int(time.Since(begun)/time.Second); !maps.Equal(got, want) || calls == 0 || calls > most {
			t.Errorf("got %v by %d calls, want %v by %d at most", got, calls, want, most)
		}
	}
	if len(of) != 4 || !slices.Contains(of, source.TopicPartition{Topic: "gone", Partition: 0}) {
		t.Errorf("it asked for %v, want each partition once", of)
	}
	failure = errors.New("planned")
	time.Sleep(time.Second) // sleep: the next sample is due
	if got := a.readings(t); !maps.Equal(got, map[string]float64{"1[]": 1}) {
		t.Errorf("the broker does not answer: got %v", got)
	}
}

func TestLag_TheLagIsNotObservedWithoutItsSources(t *testing.T) {
	t.Parallel()
	ends := func(context.Context, []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		return nil, nil
	}
	for name, try := range map[string]struct {
		d    *metrics.Database
		ends metrics.Ends
	}{"neither": {}, "no database": {nil, ends}, "no ends": {&metrics.Database{}, nil}} {
		if _, err := metrics.ObserveLag(newLedger(), try.d, try.ends); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
}
