package publishertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func (s *suite) eventsArriveAsGiven() {
	topic := s.topic(2)
	full := event(topic, "full", "k")
	bare := holdfast.Event{ID: "bare", Type: "t", Topic: topic, Payload: []byte{0, 0xff, '\n'}}
	tombstone, empty := event(topic, "tombstone", "k"), event(topic, "empty", "k")
	tombstone.Payload, empty.Payload = nil, []byte{}
	text := event(topic, "text", "schlüssel")
	text.Headers = map[string]string{"empty": "", "b": "ü", "a": "1"}
	binary := event(topic, "binary", "data:;base64,AAH/") // the text of the bytes 0, 1 and 255
	want := []holdfast.Event{full, bare, tombstone, empty, text, binary}
	s.publishAll(want)
	got := map[string]holdfast.Event{}
	for _, events := range s.read(topic) {
		for _, e := range events {
			got[e.ID] = e
		}
	}
	for _, e := range want {
		switch found, ok := got[e.ID]; {
		case !ok:
			s.Errorf("event %s is acknowledged and not in the log", e.ID)
		case !same(found, e):
			s.Errorf("event %s was given as %+v and arrived as %+v", e.ID, e, found)
		}
	}
	if len(got) > len(want) {
		s.Errorf("%d events were given, and %d arrived", len(want), len(got))
	}
}

func (s *suite) oneAnswerEach() {
	topic, other := s.topic(3), s.topic(1)
	for _, n := range []int{0, 1, 2, 100} {
		var events []holdfast.Event
		for i := range n {
			to := topic
			if i%7 == 3 {
				to = other
			}
			events = append(events, event(to, fmt.Sprint(i), fmt.Sprint(i%5)))
		}
		s.publish(s.Context(), s.o.Publisher, events)
	}
}

func (s *suite) keysStayInOrder() {
	topic := s.topic(3)
	want := map[string][]string{}
	for page := range 5 {
		var events []holdfast.Event
		for i := range 100 {
			e := event(topic, fmt.Sprintf("%d-%03d", page, i), fmt.Sprint("k", i%9))
			events = append(events, e)
			want[e.Key] = append(want[e.Key], e.ID)
		}
		s.publishAll(events)
	}
	got := s.ids(topic)
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			s.Errorf("the events of key %s stand in the log as %v, want %v", key, got[key], ids)
		}
	}
}

func (s *suite) keysStayInPlace() {
	topic := s.topic(4)
	for range 3 {
		var events []holdfast.Event
		for i := range 40 {
			events = append(events, event(topic, fmt.Sprint(i), fmt.Sprint("k", i%10)))
		}
		s.publishAll(events)
	}
	places := map[string]int{}
	for partition, events := range s.read(topic) {
		for _, e := range events {
			if at, seen := places[e.Key]; seen && at != partition {
				s.Fatalf("key %s is in partition %d and in %d", e.Key, at, partition)
			}
			places[e.Key] = partition
		}
	}
}

func (s *suite) refusalHoldsItsKey() {
	var topic string
	var events []holdfast.Event
	answers := s.undisturbed(func() []error {
		topic = s.topic(1)
		events = []holdfast.Event{event(topic, "1", "a"), s.refused(topic, "2", "a"), event(topic, "3", "a"), event(topic, "4", "b"), event(topic, "5", "a")}
		return s.publish(s.Context(), s.o.Publisher, events)
	})
	if answers[0] != nil {
		s.Errorf("the event before the refused one: %v", answers[0])
	}
	if got := publish.FaultOf(answers[1]); got != publish.FaultRecord {
		s.Errorf("an event that the broker never takes is the fault of %q, want %q: %v", got, publish.FaultRecord, answers[1])
	}
	for _, i := range []int{2, 4} {
		if !wrapsAnother(answers[i], answers[1]) {
			s.Errorf("event %s comes after a refused one of its key: its answer must wrap the refused one's, and is %v", events[i].ID, answers[i])
		}
	}
	if got := s.ids(topic)["a"]; !slices.Equal(got, []string{"1"}) {
		s.Errorf("after event 1 of the key one is refused, and the log holds %v", got)
	}
}

func (s *suite) refusalHoldsNothingElse() {
	var topic, other string
	var events []holdfast.Event
	answers := s.undisturbed(func() []error {
		topic, other = s.topic(1), s.topic(1)
		events = []holdfast.Event{s.refused(topic, "1", "a"), event(topic, "2", "b"), event(other, "3", "a"), event(topic, "4", ""),
			s.refused(topic, "5", ""), event(topic, "6", ""), event(topic, "7", "b")}
		return s.publish(s.Context(), s.o.Publisher, events)
	})
	for _, i := range []int{1, 2, 3, 5, 6} {
		if answers[i] != nil {
			s.Errorf("event %s, of topic %s and key %q, is not acknowledged beside a refused one: %v", events[i].ID, events[i].Topic, events[i].Key, answers[i])
		}
	}
	here, there := s.ids(topic), s.ids(other)
	slices.Sort(here[""]) // they have no order
	if !slices.Equal(here["b"], []string{"2", "7"}) || !slices.Equal(here[""], []string{"4", "6"}) || !slices.Equal(there["a"], []string{"3"}) {
		s.Errorf("the logs hold %v and %v", here, there)
	}
}

func (s *suite) refusalIsForgotten() {
	answers := s.undisturbed(func() []error {
		topic := s.topic(1)
		first := s.publish(s.Context(), s.o.Publisher, []holdfast.Event{s.refused(topic, "1", "a")})
		return append(first, s.publish(s.Context(), s.o.Publisher, []holdfast.Event{event(topic, "2", "a")})...)
	})
	if answers[0] == nil {
		s.Error("the broker took it")
	}
	if answers[1] != nil {
		s.Errorf("a good event of the key, in the next call: %v", answers[1])
	}
}

func (s *suite) missingTopic() {
	answers := s.undisturbed(func() []error {
		topic := s.topic(1)
		return s.publish(s.Context(), s.o.Publisher, []holdfast.Event{event(topic, "1", "a"), event(s.o.Missing, "2", "a"), event(topic, "3", "a")})
	})
	if answers[0] != nil || answers[2] != nil {
		s.Errorf("the events of another topic: %v, %v", answers[0], answers[2])
	}
	if got := publish.FaultOf(answers[1]); got != publish.FaultTopic {
		s.Errorf("it is the fault of %q, want %q: %v", got, publish.FaultTopic, answers[1])
	}
}

func (s *suite) unreachable() {
	for i, err := range s.publish(context.Background(), s.o.Unreachable, []holdfast.Event{event("orders", "1", "a"), event("orders", "2", "b")}) {
		if got := publish.FaultOf(err); got != publish.FaultBroker {
			s.Errorf("event %d: it is the fault of %q, want %q: attempts of events are not spent on outages: %v", i, got, publish.FaultBroker, err)
		}
	}
}

func (s *suite) cancelled() {
	topic := s.topic(2)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	var events []holdfast.Event
	for i := range 20 {
		events = append(events, event(topic, fmt.Sprint(i), fmt.Sprint(i%3)))
	}
	answers := s.publish(ctx, s.o.Publisher, events)
	got := s.ids(topic)
	for i, err := range answers {
		switch arrived := slices.Contains(got[events[i].Key], events[i].ID); {
		case err == nil && !arrived:
			s.Errorf("event %s is acknowledged and not in the log", events[i].ID)
		case publish.FaultOf(err) == publish.FaultRecord:
			s.Errorf("event %s is refused because the call was cancelled: that spends its attempts: %v", events[i].ID, err)
		}
	}
	s.publishAll(events) // what was not acknowledged can be sent again
}

func (s *suite) concurrent() {
	topic := s.topic(4)
	const lanes, pages, page = 8, 3, 30
	want := map[string][]string{}
	var calls sync.WaitGroup
	var mu sync.Mutex
	for lane := range lanes {
		var events []holdfast.Event
		for i := range pages * page {
			e := event(topic, fmt.Sprintf("%d-%03d", lane, i), fmt.Sprintf("%d-%d", lane, i%4))
			events = append(events, e)
			want[e.Key] = append(want[e.Key], e.ID)
		}
		calls.Go(func() {
			for p := range pages {
				left := events[p*page : (p+1)*page]
				for end := time.Now().Add(patience); len(left) > 0 && time.Now().Before(end); {
					answers := s.o.Publisher.Publish(s.Context(), left)
					var again []holdfast.Event
					for i, err := range answers {
						if err != nil && i < len(left) {
							again = append(again, left[i])
						}
					}
					left = again
				}
				if len(left) > 0 {
					mu.Lock()
					s.Errorf("%d events are not acknowledged after %s", len(left), patience)
					mu.Unlock()
					return
				}
			}
		})
	}
	calls.Wait()
	got := s.ids(topic)
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			s.Errorf("the events of key %s stand in the log as %v, want %v", key, got[key], ids)
		}
	}
}

func (s *suite) eventsUnchanged() {
	topic := s.topic(2)
	var events, before []holdfast.Event
	for i := range 20 {
		events = append(events, event(topic, fmt.Sprint(i), fmt.Sprint(i%3)))
		before = append(before, event(topic, fmt.Sprint(i), fmt.Sprint(i%3)))
	}
	s.publishAll(events)
	for i := range events {
		if !same(events[i], before[i]) {
			s.Errorf("event %d was %+v, and is %+v after the call", i, before[i], events[i])
		}
	}
}
