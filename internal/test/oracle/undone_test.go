package oracle

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// An older state of the database took its place between second 10 and 20.
func TestUndone_AnEpochThatWasUndoneMayBeGivenAgain(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return begun.Add(time.Duration(second) * time.Second) }
	claim := func(second int, actor string) history.Entry {
		return history.Entry{At: at(second), Actor: actor, PID: 1, Op: history.Claim, Lane: 3, Epoch: 7}
	}
	for name, c := range map[string]struct {
		first int
		found int
	}{"meanwhile": {15, 0}, "before": {5, 1}} {
		r := Run{Entries: []history.Entry{claim(c.first, "relay/0"), claim(25, "relay/1")}, Undone: []Span{{at(10), at(20)}}}
		if v := Judge(r); v.Count(ClaimedTwice) != c.found {
			t.Errorf("a claim %s: found %d times, want %d:\n%s", name, v.Count(ClaimedTwice), c.found, v)
		}
	}
}

func TestUndone_AnEffectThatIsDoneAgainMayComeLate(t *testing.T) {
	t.Parallel()
	r := Run{Consumers: []string{"c"}, Limits: Limits{NoHistory: true},
		Written: []Written{{ID: "1", Topic: "o", Key: "k", Number: 1}, {ID: "2", Topic: "o", Key: "k", Number: 2}, {ID: "3", Topic: "o", Key: "k", Number: 3}},
		Records: []Record{{ID: "1", Topic: "o", Key: "k"}, {ID: "2", Topic: "o", Key: "k", Offset: 1}, {ID: "3", Topic: "o", Key: "k", Offset: 2}},
		Effects: []Effect{{Consumer: "c", ID: "2", Key: "k"}, {Consumer: "c", ID: "1", Key: "k"}, {Consumer: "c", ID: "3", Key: "k"}}}
	if v := Judge(r); v.Count(OutOfTurn) != 1 {
		t.Errorf("found %d times out of turn, want 1:\n%s", v.Count(OutOfTurn), v)
	}
	r.Redone = []string{"1"}
	if v := Judge(r); v.Count(OutOfTurn) != 0 {
		t.Errorf("what is done again: found %d times out of turn:\n%s", v.Count(OutOfTurn), v)
	}
}
