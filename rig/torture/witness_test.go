//go:build linux

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

func TestWitness_AProducerThatCommitsNothingAnyMoreIsSilent(t *testing.T) {
	t.Parallel()
	healed := time.Now()
	after := healed.Add(time.Second)
	for name, c := range map[string]struct {
		e      history.Entry
		silent bool
	}{
		"a commit after the heal":                  {history.Entry{At: after, Op: history.Commit, How: history.OK, PID: 7}, false},
		"a commit before the heal":                 {history.Entry{At: healed, Op: history.Commit, How: history.OK, PID: 7}, true},
		"a commit that was refused":                {history.Entry{At: after, Op: history.Commit, How: history.Failed, PID: 7}, true},
		"a commit without an answer":               {history.Entry{At: after, Op: history.Commit, How: history.Unknown, PID: 7}, true},
		"a commit of the process before it":        {history.Entry{At: after, Op: history.Commit, How: history.OK, PID: 6}, true},
		"an event that is about to be and no more": {history.Entry{At: after, Op: history.Intend, PID: 7}, true},
	} {
		w := newWitness(t.TempDir())
		c.e.Actor = "producer/0"
		w.take(c.e)
		if got := w.silent([]oracle.Process{{Actor: "producer/0", PID: 7}}, healed); (len(got) == 1) != c.silent {
			t.Errorf("%s: silent are %q", name, got)
		}
	}
}

func TestWitness_ARelayOrAConsumerThatDoesNothingForTenFaultsIsIdle(t *testing.T) {
	t.Parallel()
	w, places, now := &idleness{}, []string{"consumer/0", "relay/0"}, time.Now()
	stirred := map[string]time.Time{"relay/0": now, "consumer/0": now}
	for fault := 1; fault <= 3*idleAfter; fault++ {
		now = now.Add(time.Second)
		if fault < idleAfter || fault > 2*idleAfter { // it rests for ten
			stirred["relay/0"] = now.Add(-time.Millisecond)
		}
		idle := w.after(now, places, stirred)
		var want []string
		switch fault {
		case 1 + idleAfter:
			want = []string{"consumer/0 has done nothing for 10 faults"}
		case 2*idleAfter - 1:
			want = []string{"relay/0 has done nothing for 10 faults"}
		}
		if !slices.Equal(idle, want) {
			t.Errorf("after fault %d: %q, want %q", fault, idle, want)
		}
	}
}

func TestWitness_OneThatNeverDidAnythingIsNamed(t *testing.T) {
	t.Parallel()
	w := newWitness(t.TempDir())
	for actor, op := range map[string]history.Op{"relay/0": history.Claim, "relay/1": history.Begin, "consumer/0": history.Receive, "consumer/1": history.Log} {
		w.take(history.Entry{At: time.Now(), Actor: actor, Op: op})
	}
	want := []string{"consumer/1 has done nothing at all", "relay/1 has done nothing at all"}
	if got := w.never([]string{"consumer/0", "consumer/1", "relay/0", "relay/1"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWitness_ARefusalIsWhatTheBrokerSaid(t *testing.T) {
	t.Parallel()
	w := newWitness(t.TempDir())
	for _, e := range []history.Entry{
		{Op: history.Acknowledge, How: history.OK},
		{Op: history.Acknowledge, How: history.Unknown, Text: "not sent to topic orders: " + kafka.MessageSizeTooLarge.Error()},
		{Op: history.Acknowledge, How: history.Unknown, Text: "publish to topic orders: EOF"},
		{Op: history.Log, Text: kafka.InvalidRecord.Error()},
	} {
		w.take(e)
	}
	if w.refused[kafka.MessageSizeTooLarge] != 1 || len(w.refused) != 1 {
		t.Errorf("refused are %v", w.refused)
	}
}
