package oracle

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

func TestTries_AFaultAtTheTimeAccountsForATryAndAnotherForNone(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return begun.Add(time.Duration(second) * time.Second) }
	// The event is about to be at 10 s, and given up at 20 s.
	for name, c := range map[string]struct {
		tries            int
		fault, recovered int // seconds; 0: it was not, or never
		killed           int
		letter           Letter
		found            int
	}{
		"as often as it must be":                 {tries: 4},
		"one try less":                           {tries: 3, found: 1},
		"one less, and a fault":                  {tries: 3, fault: 12, recovered: 15},
		"two less, and a fault":                  {tries: 2, fault: 12, recovered: 15, found: 1},
		"two less, a fault and a kill":           {tries: 2, fault: 12, recovered: 15, killed: 13},
		"a fault that was over before":           {tries: 3, fault: 5, recovered: 9, found: 1},
		"a fault that came after":                {tries: 3, fault: 21, recovered: 25, found: 1},
		"a fault that was on all the time":       {tries: 3, fault: 5, recovered: 25},
		"a fault that never recovered":           {tries: 3, fault: 5},
		"a process that was killed before":       {tries: 3, killed: 9, found: 1},
		"one that was killed while it was tried": {tries: 3, killed: 15},
		"one that was killed after":              {tries: 3, killed: 21, found: 1},
		"a relay's letter":                       {letter: Letter{State: Open}},
		"a letter of a repeat":                   {letter: Letter{Consumer: "c", State: Open, Reason: "stale: it lies below"}},
	} {
		var entries []history.Entry
		say := func(second int, e history.Entry) {
			e.At = at(second)
			entries = append(entries, e)
		}
		for second := range 30 {
			if second == c.fault && c.fault > 0 {
				say(second, history.Entry{Actor: "run", Op: history.Fault, Text: "it"})
				say(second, history.Entry{Actor: "run", Op: history.Heal, Text: "it"})
			}
			if second == c.recovered && c.recovered > 0 {
				say(second, history.Entry{Actor: "run", Op: history.Recovered, Text: "it"})
			}
			if second <= c.killed {
				say(second, history.Entry{Actor: "c/1", PID: 2, Op: history.Log})
			}
			switch second {
			case 10:
				say(second, history.Entry{Actor: "p", PID: 3, Op: history.Intend, IDs: []string{"d1"}})
			case 11:
				for range c.tries {
					say(second, history.Entry{Actor: "c/0", PID: 1, Op: history.Effect, IDs: []string{"d1"}})
				}
			case 20:
				say(second, history.Entry{Actor: "c/0", PID: 1, Op: history.Letter, IDs: []string{"d1"}})
			}
		}
		r := Run{Entries: entries, Consumers: []string{"c"}, Written: []Written{{ID: "d1", Topic: "o", Key: "d", Number: 1}}, Limits: Limits{Tries: 4}}
		if c.letter.State == "" {
			c.letter = Letter{Consumer: "c", State: Open, Reason: "it failed 4 times"}
		}
		c.letter.ID, c.letter.EventID = 1, "d1"
		r.Letters = []Letter{c.letter}
		if c.killed > 0 {
			r.Killed = []Process{{"c/1", 2}}
		}
		if v := Judge(r); v.Count(TooSoon) != c.found {
			t.Errorf("%s: found %d times, want %d:\n%s", name, v.Count(TooSoon), c.found, v)
		}
	}
}
