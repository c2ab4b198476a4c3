//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestFaultsPartition_OnePartitionsTroubleIsComparedWithTheCalmBefore(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	tried := trial{fault: "partition-late", topic: "orders", partition: 1, calm: [2]time.Time{at(0), at(4)}, during: [2]time.Time{at(4), at(12)}}
	for name, c := range map[string]struct {
		before, others, slow time.Duration // the delays in the calm, and in the others and in the one meanwhile
		pulse                time.Duration
		events               int
		problem              bool
		says                 string
	}{
		"the others flow":              {20 * time.Millisecond, 30 * time.Millisecond, 3 * time.Second, 0, 100, false, "p99 30ms, of 100 in the 4.0s before it 20ms"},
		"the others wait":              {20 * time.Millisecond, 3 * time.Second, 3 * time.Second, 0, 100, true, "p99 3s"},
		"twice what a busy machine is": {time.Second, 1900 * time.Millisecond, 3 * time.Second, 0, 100, false, "p99 1.9s"},
		"a machine that stands still":  {20 * time.Millisecond, 3 * time.Second, 3 * time.Second, time.Second, 100, false, "not judged"},
		"too few to compare":           {20 * time.Millisecond, 3 * time.Second, 3 * time.Second, 0, 20, false, "too few"},
	} {
		var known oracle.Run
		add := func(id string, partition int, committed time.Time, delay time.Duration) {
			known.Written = append(known.Written, oracle.Written{ID: id, Topic: "orders"})
			known.Records = append(known.Records, oracle.Record{ID: id, Topic: "orders", Partition: partition})
			known.Entries = append(known.Entries, history.Entry{Op: history.Commit, How: history.OK, IDs: []string{id}, At: committed},
				history.Entry{Op: history.Acknowledge, How: history.Unknown, IDs: []string{id}, At: committed},
				history.Entry{Op: history.Acknowledge, How: history.OK, IDs: []string{id}, At: committed.Add(delay)},
				history.Entry{Op: history.Acknowledge, How: history.OK, IDs: []string{id}, At: committed.Add(time.Minute)})
		}
		for i := range c.events {
			n := float64(i) / float64(c.events)
			add(fmt.Sprint("calm", i), 0, at(4*n), c.before)
			add(fmt.Sprint("during", i), 0, at(4+8*n), c.others)
			add(fmt.Sprint("slow", i), 1, at(4+8*n), c.slow)
		}
		tried.pulse = c.pulse
		lines, problems := apart([]trial{tried}, known)
		if (len(problems) > 0) != c.problem || !strings.Contains(strings.Join(lines, " "), c.says) {
			t.Errorf("%s: it says %q and %q", name, lines, problems)
		}
	}
}

// An event that was committed just before the trouble, and waits for it, does not make the calm look slow.
func TestFaultsPartition_WhatComesAtTheEndOfTheCalmIsNoMeasureOfIt(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var known oracle.Run
	add := func(id string, committed time.Time, delay time.Duration) {
		known.Written = append(known.Written, oracle.Written{ID: id, Topic: "orders"})
		known.Records = append(known.Records, oracle.Record{ID: id, Topic: "orders"})
		known.Entries = append(known.Entries, history.Entry{Op: history.Commit, How: history.OK, IDs: []string{id}, At: committed},
			history.Entry{Op: history.Acknowledge, How: history.OK, IDs: []string{id}, At: committed.Add(delay)})
	}
	end := begin.Add(4 * time.Second)
	for i := range 100 {
		add(fmt.Sprint("calm", i), begin.Add(time.Duration(i)*30*time.Millisecond), 20*time.Millisecond)
		add(fmt.Sprint("during", i), end.Add(time.Duration(i)*30*time.Millisecond), 9*time.Second)
	}
	for i := range 5 {
		add(fmt.Sprint("end", i), end.Add(time.Duration(i-6)*5*time.Millisecond), 8*time.Second)
	}
	tried := trial{fault: "partition-late", topic: "orders", partition: 1, calm: [2]time.Time{begin, end}, during: [2]time.Time{end, end.Add(4 * time.Second)}}
	if lines, problems := apart([]trial{tried}, known); len(problems) != 1 {
		t.Errorf("it says %q and finds %q", lines, problems)
	}
}

func TestFaultsPartition_AFaultOfOnePartitionFindsAPublisherThatWaits(t *testing.T) {
	skip.InShort(t, "it runs the fault suite, and judges how long events took there")
	t.Parallel()
	for _, bug := range []string{"", bugBarrier} {
		t.Run("bug "+bug, func(t *testing.T) {
			t.Parallel()
			var r *Report
			for seed := range uint64(3) { // on a busy machine a run may not be judged
				if r = small(t, Options{Seed: 4 + seed, bug: bug, Faults: []string{"partition-late"}}); !strings.Contains(r.apart, "not judged") {
					break
				}
			}
			found := slices.ContainsFunc(r.troubles, func(text string) bool { return strings.Contains(text, "delays others") })
			if found != (bug != "") {
				t.Errorf("found is %t: %s", found, r.apart)
			}
		})
	}
}
