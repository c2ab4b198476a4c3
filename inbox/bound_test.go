package inbox

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

var partZero, partOne = source.TopicPartition{Topic: "orders", Partition: 0}, source.TopicPartition{Topic: "orders", Partition: 1}

func TestBound_UntilSaysWhatIsToBeRead(t *testing.T) {
	t.Parallel()
	there := map[source.TopicPartition]source.Extent{partZero: {First: 3, End: 10, At: 7}, partOne: {First: 0, End: 0, At: 0}}
	for name, row := range map[string]struct {
		u    Until
		want map[source.TopicPartition]stretch
	}{
		"a time, or the end":           {Until{At: time.Now()}, map[source.TopicPartition]stretch{partZero: {3, 7}, partOne: {0, 0}}},
		"an offset of one partition":   {Until{Offsets: map[source.TopicPartition]int64{partZero: 5}}, map[source.TopicPartition]stretch{partZero: {3, 5}}},
		"an offset after the end":      {Until{Offsets: map[source.TopicPartition]int64{partZero: 50}}, map[source.TopicPartition]stretch{partZero: {3, 10}}},
		"no partition at all is asked": {Until{Offsets: map[source.TopicPartition]int64{}}, map[source.TopicPartition]stretch{}},
	} {
		if got, err := row.u.stretches(there); err != nil || !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, row.want)
		}
	}
	missing := Until{Offsets: map[source.TopicPartition]int64{{Topic: "orders", Partition: 2}: 1}}
	if _, err := missing.stretches(there); !errors.Is(err, ErrConfiguration) || !strings.Contains(err.Error(), "orders/2: there is no such partition") {
		t.Errorf("got %v", err)
	}
	bad := Until{At: time.Now(), Offsets: map[source.TopicPartition]int64{partZero: -1}, ProgressEvery: time.Millisecond}
	for _, want := range []string{"at and offsets are both set", "offset of orders/0 is -1", "progress every is 1ms"} {
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestBound_ThePositionDecidesWhetherABoundIsReached(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		s    stretch
		at   standing
		want bool
	}{
		"nobody has claimed it":                  {stretch{0, 10}, standing{}, false},
		"it is empty":                            {stretch{0, 0}, standing{}, true},
		"all below the bound was deleted before": {stretch{12, 10}, standing{}, true},
		"the position is below":                  {stretch{0, 10}, standing{claimed: true, position: 9}, false},
		"the position is there":                  {stretch{0, 10}, standing{claimed: true, position: 10}, true},
		"the position is past it":                {stretch{0, 10}, standing{claimed: true, position: 11}, true},
		"unread records were deleted":            {stretch{12, 10}, standing{claimed: true, position: 5}, false},
		"it is held":                             {stretch{0, 10}, standing{claimed: true, position: 50, held: "why"}, false},
	} {
		if got := row.s.reached(row.at); got != row.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	all := map[source.TopicPartition]stretch{partZero: {0, 10}, partOne: {0, 10}}
	done, held := standing{claimed: true, position: 10}, standing{claimed: true, held: "why"}
	for name, row := range map[string]struct {
		zero, one standing
		want      arrival
	}{
		"all":                       {done, done, arrived},
		"one is left":               {done, standing{}, underway},
		"one is left, one is held":  {held, standing{}, underway},
		"what is left is held":      {done, held, stuck},
		"nothing but held ones are": {held, held, stuck},
	} {
		if got := judgeArrival(all, map[source.TopicPartition]standing{partZero: row.zero, partOne: row.one}); got != row.want {
			t.Errorf("%s: got %v, want %v", name, got, row.want)
		}
	}
}

func TestBound_ABoundIsFittedToLogsThatChange(t *testing.T) {
	t.Parallel()
	b := &bound{all: map[source.TopicPartition]stretch{partZero: {0, 10}, partOne: {0, 10}}}
	gone := b.refit(map[source.TopicPartition]source.Extent{partZero: {First: 2, End: 4}, {Topic: "orders", Partition: 2}: {End: 9}})
	if want := (map[source.TopicPartition]stretch{partZero: {0, 10}}); !reflect.DeepEqual(gone, want) {
		t.Errorf("cut short: got %v, want %v", gone, want)
	}
	if want := (map[source.TopicPartition]stretch{partZero: {2, 4}, partOne: {0, 10}}); !reflect.DeepEqual(b.stretches(), want) {
		t.Errorf("got %v, want %v", b.stretches(), want)
	}
	if gone := b.refit(map[source.TopicPartition]source.Extent{partZero: {First: 0, End: 100}}); len(gone) > 0 || b.until(partZero) != 4 {
		t.Errorf("a log that grows moved the bound: %v, %d", gone, b.until(partZero))
	}
	if n := b.until(source.TopicPartition{Topic: "orders", Partition: 2}); n != 0 {
		t.Errorf("a new partition is read up to %d", n)
	}
	if n := (*bound)(nil).until(partZero); n != math.MaxInt64 {
		t.Errorf("without a bound: %d", n)
	}
}

func TestBound_APageIsCutAtTheBound(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ until, records, next int64 }{{0, 0, 0}, {5, 0, 5}, {6, 1, 6}, {8, 2, 8}, {9, 3, 9}, {100, 3, 20}} {
		pg := cut(source.Page{Records: []source.Record{{Offset: 5}, {Offset: 7}, {Offset: 8}}, Next: 20}, row.until)
		if int64(len(pg.Records)) != row.records || pg.Next != row.next {
			t.Errorf("until %d: %d records, next %d; want %d, %d", row.until, len(pg.Records), pg.Next, row.records, row.next)
		}
	}
}

func TestBound_TheProgressCountsOffsets(t *testing.T) {
	t.Parallel()
	all := map[source.TopicPartition]stretch{partOne: {5, 105}, partZero: {0, 10}}
	from := map[source.TopicPartition]int64{}
	p := measure(all, map[source.TopicPartition]standing{partOne: {claimed: true, position: 25}}, from)
	if p.Done != 0 || p.Left != 90 || len(p.Partitions) != 2 || p.Partitions[0].TopicPartition != partZero {
		t.Errorf("at the beginning: %+v", p)
	}
	p = measure(all, map[source.TopicPartition]standing{partZero: {claimed: true, position: 4, held: "why"}, partOne: {claimed: true, position: 200}}, from)
	want := []PartitionProgress{{partZero, 0, 4, 10, "why"}, {partOne, 25, 200, 105, ""}}
	if p.Done != 84 || p.Left != 6 || !reflect.DeepEqual(p.Partitions, want) {
		t.Errorf("later: %+v", p)
	}
}

func TestBound_TheRateIsThatOfTheLastMinute(t *testing.T) {
	t.Parallel()
	var s speed
	at := time.Unix(1000, 0)
	if r := s.rate(); r != 0 {
		t.Errorf("without a sample: %v", r)
	}
	s.add(at, 0)
	s.add(at.Add(10*time.Second), 1000)
	if r := s.rate(); r != 100 {
		t.Errorf("got %v, want 100", r)
	}
	for i := 1; i <= 60; i++ { // slower from then on
		s.add(at.Add(time.Duration(10+10*i)*time.Second), 1000+int64(i)*10)
	}
	if r := s.rate(); r != 1 || len(s.samples) > 10 {
		t.Errorf("after ten minutes: %v of %d samples, want 1", r, len(s.samples))
	}
	for _, row := range []struct {
		left int64
		rate float64
		want time.Duration
	}{{0, 0, 0}, {0, 5, 0}, {10, 0, -1}, {10, 5, 2 * time.Second}, {1 << 60, 1e-9, -1}} {
		if got := timeLeft(row.left, row.rate); got != row.want {
			t.Errorf("%d at %v: got %v, want %v", row.left, row.rate, got, row.want)
		}
	}
}
