package kafkago

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

var _ relay.Publisher = (*Publisher)(nil)

// outline is an answer in short: "ok", or its fault, "+" when the event was not sent.
func outline(errs []error) []string {
	var out []string
	for _, err := range errs {
		var p *publish.Error
		switch {
		case err == nil:
			out = append(out, "ok")
		case !errors.As(err, &p):
			out = append(out, err.Error())
		case p.NotSent:
			out = append(out, string(p.Fault)+"+")
		default:
			out = append(out, string(p.Fault))
		}
	}
	return out
}

func sent(s *script) []string {
	var out []string
	for _, r := range s.requests {
		out = append(out, strings.Join(r.ids, ""))
	}
	return out
}

func TestPublisher_Publish(t *testing.T) {
	one := map[string]int{"t": 1}
	for _, test := range []struct {
		name     string
		script   *script
		events   []holdfast.Event
		requests []string // the ids of each, on one partition
		answers  []string
	}{
		{"a page goes out in one batch, in order",
			&script{}, keyed("a", "b", "a", ""),
			[]string{"0123"}, []string{"ok", "ok", "ok", "ok"}},
		{"no event, no request",
			&script{}, nil, nil, nil},
		{"a refused batch is halved, the first half first, down to the record to blame",
			&script{answer: refuseWith(kafka.InvalidRecord, "4")}, keyed("a", "b", "c", "d", "e", "f", "g", "h"),
			[]string{"01234567", "0123", "4567", "45", "4", "5", "67"}, []string{"ok", "ok", "ok", "ok", "record", "ok", "ok", "ok"}},
		{"events behind a refused one of their key leave every later part",
			&script{answer: refuseWith(kafka.InvalidRecord, "1")}, keyed("a", "b", "a", "b", "c", "b"),
			[]string{"012345", "012", "0", "12", "1", "2", "4"}, []string{"ok", "record", "ok", "record+", "ok", "record+"}},
		{"events without a key are behind nobody",
			&script{answer: refuseWith(kafka.InvalidRecord, "0")}, keyed("", "", ""),
			[]string{"012", "0", "12"}, []string{"record", "ok", "ok"}},
		{"two bad records of a key: the second never leaves alone",
			&script{answer: refuseWith(kafka.InvalidMessage, "0", "3")}, keyed("a", "b", "c", "a"),
			[]string{"0123", "01", "0", "1", "2"}, []string{"record", "ok", "ok", "record+"}},
		{"all bad",
			&script{answer: refuseWith(kafka.InvalidRecord, "0", "1")}, keyed("a", "b"),
			[]string{"01", "0", "1"}, []string{"record", "record"}},
		{"after a failure of the partition nothing more leaves",
			&script{answer: refuseWith(kafka.NotEnoughReplicas, "0")}, keyed("a", "b"),
			[]string{"01"}, []string{"partition", "partition"}},
		{"a failure in the midst of halving ends the rest, and keeps what a record's fault decided",
			&script{answer: func(ctx context.Context, r request) (produce.ResponsePartition, error) {
				if len(r.ids) == 2 && r.ids[0] == "2" {
					return no(kafka.NotLeaderForPartition), nil
				}
				return refuseWith(kafka.InvalidRecord, "1")(ctx, r)
			}}, keyed("a", "b", "c", "d", "b", "e", "f", "g"),
			[]string{"01234567", "0123", "01", "0", "1", "23"},
			[]string{"ok", "record", "partition", "partition", "record+", "partition+", "partition+", "partition+"}},
		{"a lost answer may have been written: the broker's fault, to be sent again",
			&script{answer: func(context.Context, request) (produce.ResponsePartition, error) {
				return produce.ResponsePartition{}, io.ErrUnexpectedEOF
			}}, keyed("a", "b"),
			[]string{"01"}, []string{"broker", "broker"}},
		{"a topic that is missing holds the topic",
			&script{topics: map[string]int{}}, keyed("a", "b"),
			nil, []string{"topic+", "topic+"}},
		{"a cluster whose layout cannot be read holds the lane",
			&script{metadata: func() error { return syscall.ECONNREFUSED }}, keyed("a"),
			nil, []string{"broker+"}},
		{"records that the broker names need no halving",
			&script{answer: func(_ context.Context, r request) (produce.ResponsePartition, error) {
				var named []produce.ResponseError
				for i, id := range r.ids {
					if id == "2" || id == "5" {
						named = append(named, produce.ResponseError{BatchIndex: int32(i), BatchIndexErrorMessage: "no"})
					}
				}
				if named == nil {
					return produce.ResponsePartition{}, nil
				}
				return produce.ResponsePartition{ErrorCode: int16(kafka.InvalidRecord), RecordErrors: named}, nil
			}}, keyed("a", "b", "a", "a", "c", "d"),
			[]string{"012345", "014"}, []string{"ok", "ok", "record", "record+", "ok", "record"}},
		{"a broker that names records that are not there is not believed",
			&script{answer: func(_ context.Context, r request) (produce.ResponsePartition, error) {
				if slices.Contains(r.ids, "1") {
					return produce.ResponsePartition{ErrorCode: int16(kafka.InvalidRecord), RecordErrors: []produce.ResponseError{{BatchIndex: 7}, {BatchIndex: -1}}}, nil
				}
				return produce.ResponsePartition{}, nil
			}}, keyed("a", "b"),
			[]string{"01", "0", "1"}, []string{"ok", "record"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.script.topics == nil {
				test.script.topics = one
			}
			answers := test.script.publisher(t, PublisherConfig{}).Publish(t.Context(), test.events)
			if diff := cmp.Diff(test.answers, outline(answers)); diff != "" {
				t.Errorf("answers: %s", diff)
			}
			if diff := cmp.Diff(test.requests, sent(test.script)); diff != "" {
				t.Errorf("requests: %s", diff)
			}
		})
	}
}

func TestPublisher_ANamedRecordsErrorCarriesTheBrokersWords(t *testing.T) {
	s := &script{topics: map[string]int{"t": 1}, answer: func(_ context.Context, r request) (produce.ResponsePartition, error) {
		if len(r.ids) == 1 {
			return produce.ResponsePartition{}, nil
		}
		return produce.ResponsePartition{ErrorCode: int16(kafka.InvalidRecord), ErrorMessage: "one or more records have been rejected",
			RecordErrors: []produce.ResponseError{{BatchIndex: 0, BatchIndexErrorMessage: "compacted topic"}}}, nil
	}}
	err := s.publisher(t, PublisherConfig{}).Publish(t.Context(), keyed("", "a"))[0]
	if !errors.Is(err, kafka.InvalidRecord) || !strings.HasSuffix(err.Error(), ": compacted topic") || strings.Contains(err.Error(), "one or more") {
		t.Error(err)
	}
}

func TestPublisher_PartitionsArePublishedAtTheSameTimeAndEachInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		together := make(chan struct{})
		var waiting atomic.Int32
		s := &script{topics: map[string]int{"t": 4, "u": 4}, answer: func(context.Context, request) (produce.ResponsePartition, error) {
			if waiting.Add(1) == 8 {
				close(together)
			}
			<-together // a deadlock, which synctest reports, unless all eight are under way
			return produce.ResponsePartition{}, nil
		}}
		var events []holdfast.Event
		want := map[partitionName][]string{}
		for i := range 400 {
			e := holdfast.Event{Topic: []string{"t", "u"}[i%2], ID: fmt.Sprint(i), Key: fmt.Sprint(i % 37)}
			events = append(events, e)
			p := partitionName{e.Topic, Murmur2(e, 4)}
			want[p] = append(want[p], e.ID)
		}
		for i, err := range s.publisher(t, PublisherConfig{}).Publish(t.Context(), events) {
			if err != nil {
				t.Errorf("event %d: %v", i, err)
			}
		}
		if diff := cmp.Diff(want, s.log); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPublisher_NoMorePartitionsAtOnceThanParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		s := &script{topics: map[string]int{"t": 20}, answer: func(context.Context, request) (produce.ResponsePartition, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return produce.ResponsePartition{}, nil
		}}
		var events []holdfast.Event
		for i := range 500 {
			events = append(events, holdfast.Event{Topic: "t", ID: fmt.Sprint(i)})
		}
		s.publisher(t, PublisherConfig{Parallel: 3}).Publish(t.Context(), events)
		if most.Load() != 3 || len(s.requests) != 20 {
			t.Errorf("%d at once, %d requests", most.Load(), len(s.requests))
		}
	})
}

func TestPublisher_OneMissingTopicDoesNotHoldUpTheOthers(t *testing.T) {
	s := &script{topics: map[string]int{"t": 1}}
	events := keyed("a", "b", "c")
	events[1].Topic = "missing"
	answers := s.publisher(t, PublisherConfig{}).Publish(t.Context(), events)
	if diff := cmp.Diff([]string{"ok", "topic+", "ok"}, outline(answers)); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(answers[1], kafka.UnknownTopicOrPartition) || !strings.Contains(answers[1].Error(), "create the topic") {
		t.Error(answers[1])
	}
}

func TestPublisher_OneFailingPartitionDoesNotHoldUpTheOthers(t *testing.T) {
	s := &script{topics: map[string]int{"t": 2}, answer: func(_ context.Context, r request) (produce.ResponsePartition, error) {
		if r.partition == 1 {
			return no(kafka.LeaderNotAvailable), nil
		}
		return produce.ResponsePartition{}, nil
	}}
	k := s.publisher(t, PublisherConfig{PartitionFunc: func(e holdfast.Event, _ int) int { return int(e.Key[0] - 'a') }})
	if diff := cmp.Diff([]string{"ok", "partition", "ok"}, outline(k.Publish(t.Context(), keyed("a", "b", "a")))); diff != "" {
		t.Error(diff)
	}
}

func TestPublisher_LongPagesAreCutIntoBatchesAndSentOneAfterTheOther(t *testing.T) {
	s := &script{topics: map[string]int{"t": 1}}
	events := keyed("a", "b", "c", "d", "e")
	for i := range events {
		events[i].Payload = make([]byte, 400)
	}
	events[3].Payload = make([]byte, 5000) // longer than the limit: alone, for the broker to decide
	answers := s.publisher(t, PublisherConfig{MaxRequestBytes: 1200}).Publish(t.Context(), events)
	if diff := cmp.Diff([]string{"ok", "ok", "ok", "ok", "ok"}, outline(answers)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"01", "2", "3", "4"}, sent(s)); diff != "" {
		t.Error(diff)
	}
	if s.overlaps != 0 {
		t.Error("a batch left before the one in front of it was acknowledged")
	}
}

func TestPublisher_AfterAFailedBatchTheLaterOnesOfItsPartitionAreNotSent(t *testing.T) {
	s := &script{topics: map[string]int{"t": 1}, answer: refuseWith(kafka.NotEnoughReplicas, "1")}
	events := keyed("a", "b", "c")
	for i := range events {
		events[i].Payload = make([]byte, 900)
	}
	answers := s.publisher(t, PublisherConfig{MaxRequestBytes: 1024}).Publish(t.Context(), events)
	if diff := cmp.Diff([]string{"ok", "partition", "partition+"}, outline(answers)); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(answers[2], answers[1]) {
		t.Errorf("the third does not wrap the second's error: %v", answers[2])
	}
}

func TestPublisher_ABatchLimitOfTheTopicIsLearnedAndKept(t *testing.T) {
	const limit = 100 // events
	s := &script{topics: map[string]int{"t": 1}, answer: func(_ context.Context, r request) (produce.ResponsePartition, error) {
		if len(r.ids) > limit {
			return no(kafka.MessageSizeTooLarge), nil
		}
		return produce.ResponsePartition{}, nil
	}}
	k := s.publisher(t, PublisherConfig{})
	var events []holdfast.Event
	for i := range 800 {
		events = append(events, holdfast.Event{Topic: "t", ID: fmt.Sprintf("%08d", i), Payload: make([]byte, 100)})
	}
	for range 2 {
		for _, err := range k.Publish(t.Context(), events) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	// 800, 400, 200, then eight or nine of 100 or less; the second page knows.
	if n := len(s.requests); n > 3+2*9 {
		t.Errorf("%d requests", n)
	}
	var twice []string
	for range 2 {
		for _, e := range events {
			twice = append(twice, e.ID)
		}
	}
	if !slices.Equal(twice, s.log[partitionName{"t", 0}]) {
		t.Error("the log is not in order")
	}
}

func TestPublisher_PartitionSaysWhereAnEventWouldGoOnceItsTopicIsKnown(t *testing.T) {
	s := &script{topics: map[string]int{"t": 8}}
	k := s.publisher(t, PublisherConfig{})
	e := keyed("a")[0]
	if p, n := k.Partition(e); p != 0 || n != 0 {
		t.Error("known before it was asked for")
	}
	k.Publish(t.Context(), []holdfast.Event{e})
	if p, n := k.Partition(e); n != 8 || p != Murmur2(e, 8) || p != s.requests[0].partition {
		t.Errorf("partition %d of %d", p, n)
	}
}

func TestPublisher_APartitionerThatAnswersNonsenseHoldsTheTopic(t *testing.T) {
	s := &script{topics: map[string]int{"t": 2, "u": 2}}
	k := s.publisher(t, PublisherConfig{PartitionFunc: func(e holdfast.Event, n int) int {
		if e.Topic == "t" && e.Key == "b" {
			return n
		}
		return 0
	}})
	events := keyed("a", "b", "c")
	events[2].Topic = "u"
	answers := k.Publish(t.Context(), events)
	if diff := cmp.Diff([]string{"topic+", "topic+", "ok"}, outline(answers)); diff != "" {
		t.Error(diff)
	}
	if p, n := k.Partition(events[1]); p != 0 || n != 0 {
		t.Errorf("partition %d of %d", p, n)
	}
	if !strings.Contains(answers[0].Error(), "PartitionFunc answered 2 of 2") {
		t.Error(answers[0])
	}
}

func TestPublisher_ATransportThatSendsARequestTwiceSendsTheSameRecordsTwice(t *testing.T) {
	r := new(recordReader)
	r.reset(keyed("a", "b"), []int32{0, 1})
	for range 2 {
		n := 0
		for _, err := r.ReadRecord(); err != io.EOF; _, err = r.ReadRecord() {
			n++
		}
		if n != 2 {
			t.Errorf("%d records", n)
		}
	}
}
