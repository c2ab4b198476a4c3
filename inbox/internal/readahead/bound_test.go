package readahead

import (
	"math"
	"reflect"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/source"
)

var partZero, partOne = source.TopicPartition{Topic: "orders", Partition: 0}, source.TopicPartition{Topic: "orders", Partition: 1}

func TestBound_ABoundIsFittedToLogsThatChange(t *testing.T) {
	t.Parallel()
	b := &Bound{All: map[source.TopicPartition]Stretch{partZero: {0, 10}, partOne: {0, 10}}}
	gone := b.Refit(map[source.TopicPartition]source.Extent{partZero: {First: 2, End: 4}, {Topic: "orders", Partition: 2}: {End: 9}})
	if want := (map[source.TopicPartition]Stretch{partZero: {0, 10}}); !reflect.DeepEqual(gone, want) {
		t.Errorf("cut short: got %v, want %v", gone, want)
	}
	if want := (map[source.TopicPartition]Stretch{partZero: {2, 4}, partOne: {0, 10}}); !reflect.DeepEqual(b.Stretches(), want) {
		t.Errorf("got %v, want %v", b.Stretches(), want)
	}
	if gone := b.Refit(map[source.TopicPartition]source.Extent{partZero: {First: 0, End: 100}}); len(gone) > 0 || b.Until(partZero) != 4 {
		t.Errorf("a log that grows moved the bound: %v, %d", gone, b.Until(partZero))
	}
	if n := b.Until(source.TopicPartition{Topic: "orders", Partition: 2}); n != 0 {
		t.Errorf("a new partition is read up to %d", n)
	}
	if n := (*Bound)(nil).Until(partZero); n != math.MaxInt64 {
		t.Errorf("without a bound: %d", n)
	}
}

func TestBound_APageIsCutAtTheBound(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ until, records, next int64 }{{0, 0, 0}, {5, 0, 5}, {6, 1, 6}, {8, 2, 8}, {9, 3, 9}, {100, 3, 20}} {
		pg := Cut(source.Page{Records: []source.Record{{Offset: 5}, {Offset: 7}, {Offset: 8}}, Next: 20}, row.until)
		if int64(len(pg.Records)) != row.records || pg.Next != row.next {
			t.Errorf("until %d: %d records, next %d; want %d, %d", row.until, len(pg.Records), pg.Next, row.records, row.next)
		}
	}
}
