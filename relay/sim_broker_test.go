package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// simBroker keeps a Publisher's promises and nothing more: requests of several events, one after another in each
// partition; answers that are lost; requests that arrive after their client gave up; refusals of every kind.
type simBroker struct {
	s     *sim
	stuck map[string]int  // events that are refused for themselves, for so many times; -1 for ever
	met   map[string]bool // topics that a call has been about

	topicGone  string // missing
	leaderless int    // a partition without a leader; 0 for none
	down       bool   // nothing answers
}

const simPartitions = 2

// change is a change of the broker's mood.
func (b *simBroker) change() {
	s := b.s
	switch s.rng.IntN(5) {
	case 0:
		b.topicGone = []string{"", "orders", "other"}[s.rng.IntN(3)]
	case 1:
		b.leaderless = s.rng.IntN(simPartitions + 1)
	case 2:
		b.down = !b.down
	case 3:
		b.topicGone, b.leaderless, b.down = "", 0, false
	default:
		if s.events > 0 { // an event of late, or to come
			b.stuck[eventID(max(0, s.events-5+s.rng.IntN(8)))] = []int{1, 2, 4, -1}[s.rng.IntN(4)]
		}
	}
}

func (b *simBroker) heal() {
	b.topicGone, b.leaderless, b.down = "", 0, false
	clear(b.stuck)
}

// partition spreads keys as kafkago.Murmur2 does, which a test of this package cannot import.
func (b *simBroker) partition(e holdfast.Event) int {
	var all []int
	for p := range simPartitions {
		all = append(all, 1+p)
	}
	return kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: []byte(cmp.Or(e.Key, e.ID))}, all...)
}

// Partition knows the topics that Publish has met.
func (b *simBroker) Partition(e holdfast.Event) (partition, partitions int) {
	if !b.met[e.Topic] {
		return 0, 0
	}
	return b.partition(e) - 1, simPartitions
}

// publishing tells the oracle what a process begins to send. One that was killed before sends nothing any more: it ends at its next pause.
func (b *simBroker) publishing(events []holdfast.Event) {
	if t := b.s.current; !t.dying && !t.last {
		b.s.oracle.publishing(events)
	}
}

func (b *simBroker) Publish(_ context.Context, events []holdfast.Event) []error {
	b.publishing(events)
	return b.sendEach(events)
}

// sendEach sends each partition's events in order, in requests of random lengths.
func (b *simBroker) sendEach(events []holdfast.Event) []error {
	s := b.s
	errs := make([]error, len(events))
	if s.current.dying {
		for i := range errs {
			errs[i] = errKilled
		}
		return errs
	}
	groups := map[string][]int{}
	var names []string
	for i, e := range events {
		b.met[e.Topic] = true
		name := fmt.Sprint(e.Topic, b.partition(e))
		if groups[name] == nil {
			names = append(names, name)
		}
		groups[name] = append(groups[name], i)
	}
	s.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		b.send(events, groups[name], errs)
	}
	return errs
}

// PublishTogether sends the batches one after the other, in any order. All of them are being sent from the start: a relay that
// freezes within the first sends the others when it wakes.
func (b *simBroker) PublishTogether(_ context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error)) {
	b.s.shared++
	b.publishing(slices.Concat(batches...))
	for _, i := range b.s.rng.Perm(len(batches)) {
		answered(i, b.sendEach(batches[i]))
	}
}

// send sends the events of one partition.
func (b *simBroker) send(events []holdfast.Event, rest []int, errs []error) {
	s := b.s
	refused := map[string]error{} // keys
	for len(rest) > 0 {
		n := 1 + s.rng.IntN(len(rest))
		request := rest[:n]
		rest = rest[n:]
		s.pause(nil, time.Time{}) // on its way
		fault, lost := b.answer(events[request[0]])
		s.log("request of %d from %s: fault %q, lost %v", n, events[request[0]].ID, fault, lost)
		if fault != "" || lost {
			// Without an answer nobody bisects: a request with a refused event in it is refused whole.
			if lost && !slices.ContainsFunc(request, func(i int) bool { return b.stuck[events[i].ID] != 0 || refused[events[i].Key] != nil }) {
				var written []holdfast.Event
				for _, i := range request {
					written = append(written, events[i])
				}
				if s.one(3) { // the client gives up, and the request arrives some time later
					delay := time.Duration(s.rng.IntN(400)) * time.Millisecond
					s.spawn("late request", nil, func() {
						s.sleep(delay)
						s.oracle.arriveAll(written)
					})
				} else {
					s.oracle.arriveAll(written)
				}
			}
			err := &publish.Error{Topic: events[request[0]].Topic, Partition: b.partition(events[request[0]]), Fault: fault, Err: errors.New("scripted")}
			if lost {
				err.Fault = publish.FaultBroker
			}
			if s.plan.bug.driver == bugUnknownIsAck && err.Fault == publish.FaultBroker {
				continue
			}
			for _, i := range append(append([]int(nil), request...), rest...) {
				errs[i] = err
			}
			return
		}
		b.append(events, request, errs, refused)
	}
}

// answer is what happens to a request.
func (b *simBroker) answer(e holdfast.Event) (fault publish.Fault, lost bool) {
	switch {
	case b.down:
		return publish.FaultBroker, false
	case b.topicGone == e.Topic:
		return publish.FaultTopic, false
	case b.leaderless == b.partition(e):
		return publish.FaultPartition, false
	case b.s.chaos && b.s.plan.cuts && b.s.one(25):
		return "", true
	}
	return "", false
}

// append writes the events of a request that are not refused for themselves: a request with such an event is bisected,
// and later events of its key are not sent.
func (b *simBroker) append(events []holdfast.Event, request []int, errs []error, refused map[string]error) {
	for _, i := range request {
		e := events[i]
		if err := refused[e.Key]; e.Key != "" && err != nil {
			errs[i] = err
			continue
		}
		if times := b.stuck[e.ID]; times != 0 {
			if times > 0 {
				b.stuck[e.ID]--
			}
			errs[i] = &publish.Error{Topic: e.Topic, Partition: b.partition(e), Fault: publish.FaultRecord, Err: errors.New("scripted: refused")}
			b.s.log("%s is refused", e.ID)
			refused[e.Key] = &publish.Error{Topic: e.Topic, Partition: b.partition(e), Fault: publish.FaultRecord, NotSent: true, Err: errs[i]}
			continue
		}
		b.s.oracle.arrived(e)
	}
}
