package turns

import (
	"testing"
	"testing/synctest"
)

func TestTurns_TurnsComeInTheOrderInWhichTheyWereAskedFor(t *testing.T) {
	turns := New(2)
	first, second, third, fourth := turns.Join(), turns.Join(), turns.Join(), turns.Join()
	came := func(turn Turn) bool {
		select {
		case <-turn:
			return true
		default:
			return false
		}
	}
	if !came(first) || !came(second) || came(third) || came(fourth) {
		t.Error("of four, the first two do not have the two turns")
	}
	if turns.Try() {
		t.Error("a turn was taken beside those that have both")
	}
	turns.Leave()
	if !came(third) || came(fourth) {
		t.Error("a turn that ended is not that of the next who waits")
	}
	turns.Leave()
	turns.Leave()
	turns.Leave()
	if free, waiting := turns.Look(); !came(fourth) || free != 2 || waiting != 0 {
		t.Errorf("after all have ended %d are free and %d wait", free, waiting)
	}
	for n := range 3 {
		if got := turns.Try(); got != (n < 2) {
			t.Errorf("of two turns that are free, try %d says %v", n, got)
		}
	}
}

func TestTurns_OneWhoStopsWaitingLeavesNoTurnBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, stop, never := New(1), make(chan struct{}), make(chan struct{})
		turns.Try()
		left, got := make(chan bool, 1), make(chan bool, 1)
		go func() { left <- turns.Enter(stop) }()
		synctest.Wait()
		go func() { got <- turns.Enter(never) }()
		synctest.Wait()
		close(stop)
		if <-left {
			t.Error("one who was stopped says that his turn came")
		}
		turns.Leave()
		if !<-got {
			t.Error("the next does not get the turn")
		}
		turns.Leave()
		for range 100 { // The turn has come, and stop is closed: select chooses at random.
			if turns.Wait(turns.Join(), stop) {
				turns.Leave()
			}
			if free, waiting := turns.Look(); free != 1 || waiting != 0 {
				t.Fatalf("%d turns are free and %d wait", free, waiting)
			}
		}
	})
}

func TestTurns_WithoutALimitEveryoneHasOne(t *testing.T) {
	var none *Turns
	stop := make(chan struct{})
	close(stop)
	if !none.Enter(stop) || !none.Try() {
		t.Error("there is no limit, and no turn")
	}
	none.Leave()
}
