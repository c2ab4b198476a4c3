package inbox

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
)

var partZero, partOne = source.TopicPartition{Topic: "orders", Partition: 0}, source.TopicPartition{Topic: "orders", Partition: 1}

func TestBound_UntilSaysWhatIsToBeRead(t *testing.T) {
	t.Parallel()
	there := map[source.TopicPartition]source.Extent{partZero: {First: 3, End: 10, At: 7}, partOne: {First: 0, End: 0, At: 0}}
	for name, row := range map[string]struct {
		u    Until
		want map[source.TopicPartition]readahead.Stretch
	}{
		"a time, or the end":           {Until{At: time.Now()}, map[source.TopicPartition]readahead.Stretch{partZero: {First: 3, Until: 7}, partOne: {First: 0, Until: 0}}},
		"an offset of one partition":   {Until{Offsets: map[source.TopicPartition]int64{partZero: 5}}, map[source.TopicPartition]readahead.Stretch{partZero: {First: 3, Until: 5}}},
		"an offset after the end":      {Until{Offsets: map[source.TopicPartition]int64{partZero: 50}}, map[source.TopicPartition]readahead.Stretch{partZero: {First: 3, Until: 10}}},
		"no partition at all is asked": {Until{Offsets: map[source.TopicPartition]int64{}}, map[source.TopicPartition]readahead.Stretch{}},
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
		s    readahead.Stretch
		at   readahead.Standing
		want bool
	}{
		"nobody has claimed it":                  {readahead.Stretch{First: 0, Until: 10}, readahead.Standing{}, false},
		"it is empty":                            {readahead.Stretch{First: 0, Until: 0}, readahead.Standing{}, true},
		"all below the bound was deleted before": {readahead.Stretch{First: 12, Until: 10}, readahead.Standing{}, true},
		"the position is below":                  {readahead.Stretch{First: 0, Until: 10}, readahead.Standing{Claimed: true, Position: 9}, false},
		"the position is there":                  {readahead.Stretch{First: 0, Until: 10}, readahead.Standing{Claimed: true, Position: 10}, true},
		"the position is past it":                {readahead.Stretch{First: 0, Until: 10}, readahead.Standing{Claimed: true, Position: 11}, true},
		"unread records were deleted":            {readahead.Stretch{First: 12, Until: 10}, readahead.Standing{Claimed: true, Position: 5}, false},
		"it is held":                             {readahead.Stretch{First: 0, Until: 10}, readahead.Standing{Claimed: true, Position: 50, Held: "why"}, false},
	} {
		if got := row.s.Reached(row.at); got != row.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	all := map[source.TopicPartition]readahead.Stretch{partZero: {First: 0, Until: 10}, partOne: {First: 0, Until: 10}}
	done, held := readahead.Standing{Claimed: true, Position: 10}, readahead.Standing{Claimed: true, Held: "why"}
	for name, row := range map[string]struct {
		zero, one readahead.Standing
		want      arrival
	}{
		"all":                       {done, done, arrived},
		"one is left":               {done, readahead.Standing{}, underway},
		"one is left, one is held":  {held, readahead.Standing{}, underway},
		"what is left is held":      {done, held, stuck},
		"nothing but held ones are": {held, held, stuck},
	} {
		if got := judgeArrival(all, map[source.TopicPartition]readahead.Standing{partZero: row.zero, partOne: row.one}); got != row.want {
			t.Errorf("%s: got %v, want %v", name, got, row.want)
		}
	}
}

func TestBound_TheProgressCountsOffsets(t *testing.T) {
	t.Parallel()
	all := map[source.TopicPartition]readahead.Stretch{partOne: {First: 5, Until: 105}, partZero: {First: 0, Until: 10}}
	from := map[source.TopicPartition]int64{}
	p := measure(all, map[source.TopicPartition]readahead.Standing{partOne: {Claimed: true, Position: 25}}, from)
	if p.Done != 0 || p.Left != 90 || len(p.Partitions) != 2 || p.Partitions[0].TopicPartition != partZero {
		t.Errorf("at the beginning: %+v", p)
	}
	p = measure(all, map[source.TopicPartition]readahead.Standing{partZero: {Claimed: true, Position: 4, Held: "why"}, partOne: {Claimed: true, Position: 200}}, from)
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
