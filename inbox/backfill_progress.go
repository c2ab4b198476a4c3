package inbox

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file says how far ConsumeUntil has got. It is pure: values in, values out.

// Progress is how far a call of ConsumeUntil has got, over all nodes of the consumer. It counts offsets: where compaction or
// transactions left gaps there are fewer events. An offset is done when its event is settled: handled, stored for a retry, skipped or a dead
// letter.
type Progress struct {
	Partitions []PartitionProgress // in the order of topic and partition

	Done int64         // since the call began
	Left int64         // up to the bound
	Rate float64       // done per second in the last minute
	For  time.Duration // since the call began
	// TimeLeft is how long the rest takes at this rate; 0 if nothing is left, and -1 if nothing moves.
	TimeLeft time.Duration

	// Waits says why reading waits, as far as this node knows: the consumer is paused, or too many of its events are stored. "" if nothing
	// is known to be in its way. Held partitions have their own reason.
	Waits string
}

// partitionsLeft is how many partitions are not done.
func (p Progress) partitionsLeft() (n int) {
	for _, part := range p.Partitions {
		if part.left() > 0 {
			n++
		}
	}
	return n
}

// PartitionProgress is a partition's part of a Progress.
type PartitionProgress struct {
	source.TopicPartition

	From     int64  // the first offset that was left when the call began
	Position int64  // every offset below it is done
	Until    int64  // the first offset that is not read
	Held     string // why the partition is held; "" if it is not
}

// left is how many offsets of the partition are to be read.
func (p PartitionProgress) left() int64 { return max(0, p.Until-p.Position) }

// measure compares what is to be read with where the consumer stands. from is where each partition stood at the beginning, and gets
// those that are new in it.
func measure(all map[source.TopicPartition]readahead.Stretch, at map[source.TopicPartition]readahead.Standing, from map[source.TopicPartition]int64) Progress {
	var p Progress
	for tp, s := range all {
		position := s.First
		if at[tp].Claimed {
			position = max(position, at[tp].Position)
		}
		if _, ok := from[tp]; !ok {
			from[tp] = position
		}
		part := PartitionProgress{
			TopicPartition: tp,
			From:           from[tp],
			Position:       position,
			Until:          s.Until,
			Held:           at[tp].Held,
		}
		p.Left += part.left()
		p.Done += max(0, min(position, s.Until)-from[tp])
		p.Partitions = append(p.Partitions, part)
	}
	slices.SortFunc(p.Partitions, func(a, b PartitionProgress) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return p
}

// paceWindow is how far back the rate looks.
const paceWindow = time.Minute

// speed is how much was done when.
type speed struct{ samples []sample }

type sample struct {
	at   time.Time
	done int64
}

// add notes what is done now. The first sample that is kept is the last one outside of the window.
func (s *speed) add(at time.Time, done int64) {
	s.samples = append(s.samples, sample{at, done})
	for len(s.samples) > 2 && at.Sub(s.samples[1].at) >= paceWindow {
		s.samples = s.samples[1:]
	}
}

// rate is how much is done a second; 0 if that is not known.
func (s *speed) rate() float64 {
	if len(s.samples) < 2 {
		return 0
	}
	a, b := s.samples[0], s.samples[len(s.samples)-1]
	if span := b.at.Sub(a.at).Seconds(); span > 0 {
		return max(0, float64(b.done-a.done)/span)
	}
	return 0
}

// timeLeft is how long left offsets take.
func timeLeft(left int64, rate float64) time.Duration {
	switch seconds := float64(left) / rate; {
	case left == 0:
		return 0
	case rate <= 0 || seconds > 100*365*24*3600:
		return -1
	default:
		return time.Duration(seconds * float64(time.Second))
	}
}

// arrival is what a look at the progress says.
type arrival int

const (
	underway arrival = iota
	arrived
	stuck // what is not reached is held: waiting alone does not help
)

// judgeArrival decides whether all stretches are reached.
func judgeArrival(all map[source.TopicPartition]readahead.Stretch, at map[source.TopicPartition]readahead.Standing) arrival {
	verdict := arrived
	for tp, s := range all {
		switch {
		case s.Reached(at[tp]):
		case at[tp].Held == "":
			return underway
		default:
			verdict = stuck
		}
	}
	return verdict
}
