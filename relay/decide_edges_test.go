package relay

import (
	"testing"

	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestDecideEdges_AnAnswerIsAnAcknowledgementOnlyIfNothingIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer
		want bool
	}{{answer{}, true}, {answer{fault: publish.FaultBroker}, false}, {answer{err: errAny}, false}, {answer{publish.FaultBroker, errAny}, false}} {
		if c.acknowledged() != c.want {
			t.Errorf("%+v is an acknowledgement: %v", c.answer, !c.want)
		}
	}
}

// Events without a key wait for their topic and their partition only.
func TestDecideEdges_AnEventWithoutAKeyWaitsInNoQueue(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, c := range []struct {
		name                         string
		key                          string
		replay                       bool
		queue, topic, partition, all bool
		want                         disposition
	}{
		{"a key whose queue waits", "k", no, yes, yes, yes, yes, follows},
		{"a replay whose queue waits", "k", yes, yes, yes, yes, yes, first},
		{"no key, whatever queues wait", "", no, yes, no, no, yes, undecided},
		{"no key, of a held topic", "", no, yes, yes, yes, yes, topicHeld},
		{"no key, to a held partition", "", no, yes, no, yes, yes, partitionDown},
		{"a key of a topic whose queues are not counted", "k", no, no, no, no, yes, follows},
		{"a replay of such a topic", "k", yes, no, no, no, yes, first},
		{"a key that nothing holds", "k", no, no, no, no, no, undecided},
	} {
		w := waiting{queue: func(queue) bool { return c.queue }, topic: func(string) bool { return c.topic },
			partition: func(spot) bool { return c.partition }, whole: func(string) bool { return c.all }}
		if got := w.disposition(item{queue: queue{"t", c.key}, replay: c.replay}, spot{"t", 0}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDecideEdges_TheLastAttemptIsTheOneThatTheLimitNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		attempts, max int
		want          bool
	}{{1, 1, true}, {0, 1, false}, {2, 1, true}, {4, 5, false}, {5, 5, true}, {100, 0, false}, {100, -1, false}, {0, 0, false}} {
		if spent(c.attempts, c.max) != c.want {
			t.Errorf("%d attempts of %d are the last: %v", c.attempts, c.max, !c.want)
		}
	}
	for relays, want := range map[int]int{-1: 8, 0: 8, 1: 8, 2: 4, 3: 3, 8: 1, 9: 1} {
		if got := share(8, relays); got != want {
			t.Errorf("the share of each of %d relays is %d, want %d", relays, got, want)
		}
	}
}

func TestDecideEdges_TheRingTurnsToTheFirstOfTheSmallest(t *testing.T) {
	t.Parallel()
	none := make([]bool, 4)
	for name, c := range map[string]struct {
		current int
		bytes   []int64
		want    int
	}{"the first is the smallest": {3, []int64{1, 5, 7, 100}, 0}, "two are": {0, []int64{100, 9, 5, 5}, 2}, "the last is": {1, []int64{9, 100, 7, 5}, 3}} {
		if got, turned := nextSegment(c.current, c.bytes, none, 100); got != c.want || !turned {
			t.Errorf("%s: it turns to %d (%v), want %d", name, got, turned, c.want)
		}
	}
	if got, turned := nextSegment(2, []int64{0, 0, 99, 0}, []bool{true, true, false, true}, 100); got != 2 || turned {
		t.Errorf("a segment that is not full is left for %d", got)
	}
}
