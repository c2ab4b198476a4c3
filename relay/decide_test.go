package relay

import (
	"errors"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

var errAny = errors.New("no")

func itemsOf(keys ...string) []item {
	items := make([]item, len(keys))
	for i, k := range keys {
		topic := "t"
		if len(k) > 2 && k[1] == '/' {
			topic, k = k[:1], k[2:]
		}
		if k == "-" {
			k = ""
		}
		items[i] = item{queue: queue{topic, k}}
	}
	return items
}

func answersOf(faults ...publish.Fault) []answer {
	answers := make([]answer, len(faults))
	for i, f := range faults {
		if f != "" {
			answers[i] = answer{fault: f, err: errAny}
		}
	}
	return answers
}

// scene is what is parked or held in a test: queues, topics, and partition 0 of topics.
type scene struct {
	queues                    map[queue]bool
	topics, partitions, whole map[string]bool
}

func newScene() scene {
	return scene{queues: map[queue]bool{}, topics: map[string]bool{}, partitions: map[string]bool{}, whole: map[string]bool{}}
}

// send routes events that have no disposition yet, or are to be published again, and decides by what is answered for those
// that may be sent.
func (s scene) send(items []item, dispositions []disposition, answers []answer) (worst publish.Fault) {
	before := waiting{
		queue:     func(q queue) bool { return s.queues[q] },
		topic:     func(topic string) bool { return s.topics[topic] },
		partition: func(at spot) bool { return s.partitions[at.topic] },
		whole:     func(topic string) bool { return s.whole[topic] },
	}
	var sent []int
	var sentItems []item
	var sentAnswers []answer
	for i, it := range items {
		if dispositions[i] != undecided && dispositions[i] != again {
			continue
		}
		if dispositions[i] = before.disposition(it, spot{it.queue.topic, 0}); dispositions[i] == undecided {
			sent, sentItems, sentAnswers = append(sent, i), append(sentItems, it), append(sentAnswers, answers[i])
		}
	}
	decided := decide(sentItems, sentAnswers)
	var toSendAgain []answer
	for j, i := range sent {
		if dispositions[i] = decided[j]; decided[j] == again {
			toSendAgain = append(toSendAgain, sentAnswers[j])
		}
	}
	return summarize(toSendAgain).trouble.fault
}

func TestDecide_WhatTheAnswersOfACallSayTogether(t *testing.T) {
	t.Parallel()
	const ok, rec, top, par, bro = publish.Fault(""), publish.FaultRecord, publish.FaultTopic, publish.FaultPartition, publish.FaultBroker
	for _, c := range []struct {
		answers []publish.Fault
		answer  bool // the partition answers
		topic   bool // is missing
		trouble publish.Fault
	}{
		{nil, false, false, ""},
		{[]publish.Fault{ok}, true, false, ""},
		{[]publish.Fault{rec}, true, false, ""},
		{[]publish.Fault{top, top}, false, true, ""},
		{[]publish.Fault{par, ok}, true, false, par},
		{[]publish.Fault{par, bro, par}, false, false, bro},
		{[]publish.Fault{bro, par}, false, false, bro},
		{[]publish.Fault{top, bro, rec}, true, true, bro},
	} {
		said := summarize(answersOf(c.answers...))
		if said.answers != c.answer || (said.topic != nil) != c.topic || said.trouble.fault != c.trouble || said.trouble.acknowledged() != (c.trouble == "") {
			t.Errorf("%q: %+v", c.answers, said)
		}
	}
}

func TestDecide_DispositionsOfOnePage(t *testing.T) {
	t.Parallel()
	const ok, rec, top, par, bro = publish.Fault(""), publish.FaultRecord, publish.FaultTopic, publish.FaultPartition, publish.FaultBroker
	for _, c := range []struct {
		name    string
		keys    []string // "-" has no key; "x/k" is topic x
		parked  []string
		held    []string // topics
		down    []string // topics whose partition is held
		answers []publish.Fault
		want    []disposition
		worst   publish.Fault
	}{
		{name: "everything is acknowledged", keys: []string{"a", "b", "-"}, answers: []publish.Fault{ok, ok, ok}, want: []disposition{published, published, published}},
		{name: "a refused record is a head, what comes after it follows", keys: []string{"a", "b", "a", "a"}, answers: []publish.Fault{rec, ok, rec, ok},
			want: []disposition{recordRefused, published, follows, published}},
		{name: "what has no key is refused alone", keys: []string{"-", "-", "-"}, answers: []publish.Fault{rec, ok, rec}, want: []disposition{recordRefused, published, recordRefused}},
		{name: "with a parked queue nothing of its key is sent", keys: []string{"a", "b"}, parked: []string{"a"}, answers: []publish.Fault{ok, ok}, want: []disposition{follows, published}},
		{name: "one key in two topics is two keys", keys: []string{"x/a", "y/a"}, answers: []publish.Fault{rec, ok}, want: []disposition{recordRefused, published}},
		{name: "a held topic takes what has no key, too", keys: []string{"x/a", "x/-", "y/a"}, held: []string{"x"}, answers: []publish.Fault{ok, ok, ok},
			want: []disposition{topicHeld, topicHeld, published}},
		{name: "a parked queue comes before its held topic", keys: []string{"x/a"}, parked: []string{"x/a"}, held: []string{"x"}, answers: []publish.Fault{ok}, want: []disposition{follows}},
		{name: "a missing topic takes its later events along, whatever they answered", keys: []string{"x/a", "x/b", "x/-", "y/b"}, answers: []publish.Fault{top, bro, rec, ok},
			want: []disposition{topicHeld, topicHeld, topicHeld, published}},
		{name: "an outage holds everything", keys: []string{"a", "b"}, answers: []publish.Fault{bro, bro}, want: []disposition{again, again}, worst: bro},
		{name: "an outage of a partition holds its own events", keys: []string{"a", "b", "a"}, answers: []publish.Fault{par, ok, par}, want: []disposition{again, published, again}, worst: par},
		{name: "after one to publish again nothing of the key is refused", keys: []string{"a", "a"}, answers: []publish.Fault{par, rec}, want: []disposition{again, again}, worst: par},
		{name: "a held partition takes all of its events, with and without a key", keys: []string{"x/a", "x/-", "y/a"}, down: []string{"x"}, answers: []publish.Fault{ok, ok, ok},
			want: []disposition{partitionDown, partitionDown, published}},
		{name: "a parked queue comes before its held partition", keys: []string{"x/a"}, parked: []string{"x/a"}, down: []string{"x"}, answers: []publish.Fault{ok}, want: []disposition{follows}},
		{name: "a held topic comes before its held partition", keys: []string{"x/a"}, held: []string{"x"}, down: []string{"x"}, answers: []publish.Fault{ok}, want: []disposition{topicHeld}},
		{name: "the broker's outage is the worst", keys: []string{"a", "b", "c"}, answers: []publish.Fault{par, bro, par}, want: []disposition{again, again, again}, worst: bro},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newScene()
			for _, it := range itemsOf(c.parked...) {
				w.queues[it.queue] = true
			}
			for _, topic := range c.held {
				w.topics[topic] = true
			}
			for _, topic := range c.down {
				w.partitions[topic] = true
			}
			items := itemsOf(c.keys...)
			dispositions := make([]disposition, len(items))
			if worst := w.send(items, dispositions, answersOf(c.answers...)); worst != c.worst {
				t.Errorf("the worst fault is %q, want %q", worst, c.worst)
			}
			if !slices.Equal(dispositions, c.want) {
				t.Errorf("dispositions are %v, want %v", dispositions, c.want)
			}
		})
	}
}

func TestDecide_AReplayGoesInFrontOfItsQueueAndElseItsOwnWay(t *testing.T) {
	t.Parallel()
	items := itemsOf("a", "b", "a")
	items[0].replay, items[1].replay = true, true
	w := newScene()
	w.queues[queue{"t", "a"}] = true
	dispositions := make([]disposition, 3)
	w.send(items, dispositions, answersOf("", "", ""))
	if want := []disposition{first, published, follows}; !slices.Equal(dispositions, want) {
		t.Errorf("dispositions are %v, want %v", dispositions, want)
	}
}

// The properties hold whatever the publisher answers, over any number of tries. The model beside decide knows only
// queues as lists: it plays the dispositions and looks at what a consumer and the table would see.
func TestDecide_NoDispositionBreaksTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	faults := rapid.SampledFrom([]publish.Fault{"", "", publish.FaultRecord, publish.FaultTopic, publish.FaultPartition, publish.FaultBroker})
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "-", "x/a", "x/-", "y/b"}), 1, 25).Draw(t, "keys")
		items := itemsOf(keys...)
		w := newScene()
		for _, it := range items {
			if it.queue.ordered() && rapid.IntRange(0, 5).Draw(t, "parked") == 0 {
				w.queues[it.queue] = true
			}
		}
		if rapid.IntRange(0, 4).Draw(t, "held") == 0 {
			w.topics["x"] = true
		}
		for i := range items {
			items[i].replay = rapid.IntRange(0, 9).Draw(t, "replay") == 0
		}
		parked := maps.Clone(w.queues)
		held := maps.Clone(w.topics)
		dispositions := make([]disposition, len(items))
		for tries := 0; tries < 4; tries++ {
			before := slices.Clone(dispositions)
			answers := make([]answer, len(items))
			stuck := map[queue]publish.Fault{} // a publisher keeps its contract: after a refusal the same answer
			if tries == 3 {
				w.partitions["y"] = true
			}
			for i, it := range items {
				f := faults.Draw(t, "fault")
				if s, known := stuck[it.queue]; known && it.queue.ordered() {
					f = s
				}
				if f != "" && (dispositions[i] == undecided || dispositions[i] == again) {
					answers[i] = answer{fault: f, err: errAny}
					stuck[it.queue] = f
				}
			}
			worst := w.send(items, dispositions, answers)
			if (worst == "") == slices.Contains(dispositions, again) {
				t.Fatalf("the worst fault is %q with the dispositions %v", worst, dispositions)
			}
			for i, it := range items {
				was := before[i]
				sent := was == undecided || was == again
				if !sent && dispositions[i] != was {
					t.Fatalf("event %d was %v and became %v", i, was, dispositions[i])
				}
				if sent && dispositions[i] == published && answers[i].err != nil {
					t.Fatalf("event %d was answered %v and is %v", i, answers[i].err, dispositions[i])
				}
				if dispositions[i] == undecided || dispositions[i] == recordRefused && sent && answers[i].fault != publish.FaultRecord {
					t.Fatalf("event %d is %v after the answer %q", i, dispositions[i], answers[i].fault)
				}
				if w.topics[it.queue.topic] && sent && dispositions[i] == published {
					t.Fatalf("event %d is published into a held topic", i)
				}
				if !it.queue.ordered() {
					continue
				}
				for j := range i {
					if items[j].queue != it.queue {
						continue
					}
					head, mine := dispositions[j], dispositions[i]
					switch {
					case head == published:
					case mine == published:
						t.Fatalf("event %d is published, the undecided %d of its key before it is %v: %v", i, j, head, dispositions)
					case mine == recordRefused:
						t.Fatalf("event %d is the head of a queue after %d of its key, which is %v: %v", i, j, head, dispositions)
					case (head == again) != (mine == again):
						t.Fatalf("event %d is %v after %d of its key, which is %v: %v", i, mine, j, head, dispositions)
					}
				}
				if parked[it.queue] && dispositions[i] != follows && dispositions[i] != first {
					t.Fatalf("event %d is %v although its queue is parked", i, dispositions[i])
				}
				if held[it.queue.topic] && dispositions[i] == published {
					t.Fatalf("event %d is published into a held topic", i)
				}
			}
			if worst == "" {
				break
			}
			for i, it := range items { // as the lane remembers it
				switch dispositions[i] {
				case published, again:
				case topicHeld:
					w.topics[it.queue.topic] = true
					w.queues[it.queue] = true
				default:
					w.queues[it.queue] = true
				}
			}
		}
	})
}

func TestDecide_WhatBecomesOfParkedEventsThatWereTried(t *testing.T) {
	t.Parallel()
	const ok, rec, top, par, bro = publish.Fault(""), publish.FaultRecord, publish.FaultTopic, publish.FaultPartition, publish.FaultBroker
	for _, c := range []struct {
		name      string
		keys      []string
		attempts  []int
		answers   []publish.Fault
		permanent []bool
		max       int
		want      []outcome
	}{
		{"taken", []string{"a", "a"}, []int{1, 0}, []publish.Fault{ok, ok}, nil, 3, []outcome{acknowledged, acknowledged}},
		{"refused with attempts left", []string{"a", "a"}, []int{1, 0}, []publish.Fault{rec, rec}, nil, 3, []outcome{retryLater, untouched}},
		{"refused for the last time", []string{"a", "a"}, []int{2, 0}, []publish.Fault{rec, rec}, nil, 3, []outcome{dead, untouched}},
		{"refused for good", []string{"a"}, []int{0}, []publish.Fault{rec}, []bool{true}, 3, []outcome{dead}},
		{"without a limit", []string{"a"}, []int{math.MaxInt - 1}, []publish.Fault{rec}, nil, -1, []outcome{retryLater}},
		{"only the record's own fault spends attempts", []string{"a", "b", "c"}, []int{2, 2, 2}, []publish.Fault{top, par, bro}, nil, 3, []outcome{held, held, waits}},
		{"after a taken head a refusal counts", []string{"a", "a", "a"}, []int{1, 2, 0}, []publish.Fault{ok, rec, rec}, nil, 3, []outcome{acknowledged, dead, untouched}},
		{"without a key each is judged alone", []string{"-", "-"}, []int{0, 2}, []publish.Fault{rec, rec}, nil, 3, []outcome{retryLater, dead}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows := make([]retried, len(c.keys))
			for i, it := range itemsOf(c.keys...) {
				rows[i] = retried{it.queue, c.attempts[i]}
			}
			permanent := c.permanent
			if permanent == nil {
				permanent = make([]bool, len(rows))
			}
			if got := decideRetried(rows, answersOf(c.answers...), permanent, c.max); !slices.Equal(got, c.want) {
				t.Errorf("outcomes are %v, want %v", got, c.want)
			}
		})
	}
}

func TestDecide_SharesOfTheLanesCoverThemAllAndNoneTwice(t *testing.T) {
	t.Parallel()
	for lanes := 1; lanes <= 64; lanes++ {
		for relays := -1; relays <= 70; relays++ {
			n, mine := max(relays, 1), share(lanes, relays)
			if mine*n < lanes || (mine-1)*n >= lanes {
				t.Fatalf("%d relays share %d lanes by %d each", relays, lanes, mine)
			}
		}
	}
}

func TestDecide_ASlowSaveMakesSavesRare(t *testing.T) {
	t.Parallel()
	for last, want := range map[time.Duration]time.Duration{0: 50 * time.Millisecond, 400 * time.Microsecond: 50 * time.Millisecond, 4 * time.Millisecond: 400 * time.Millisecond} {
		if got := saveInterval(last); got != want {
			t.Errorf("after a save of %v the next comes after %v, want %v", last, got, want)
		}
	}
}

func TestDecide_TheRingTurnsToAnEmptySegmentAndElseToTheSmallest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		current int
		bytes   []int64
		next    int
		rotate  bool
	}{
		{"there is room", 1, []int64{0, 99, 0, 0}, 1, false},
		{"an empty one", 1, []int64{50, 100, 0, 0}, 2, true},
		{"the last one is empty", 0, []int64{100, 5, 5, 0}, 3, true},
		{"none is empty: the smallest", 2, []int64{70, 60, 100, 80}, 1, true},
		{"none is empty and all are larger", 2, []int64{170, 160, 100, 180}, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			empty := make([]bool, len(c.bytes))
			for i, n := range c.bytes {
				empty[i] = n == 0
			}
			if next, rotate := nextSegment(c.current, c.bytes, empty, 100); next != c.next || rotate != c.rotate {
				t.Errorf("rotates to %d (%v), want %d (%v)", next, rotate, c.next, c.rotate)
			}
		})
	}
}
