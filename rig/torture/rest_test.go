//go:build linux

package main

import (
	"slices"
	"testing"
	"time"
)

func TestRest_LooksAtWhatArrivesTakeASixthOfTheTimeAtMost(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: 20 * time.Millisecond, 4 * time.Millisecond: 20 * time.Millisecond,
		40 * time.Millisecond: 200 * time.Millisecond, time.Minute: 2 * time.Second} {
		if got := restAfter(took); got != want {
			t.Errorf("after a look of %v a rest of %v, want %v", took, got, want)
		}
	}
}

func TestRest_EveryPartitionIsReadToItsOwnEnd(t *testing.T) {
	t.Parallel()
	ends := map[partition]int64{{"orders", 0}: 10, {"orders", 1}: 20}
	for name, c := range map[string]struct {
		positions map[partition]int64
		want      []string
	}{
		"all is read":                 {map[partition]int64{{"orders", 0}: 10, {"orders", 1}: 20}, nil},
		"a partition without records": {map[partition]int64{{"orders", 0}: 10, {"orders", 1}: 20, {"late", 0}: 0}, nil},
		"one is too low":              {map[partition]int64{{"orders", 0}: 9, {"orders", 1}: 20}, []string{"orders/0 is at 9 and ends at 10"}},
		"one has no position":         {map[partition]int64{{"orders", 0}: 10}, []string{"orders/1 is at 0 and ends at 20"}},
		"one is as far beyond as another is too low": {map[partition]int64{{"orders", 0}: 11, {"orders", 1}: 19},
			[]string{"orders/0 is at 11 and ends at 10", "orders/1 is at 19 and ends at 20"}},
	} {
		if got := unread(ends, c.positions); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
