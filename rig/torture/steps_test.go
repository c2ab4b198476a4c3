//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestSteps_ACallIsMadeAgainOnlyWhereNoRecordIsKnown(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	first, second := oracle.Process{Actor: "consumer/0", PID: 1}, oracle.Process{Actor: "consumer/1", PID: 2}
	charged := step{"1", "charge"}
	of := func(by oracle.Process, since, carriedOut int) call {
		return call{by: by, key: "key", since: at(since), at: at(carriedOut)}
	}
	says := func(by oracle.Process, second int, how history.Result) history.Entry {
		return history.Entry{Op: history.Step, Actor: by.Actor, PID: by.PID, At: at(second), IDs: []string{"1"}, How: how, Text: "charge"}
	}
	other := of(second, 5, 6)
	other.key = "another"
	for name, c := range map[string]struct {
		calls  []call
		said   []history.Entry
		killed map[oracle.Process]time.Time
		undone []undoing
		again  string
		wrong  string
	}{
		"it is called once":           {calls: []call{of(first, 1, 2)}, said: []history.Entry{says(first, 3, history.OK)}},
		"its process is killed":       {calls: []call{of(second, 5, 6), of(first, 1, 2)}, killed: map[oracle.Process]time.Time{first: at(3)}, again: afterKill},
		"it has no record":            {calls: []call{of(first, 1, 2), of(first, 5, 6)}, said: []history.Entry{says(first, 3, history.Failed), says(first, 7, history.OK)}, again: afterFailure},
		"two have it at once":         {calls: []call{of(first, 1, 2), of(second, 3, 6)}, said: []history.Entry{says(second, 7, history.OK), says(first, 4, history.OK)}, again: alongside},
		"its record is undone":        {calls: []call{of(first, 1, 2), of(second, 5, 6)}, said: []history.Entry{says(first, 3, history.OK)}, undone: []undoing{{since: at(2), until: at(4)}}, again: afterUndoing},
		"it is recorded":              {calls: []call{of(first, 1, 2), of(second, 5, 6)}, said: []history.Entry{says(first, 3, history.OK)}, wrong: "2s after consumer/0 had recorded it"},
		"a third has recorded it":     {calls: []call{of(first, 1, 2), of(second, 5, 6)}, said: []history.Entry{says(oracle.Process{Actor: "consumer/2"}, 4, history.OK)}, killed: map[oracle.Process]time.Time{first: at(3)}, wrong: "recorded it"},
		"it is recorded, then killed": {calls: []call{of(first, 1, 2), of(second, 5, 6)}, said: []history.Entry{says(first, 3, history.OK)}, killed: map[oracle.Process]time.Time{first: at(4)}, wrong: "recorded it"},
		"nobody says anything":        {calls: []call{of(first, 1, 2), of(second, 5, 6)}, killed: map[oracle.Process]time.Time{second: at(8)}, wrong: "lives on and says nothing"},
		"an earlier word of its own":  {calls: []call{of(first, 1, 2), of(second, 5, 6)}, said: []history.Entry{says(first, 1, history.Failed)}, wrong: "lives on"},
		"its key is another":          {calls: []call{of(first, 1, 2), other}, said: []history.Entry{says(first, 3, history.Failed)}, wrong: "two keys: key and another"},
	} {
		line, wrong := judgeSteps(map[step][]call{charged: c.calls}, oracle.Run{Entries: c.said, KilledAt: c.killed}, c.undone)
		if (len(wrong) > 0) != (c.wrong != "") || !strings.Contains(strings.Join(wrong, " "), c.wrong) {
			t.Errorf("%s: it finds %q, want %q", name, wrong, c.wrong)
		}
		if want := fmt.Sprintf("; %s: 1", c.again); c.again != "" && !strings.HasSuffix(line, want) || !strings.HasPrefix(line, "1 steps of 1 events") {
			t.Errorf("%s: it says %q", name, line)
		}
	}
}

// The history that is judged is the whole one: forget takes events that the database has lost out of its own.
func TestSteps_AnEventThatIsUndoneWasCalledAllTheSame(t *testing.T) {
	t.Parallel()
	start := time.Now()
	by := oracle.Process{Actor: "consumer/0", PID: 1}
	known := oracle.Run{Entries: []history.Entry{{
		Op:    history.Step,
		Actor: by.Actor,
		PID:   by.PID,
		At:    start.Add(2 * time.Second),
		IDs:   []string{"1"},
		How:   history.OK,
		Text:  "charge",
	}}}
	undone := []undoing{{since: start, until: start.Add(3 * time.Second), ids: []string{"1"}}}
	whole := known.Entries
	forget(&known, undone)
	calls := map[step][]call{{"1", "charge"}: {
		{by: by, key: "key", since: start, at: start.Add(time.Second)},
		{by: by, key: "key", since: start.Add(4 * time.Second), at: start.Add(5 * time.Second)},
	}}
	known.Entries = whole
	if line, wrong := judgeSteps(calls, known, undone); len(wrong) > 0 || !strings.Contains(line, afterUndoing+": 1") {
		t.Errorf("it says %q and finds %q", line, wrong)
	}
}

func TestSteps_AHandledEventHasCalledAllItsSteps(t *testing.T) {
	t.Parallel()
	id, without := "", ""
	for n := 0; id == "" || without == ""; n++ {
		if text := fmt.Sprint(n); stepping(typePaid, text) {
			id = text
		} else {
			without = text
		}
	}
	known := oracle.Run{Written: []oracle.Written{{ID: id, Type: typePaid}, {ID: without, Type: typePaid}}, Effects: []oracle.Effect{{ID: id}, {ID: without}}}
	_, wrong := judgeSteps(map[step][]call{{id, "reserve"}: {{key: "key"}}}, known, nil)
	if len(wrong) != 1 || !strings.Contains(wrong[0], "charge of "+id+" was never called") {
		t.Errorf("it finds %q", wrong)
	}
}

func TestSteps_TheProviderKeepsAnAccountOfWhatItHasCarriedOut(t *testing.T) {
	t.Parallel()
	p, err := startProvider()
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	n := &node{part: part{Provider: p.url, Actor: "consumer/1"}}
	since := time.Now()
	of := asked{name: "charge", key: "key", since: since}
	p.leave(refuses, time.Now())
	if err := n.pay(t.Context(), holdfast.Event{ID: "1", Type: typePaid}, of); err == nil || !strings.Contains(err.Error(), providerSays) {
		t.Errorf("it is away: %v", err)
	}
	if err := n.pay(t.Context(), holdfast.Event{ID: "2", Type: typeShaky}, of); err != nil {
		t.Errorf("a part of it is always there: %v", err)
	}
	p.come()
	if err := n.pay(t.Context(), holdfast.Event{ID: "1", Type: typePaid}, asked{}); err != nil {
		t.Error(err)
	}
	all := p.account.all()
	if len(all) != 1 || len(all[step{"2", "charge"}]) != 1 {
		t.Fatalf("it has %v", all)
	}
	if c := all[step{"2", "charge"}][0]; c.by.String() != processOf(n.name()).String() || c.by.Actor != "consumer/1" || c.by.PID == 0 || c.key != "key" || !c.since.Equal(since) || c.at.Before(since) {
		t.Errorf("it has %+v", c)
	}
}

func TestSteps_TheHistoryHasEachStepThatWasNotKnown(t *testing.T) {
	t.Parallel()
	for result, want := range map[inbox.StepResult]string{inbox.StepDone: "ok true", inbox.StepFailed: "failed true", inbox.StepKnown: "ok false"} {
		e, said := stepped(inbox.Stepped{Event: holdfast.Event{ID: "1"}, Step: "charge", Result: result, Err: errors.New("planned")})
		if got := fmt.Sprint(e.How, " ", said); got != want || e.Text != "charge" || !slices.Equal(e.IDs, []string{"1"}) {
			t.Errorf("%s: %s, %+v", result, got, e)
		}
	}
}

func TestSteps_ACallPastAStepIsFound(t *testing.T) {
	skip.InShort(t, "it runs the fault suite")
	t.Parallel()
	r := small(t, Options{Seed: 4, bug: bugPastStep, Faults: []string{"kill-backend"}})
	if !slices.ContainsFunc(r.troubles, func(text string) bool { return strings.Contains(text, "lives on and says nothing of it") }) {
		t.Errorf("troubles: %q", r.troubles)
	}
}
