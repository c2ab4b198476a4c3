//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestFaultsProvider_OtherKeysAreComparedWithTheCalmBefore(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for name, c := range map[string]struct {
		fault   string
		others  time.Duration // what the events of other keys take meanwhile
		pulse   time.Duration
		events  int
		most    int
		tries   int
		blamed  []string
		problem string
		says    string
	}{
		"the others flow":            {fault: "provider-away", others: 30 * time.Millisecond, events: 100, most: 1, says: "p99 30ms, of 100 in the 4.0s before it 20ms"},
		"the others wait":            {fault: "provider-away", others: 3 * time.Second, events: 100, most: 1, problem: "delays others"},
		"they wait for a session":    {fault: "provider-away-kill-try", others: 3 * time.Second, events: 100, most: 1, says: "p99 3s"},
		"two try it at once":         {fault: "provider-away", others: 30 * time.Millisecond, events: 100, most: 2, problem: "more than one event"},
		"as many tries as may be":    {fault: "provider-away", others: 30 * time.Millisecond, events: 100, most: 1, tries: 10},
		"too many tries":             {fault: "provider-away", pulse: time.Second, events: 100, most: 1, tries: 11, problem: "too often"},
		"a machine that stands":      {fault: "provider-away", others: 3 * time.Second, pulse: time.Second, events: 100, most: 2, says: "not judged"},
		"too few to compare":         {fault: "provider-away", others: 3 * time.Second, events: 20, most: 1, says: "too few"},
		"an attempt is always wrong": {fault: "provider-away", events: 20, most: 1, blamed: []string{"1: 3 attempts"}, problem: "1: 3 attempts"},
	} {
		var known oracle.Run
		add := func(id, key string, committed time.Time, delay time.Duration) {
			known.Written = append(known.Written, oracle.Written{ID: id, Key: key})
			known.Entries = append(known.Entries, history.Entry{
				Op:  history.Commit,
				How: history.OK,
				IDs: []string{id},
				At:  committed,
			})
			known.Effects = append(known.Effects, oracle.Effect{ID: id, At: committed.Add(delay)})
		}
		for i := range c.events {
			n := float64(i) / float64(c.events)
			add(fmt.Sprint("calm", i), "k1", at(3.9*n), 20*time.Millisecond)
			add(fmt.Sprint("during", i), "k1", at(4+8*n), c.others)
			add(fmt.Sprint("waits", i), "k5", at(4+8*n), 9*time.Second)
		}
		lines, problems := meanwhile([]absence{{
			fault:  c.fault,
			calm:   [2]time.Time{at(0), at(4)},
			during: [2]time.Time{at(4), at(12)},
			pulse:  c.pulse,
			most:   c.most,
			tries:  c.tries,
			blamed: c.blamed,
		}}, known)
		if (len(problems) > 0) != (c.problem != "") || !strings.Contains(strings.Join(problems, " "), c.problem) || !strings.Contains(strings.Join(lines, " "), c.says) {
			t.Errorf("%s: it says %q and %q", name, lines, problems)
		}
	}
}

func TestFaultsProvider_AnAttemptThatIsSpentOnItIsFound(t *testing.T) {
	skip.InShort(t, "it runs the fault suite")
	t.Parallel()
	r := small(t, Options{Seed: 4, bug: bugBlame, Faults: []string{"provider-away"}})
	if !slices.ContainsFunc(r.troubles, func(text string) bool { return strings.Contains(text, "an event has spent an attempt") }) {
		t.Errorf("troubles: %q", r.troubles)
	}
}
