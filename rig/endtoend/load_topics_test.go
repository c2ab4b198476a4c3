package endtoend

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// recreate deletes the topic and makes it again, empty. The truth about its old events goes with them.
func (co *consumers) recreate(between func()) {
	co.Helper()
	ctx := co.Context()
	if err := co.Cluster.Server.DeleteTopic(ctx, co.Topic()); err != nil {
		co.Fatal(err)
	}
	if between != nil {
		between()
	}
	// The name is free a moment after the topic is gone.
	co.Await("the topic can be recreated", func() bool { return co.Cluster.Server.CreateTopic(ctx, co.Topic(), co.partitions, nil) == nil })
}

// forgetOld takes what was done before a topic was recreated out of the truth: Kafka has no record of it any more.
func (co *consumers) forgetOld() {
	co.Helper()
	if missing := co.Count("select count(*) from written w where not exists (select from effect e where e.id = w.id)"); missing != 0 {
		co.Errorf("%d events of the old topic were not handled", missing)
	}
	pgtest.Exec(co, co.Db, "truncate written, effect")
	co.mu.Lock()
	defer co.mu.Unlock()
	clear(co.numbers)
}

// startAgain makes the topic again, with n events, after all of the old one were handled.
func (co *consumers) startAgain(n int) {
	co.Helper()
	co.recreate(nil)
	co.forgetOld()
	co.publish(co.some(n, 10, "")...)
}

// remedyHolds does what the error tells an operator to do, and a consumer then handles all there is.
func (co *consumers) remedyHolds() {
	co.Helper()
	pgtest.Exec(co, co.Db, "delete from holdfast.consumer_position where topic = $1", co.Topic())
	v := co.ends(co.Consume("billing", endtoend.EffectOf("billing"), nil))
	co.Logf("after the remedy: %s", v)
	v.MustHold(co)
}

func TestLoadTopics_ATopicMadeAgainShorterIsRefusedWithItsRemedy(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 1)
	s.publish(s.some(100, 10, "")...)
	stop := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	s.ends(stop).MustHold(t)
	s.startAgain(40)

	err := s.refuses(s.consumer(endtoend.EffectOf("billing"), nil), s.group())
	t.Logf("it says: %v", err)
	if !errors.Is(err, source.ErrOffsetOutOfRange) || !strings.Contains(err.Error(), "then the partition's row of consumer_position") {
		t.Errorf("the topic was recreated: %v", err)
	}
	s.remedyHolds()
}

// The position is an offset of the new log, too: nothing but the group's committed offset, which Kafka forgets with the
// topic, tells the two apart.
func TestLoadTopics_ATopicMadeAgainLongerLosesNothingInSilence(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 1)
	s.publish(s.some(100, 10, "")...)
	stop := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	s.ends(stop).MustHold(t)
	s.startAgain(150)
	s.Await("Kafka has forgotten the group's offset", func() bool {
		offset, known := s.Committed(s.Topic(), 0)
		return known && offset < 0
	})

	var o outcomes
	stop = s.Consume("billing", endtoend.EffectOf("billing"), o.observe)
	s.Await("the events past the old position have their effects", func() bool { return s.Count("select count(*) from effect") == 50 })
	stop()
	t.Logf("outcomes %s", &o)
	s.staleAreReplayed(100)
}

// staleAreReplayed checks that everything below the old position is a letter, and that a replay hands it to its handler.
func (co *consumers) staleAreReplayed(want int) {
	co.Helper()
	if n := co.Count("select count(*) from holdfast.letter where state = 'open' and reason like 'stale%'"); n != int64(want) {
		co.Fatalf("of %d events below the old position %d are letters, the others are lost without a word", want, n)
	}
	stop := co.Consume("billing", endtoend.EffectOf("billing"), nil)
	co.replayAll(co.letters(), want)
	co.Await("all have their effects", func() bool {
		return co.Count("select count(*) from effect") == co.Count("select count(*) from written")
	})
	v := co.ends(stop)
	co.Logf("after a replay: %s", v)
	v.Except(oracle.OutOfTurn).MustHold(co) // Letters are late for their keys' order.
}

// The new log is longer than the position before the node has looked: to read on would skip what lies below.
func TestLoadTopics_ATopicMadeAgainWhileConsumedLosesNothingInSilence(t *testing.T) {
	skip.InShort(t, "it takes 11 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 1)
	s.publish(s.some(20, 10, "")...)
	running := s.startNode(node{Session: time.Minute, Attempts: 10})
	s.Await("the old topic is handled", func() bool { return s.positions()[0] == 20 })
	s.recreate(func() {
		s.Await("the node has met the missing topic, and given its partition back", func() bool {
			return s.Count("select count(*) from holdfast.consumer_position where clean") == 1
		})
		// It may not look at the new one before that has its events.
		s.signal(running, syscall.SIGSTOP)
	})
	s.forgetOld()
	s.publish(s.some(150, 10, "")...)
	s.signal(running, syscall.SIGCONT)
	s.Await("the events past the old position have their effects", func() bool { return s.Count("select count(*) from effect") == 130 })
	if err := running.quit(); err != nil {
		t.Errorf("the node, told to stop: %v", err)
	}
	s.staleAreReplayed(20)
}

func TestLoadTopics_ATopicMadeAgainUnderARunningConsumerIsNoticed(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 1)
	s.publish(s.some(100, 10, "")...)
	in := s.consumer(endtoend.EffectOf("billing"), nil)
	err := s.holds(func(ctx context.Context) error { return s.consumeGroup(ctx, in, s.group()) }, func() {
		s.Await("the old topic is handled", func() bool { return s.positions()[0] == 100 })
		s.startAgain(40)
	})
	t.Logf("it says: %v", err)
	if !errors.Is(err, source.ErrOffsetOutOfRange) {
		t.Errorf("the topic was recreated: %v", err)
	}
	s.remedyHolds()
}

func TestLoadTopics_ATopicThatIsMissingForAWhileIsReadWhenItIsThere(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 1)
	stop := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	s.publish(s.some(20, 5, "")...)
	s.Arrive("billing")
	stop()
	// A consumer that has a position in no log yet, and a topic that comes later.
	pgtest.Exec(t, s.Db, "delete from holdfast.consumer_position")
	s.recreate(func() {
		stop = s.Consume("billing", endtoend.EffectOf("billing"), nil)
		s.Await("the node has joined", func() bool { return s.members() == 1 })
	})
	s.forgetOld()
	s.publish(s.some(30, 5, "")...)
	v := s.ends(stop)
	t.Log(v)
	v.MustHold(t)
}
