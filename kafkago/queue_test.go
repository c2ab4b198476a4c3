package kafkago

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/partitionqueue"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

// scenario is one random call and a broker's opinion of it.
type scenario struct {
	events []holdfast.Event
	bad    map[string]bool // ids that the broker refuses
	limit  int             // bytes of a batch that the broker takes
	names  bool            // the broker names the bad records, as a new one does
	config int             // PublisherConfig.MaxRequestBytes
	failAt int             // the batch of each partition that fails for no record's fault; -1 for none
}

func drawScenario(t *rapid.T) scenario {
	w := scenario{
		bad:    map[string]bool{},
		limit:  rapid.IntRange(200, 5000).Draw(t, "broker's limit"),
		names:  rapid.Bool().Draw(t, "broker names records"),
		config: rapid.IntRange(200, 5000).Draw(t, "our limit"),
		failAt: rapid.SampledFrom([]int{-1, -1, 0, 1, 2, 5}).Draw(t, "fails at"),
	}
	badness := rapid.IntRange(0, 4).Draw(t, "bad in ten")
	for i := range rapid.IntRange(0, 60).Draw(t, "events") {
		e := holdfast.Event{
			ID:      fmt.Sprintf("%03d", i),
			Topic:   rapid.SampledFrom([]string{"t", "u"}).Draw(t, "topic"),
			Key:     rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e"}).Draw(t, "key"),
			Payload: make([]byte, rapid.SampledFrom([]int{0, 10, 100, 1000, 6000}).Draw(t, "size")),
		}
		w.bad[e.ID] = rapid.IntRange(0, 9).Draw(t, "bad") < badness
		w.events = append(w.events, e)
	}
	return w
}

// refuses is the broker's answer for a batch of records, and the records it names.
func (s scenario) refuses(events []holdfast.Event) (named map[int]error, err error) {
	size := 0
	named = map[int]error{}
	for i := range events {
		size += partitionqueue.RecordSize(&events[i])
		if s.bad[events[i].ID] {
			named[i] = fmt.Errorf("bad")
		}
	}
	switch {
	case size > s.limit:
		return nil, kafka.MessageSizeTooLarge
	case len(named) == 0:
		return nil, nil
	case !s.names:
		named = nil
	}
	return named, kafka.InvalidRecord
}

// slowly is the reference: it sends one event after the other, and needs no batches to be right.
func (s scenario) slowly() (log map[partitionName][]string, answers []string) {
	log = map[partitionName][]string{}
	refused := map[[2]string]bool{}
	for _, e := range s.events {
		key := [2]string{e.Topic, e.Key}
		if e.Key != "" && refused[key] {
			answers = append(answers, "record+")
			continue
		}
		if _, err := s.refuses([]holdfast.Event{e}); err != nil {
			refused[key] = true
			answers = append(answers, "record")
			continue
		}
		p := partitionName{e.Topic, Murmur2(e, 3)}
		log[p] = append(log[p], e.ID)
		answers = append(answers, "ok")
	}
	return log, answers
}

// batched runs the queues against the same broker, as Kafka.drain does.
func (s scenario) batched(t *rapid.T) (log map[partitionName][]string, answers []string, failed map[partitionName]bool) {
	log, failed = map[partitionName][]string{}, map[partitionName]bool{}
	errs := make([]error, len(s.events))
	topics := map[string]topicAnswer{"t": {info: &topicInfo{partitions: 3}}, "u": {info: &topicInfo{partitions: 3}}}
	queues := divide(s.events, errs, topics, place(s.events, topics, Murmur2))
	for i := range queues {
		q := &queues[i]
		q.Limit = s.config
		name := partitionName{q.Topic, q.Partition}
		sent := 0
		for batch := q.Next(); batch != nil; batch = q.Next() {
			if failed[name] {
				t.Fatalf("%v sends on after a failure", name)
			}
			if sent++; sent > 20*len(s.events) {
				t.Fatal("no end")
			}
			var events []holdfast.Event
			size := 0
			for _, i := range batch {
				events = append(events, s.events[i])
				size += partitionqueue.RecordSize(&s.events[i])
			}
			if len(batch) > 1 && size > s.config {
				t.Fatalf("a batch of %d bytes is above the limit of %d", size, s.config)
			}
			if sent-1 == s.failAt {
				failed[name] = true
				q.Settle(batch, &publish.Error{Topic: q.Topic, Partition: q.Partition, Fault: publish.FaultPartition, Err: kafka.NotEnoughReplicas}, nil)
				continue
			}
			named, err := s.refuses(events)
			if err == nil {
				for _, e := range events {
					log[name] = append(log[name], e.ID)
				}
				q.Settle(slices.Clone(batch), nil, nil)
				continue
			}
			q.Settle(batch, &publish.Error{Topic: q.Topic, Partition: q.Partition, Fault: FaultOf(err), Err: err}, named)
		}
	}
	return log, outline(errs), failed
}

func TestQueue_BatchesWriteAndAnswerAsOneEventAfterTheOtherWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawScenario(t)
		wantLog, wantAnswers := w.slowly()
		log, answers, failed := w.batched(t)
		for name, ids := range wantLog {
			if failed[name] {
				// What was written before the failure is a beginning of what the reference writes.
				if n := len(log[name]); n > len(ids) || !slices.Equal(log[name], ids[:n]) {
					t.Fatalf("%v: %v is no beginning of %v", name, log[name], ids)
				}
				continue
			}
			if diff := cmp.Diff(ids, log[name]); diff != "" {
				t.Fatalf("%v: %s", name, diff)
			}
		}
		for i, e := range w.events {
			name := partitionName{e.Topic, Murmur2(e, 3)}
			written := slices.Contains(log[name], e.ID)
			if written != (answers[i] == "ok") {
				t.Fatalf("event %d is answered with %s; in the log: %v", i, answers[i], written)
			}
			if failed[name] {
				switch answers[i] {
				case "partition", "partition+", wantAnswers[i]:
				default:
					// A named record was refused before an earlier one of its key could be.
					if answers[i] != "record" || !w.names {
						t.Fatalf("event %d is answered with %s, the reference says %s", i, answers[i], wantAnswers[i])
					}
				}
				continue
			}
			// A broker that names records may name one before a batch without it meets an earlier one of its key.
			if same := answers[i] == wantAnswers[i]; !same && !(w.names && answers[i] == "record" && wantAnswers[i] == "record+") {
				t.Fatalf("event %d is answered with %s, the reference says %s", i, answers[i], wantAnswers[i])
			}
		}
	})
}
