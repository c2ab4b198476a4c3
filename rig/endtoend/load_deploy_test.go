package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestLoadDeploy_ARollingDeployWithANewEventTypeLosesAndReordersNothing(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 4)
	lasting := 2500 * time.Millisecond
	if testing.Short() {
		lasting = 800 * time.Millisecond
	}
	var o outcomes // of the old nodes
	old := func() func() { return s.Consume("billing", endtoend.EffectOf("billing"), o.observe) }
	modern := func() (stop func()) {
		in := s.consumer(endtoend.EffectOf("billing"), nil)
		in.Handle("renamed", endtoend.EffectOf("billing"))
		return s.Run("consumer billing", func(ctx context.Context) error { return s.consumeGroup(ctx, in, s.group()) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	// 1. Two old nodes at work, a new one comes.
	olds := []func(){old(), old()}
	wait := s.flow(ctx, 100, s.any(30, ""))
	s.Await("events flow", func() bool { return s.Count("select count(*) from effect") > 50 })
	moderns := []func(){modern()}
	s.Await("the new type is declared", func() bool {
		return s.Count("select count(*) from holdfast.consumer_type where type = 'renamed' and seen_until > now()") > 0
	})
	cancel()
	wait()

	// 2. Producers write both types, for the same keys; old and new nodes share the partitions.
	both := func(rng *rand.Rand) holdfast.Event {
		e := s.next(fmt.Sprint("k", rng.IntN(30)), "")
		if rng.IntN(2) == 0 {
			e.Type = "renamed"
		}
		return e
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	wait = s.flow(ctx, 100, both)
	s.Await("an old node has stored events for the new one", func() bool { return o.of(inbox.Stored) > 10 })
	after(ctx, lasting)

	// 3. The old nodes go one by one, and new ones come.
	for _, stop := range olds {
		stop()
		moderns = append(moderns, modern())
		after(ctx, lasting)
	}
	cancel()
	wait()
	v := s.ends(moderns...)
	t.Logf("events of the old type: %s; of the new one: %s; outcomes of the old nodes %s; %s",
		s.delays("w.type = 'changed'"), s.delays("w.type = 'renamed'"), &o, v)
	v.MustHold(t)
	if n := s.Count("select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters", n)
	}
}

func TestLoadDeploy_APayloadThatEndsEveryProcessBecomesADeadLetter(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 2)
	const attempts = 3
	n := node{Session: 3 * time.Second, Attempts: attempts}

	// The deadly one is neither the first nor the last of its key, its partition, or what the nodes are working on.
	events := s.some(150, 12, "work")
	events = append(events, s.next("deadly", ""), s.next("deadly", "exit"), s.next("deadly", ""))
	events = append(events, s.some(150, 12, "work")...)
	deadly := events[151].ID
	nodes := []*process{s.startNode(n), s.startNode(n)}
	s.Await("each node has a partition", func() bool { // Else one would leave in the midst of it, perhaps not in order.
		return s.Count("select count(distinct pid) from (select distinct on (partition) pid from report where what = 'assigned' order by partition, epoch desc) x") == 2
	})
	s.publish(events...)

	begun := time.Now()
	ends := 0
	s.Await("the letter, and the effects of all others", func() bool {
		for i, proc := range nodes {
			select {
			case <-proc.done:
			default:
				continue
			}
			var exit *exec.ExitError
			if !errors.As(proc.err, &exit) || exit.ExitCode() != 7 {
				t.Fatalf("a node ended: %v", proc.err)
			}
			ends++
			if ends > 3*attempts {
				t.Fatalf("the nodes have ended %d times, and there is no letter", ends)
			}
			nodes[i] = s.startNode(n)
		}
		return s.Count("select count(*) from holdfast.letter") == 1 && s.Count("select count(*) from effect") == int64(len(events)-1)
	})
	took := time.Since(begun)
	var stops []func()
	for _, proc := range nodes {
		stops = append(stops, func() {
			if err := proc.quit(); err != nil {
				t.Errorf("a node, told to stop: %v", err)
			}
		})
	}
	v := s.ends(stops...)
	starts := s.Count("select count(*) from report where what = 'start' and id = $1", deadly)
	t.Logf("%d starts of the deadly handler ended as many processes, with %d attempts allowed; everything else was handled within %v; %s; %s",
		starts, attempts, took.Round(time.Millisecond), s.delays("true"), v)
	v.MustHold(t)
	s.fenced()
	if int64(ends) != starts {
		t.Errorf("%d processes ended, and %d handlers ended one", ends, starts)
	}
	// The first start, on a partition whose last owner had left in order, is not counted; the unclean end tells of it.
	if starts != attempts {
		t.Errorf("the deadly handler was started %d times, want %d", starts, attempts)
	}
	for _, l := range s.openLetters(s.letters()) {
		t.Logf("letter: %s, after %d attempts: %q", l.Reason, l.Attempts, l.Errors)
		if l.Event.ID != deadly || l.Consumer != "billing" || !strings.Contains(l.Reason, "ended the process") {
			t.Errorf("the letter is of %s: %s", l.Event.ID, l.Reason)
		}
	}
	if n := s.Count("select count(*) from holdfast.start"); n != 0 {
		t.Errorf("%d counts of starts were left behind", n)
	}
}
