//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/rig/kafkaproxy"
)

// partitionFaults are faults of one partition, which others must not notice. Before each of them is a calm time to compare
// with.
func partitionFaults() (all []fault) {
	for _, kind := range []struct {
		name, what string
		hold       [2]time.Duration
		fault      func(topic string, partition int) kafkaproxy.Fault
	}{
		{"late", "one partition acknowledges after 3 s", seconds(8, 11), func(topic string, partition int) kafkaproxy.Fault {
			return kafkaproxy.Late(topic, partition, 3*time.Second)
		}},
		{"leaderless", "one partition has no leader: LEADER_NOT_AVAILABLE", seconds(8, 9), kafkaproxy.Leaderless},
		{"hangs", "the leader of one partition answers nothing", seconds(12, 16), kafkaproxy.Hang},
		{"refuses", "one partition has too few replicas: NOT_ENOUGH_REPLICAS", seconds(8, 11), kafkaproxy.Refuse},
	} {
		all = append(all, fault{
			name:   "partition-" + kind.name,
			what:   kind.what,
			hold:   kind.hold,
			alone:  true,
			alarms: []oracle.Alarm{{By: roleRelay, Messages: partitionWaits}},
			begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
				key := keyOf(s.rng.IntN(keys))
				return s.breakPartition(ctx, "partition-"+kind.name, key, kind.fault)
			},
		})
	}
	return all
}

// calm is for how long the delay of all partitions is looked at before one of them gets into trouble.
const calm = 4 * time.Second

// breakPartition makes the partition of a key misbehave.
func (s *stage) breakPartition(ctx context.Context, name, key string, fault func(topic string, partition int) kafkaproxy.Fault) (func(context.Context) error, error) {
	t := trial{fault: name}
	t.topic, t.partition = s.partitionOf(key)
	pulse := s.feelPulse(ctx)
	t.calm[0] = time.Now()
	sleep(ctx, calm)
	t.calm[1] = time.Now()
	before := s.kafkaproxies.hits()
	s.hit = func() (bool, error) { return s.kafkaproxies.hits() > before, nil }
	s.kafkaproxies.set(fault(t.topic, t.partition))
	return func(context.Context) error {
		pulse.stop()
		t.during = [2]time.Time{t.calm[1], time.Now()}
		t.pulse = max(pulse.slowest(t.calm), pulse.slowest(t.during))
		s.trials = append(s.trials, t)
		s.kafkaproxies.set(kafkaproxy.Pass())
		return nil
	}, nil
}

// topicOf is where the producers write the events of a key.
func (g *ground) topicOf(key string) string {
	var k int
	_, _ = fmt.Sscanf(key, "k%d", &k)
	return topicOf(k, g.topics, g.late)
}

// partitionOf is the topic of a key, and its partition there.
func (g *ground) partitionOf(key string) (topic string, number int) {
	topic = g.topicOf(key)
	return topic, kafkago.Murmur2(holdfast.Event{Topic: topic, Key: key}, partitions)
}

// trial is a time in which one partition was in trouble, and a calm time before it.
type trial struct {
	fault        string
	topic        string
	partition    int
	calm, during [2]time.Time
	pulse        time.Duration // the slowest, in both of them
}

const (
	// noise is what a p99 of some hundred events may be on a busy machine, whatever else there is. A relay that waits for
	// a partition would have the others wait for seconds.
	noise = 750 * time.Millisecond
	// tooBusy is a pulse at which a comparison shows nothing but how busy the machine is.
	tooBusy = 500 * time.Millisecond
)

// apart compares, for each trial, the time from a COMMIT to the acknowledgement of its events in the other partitions. It
// says what it found, and which of it is more than twice as long as in the calm.
func apart(trials []trial, known oracle.Run) (lines, problems []string) {
	committed, acknowledged := map[string]time.Time{}, map[string]time.Time{}
	for _, e := range known.Entries {
		if e.How != history.OK {
			continue
		}
		at := map[history.Op]map[string]time.Time{history.Commit: committed, history.Acknowledge: acknowledged}[e.Op]
		for _, id := range e.IDs {
			if at == nil {
				break
			}
			if first, ok := at[id]; !ok || e.At.Before(first) {
				at[id] = e.At
			}
		}
	}
	places := map[string]oracle.Record{}
	for _, r := range known.Records {
		places[r.ID] = r
	}
	for _, t := range trials {
		var calm, during []time.Duration
		for _, w := range known.Written {
			at, heard := committed[w.ID]
			place, sent := places[w.ID]
			if !heard || !sent || w.Due != nil || place.Topic == t.topic && place.Partition == t.partition {
				continue
			}
			switch delay := max(0, acknowledged[w.ID].Sub(at)); {
			case acknowledged[w.ID].IsZero(): // its answer was lost
			case within(t.calm, at): // What came at its end and was not acknowledged until then waited for the trouble.
				calm = append(calm, min(delay, t.calm[1].Sub(at)))
			case within(t.during, at):
				during = append(during, delay)
			}
		}
		if len(calm) < 50 || len(during) < 50 {
			lines = append(lines, fmt.Sprintf("%s: %d events of other partitions before it and %d during it are too few to compare", t.fault, len(calm), len(during)))
			continue
		}
		line := fmt.Sprintf("%s of %s/%d: from COMMIT to acknowledgement of %d events in the other partitions p99 %s, of %d in the %s before it %s",
			t.fault, t.topic, t.partition, len(during), p99(during).Round(time.Millisecond), len(calm), round(t.calm[1].Sub(t.calm[0])), p99(calm).Round(time.Millisecond))
		if t.pulse > tooBusy {
			lines = append(lines, fmt.Sprintf("%s; not judged: without holdfast a COMMIT and an acknowledgement took up to %s", line, round(t.pulse)))
			continue
		}
		lines = append(lines, line)
		if p99(during) > max(2*p99(calm), noise) {
			problems = append(problems, "one partition delays others: "+line)
		}
	}
	return lines, problems
}

func within(span [2]time.Time, at time.Time) bool { return !at.Before(span[0]) && at.Before(span[1]) }

func p99(of []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)*99/100]
}

// judgeApart adds what apart and meanwhile say to the report.
func (r *run) judgeApart(known oracle.Run) {
	lines, problems := apart(r.trials, known)
	more, wrong := meanwhile(r.absences, known)
	r.report.apart, problems = strings.Join(append(lines, more...), "\n"), append(problems, wrong...)
	r.report.troubles = append(r.report.troubles, problems...)
}
