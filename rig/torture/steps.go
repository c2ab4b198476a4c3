//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// Half of the events of typePaid and typeShaky call the provider in two steps (inbox.Step). The provider keeps an account of what it has carried out, and the
// consumer's observer says in the history how each step has ended. At a provider that honours keys there are as many effects as keys; at another one as many as
// calls.

// stepNames are the steps of such an event, in their order.
var stepNames = []string{"reserve", "charge"}

// stepping says whether the handler of an event has steps.
func stepping(eventType, id string) bool {
	return (eventType == typePaid || eventType == typeShaky) && hash(id)%2 == 0
}

// step is a step of an event.
type step struct{ id, name string }

func (s step) String() string { return s.name + " of " + s.id }

// call is one that the provider has carried out.
type call struct {
	by    oracle.Process
	key   string
	since time.Time // when the step began, before it looked whether it is recorded
	at    time.Time
}

// account is what a provider knows.
type account struct {
	mu    sync.Mutex
	calls map[step][]call
}

func (a *account) add(s step, c call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[step][]call{}
	}
	a.calls[s] = append(a.calls[s], c)
}

// all are the calls of each step, in the order in which they were carried out.
func (a *account) all() map[step][]call {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.calls)
}

// step runs a step of an event. Sometimes it takes long after the provider's answer, for a fault to come between this and its record.
func (n *node) step(ctx context.Context, e holdfast.Event, name string) error {
	since := time.Now()
	do := func(ctx context.Context, key string) (string, error) {
		if err := n.pay(ctx, e, asked{name: name, key: key, since: since}); err != nil {
			return "", err
		}
		if n.draw(2) == 0 {
			sleep(ctx, time.Duration(n.draw(400))*time.Millisecond)
		}
		return name, nil
	}
	if n.Bug == bugPastStep {
		_, err := do(ctx, e.ID+name)
		return err
	}
	_, err := inbox.Step(ctx, name, do)
	return err
}

// stepped is how a step that has called the provider, or could have, is said to have ended.
func stepped(s inbox.Stepped) (e history.Entry, said bool) {
	how := history.OK
	if s.Result == inbox.StepFailed {
		how = history.Failed
	}
	return history.Entry{
		Op:   history.Step,
		IDs:  []string{s.Event.ID},
		How:  how,
		Text: s.Step,
	}, s.Result != inbox.StepKnown
}

// Why a step may be called again.
const (
	afterKill    = "its process was killed"
	afterFailure = "it had no answer or no record"
	afterUndoing = "the database went back in time"
	alongside    = "two had it at once" // one of them was frozen, or had lost its partition
)

// judgeSteps says what calls of steps show, and what is wrong with them: a step with two keys; one that was called although a record of it was durable when it
// began; one whose earlier call has ended without a word of its process, which lives on; and one that was not called although its event was handled.
func judgeSteps(calls map[step][]call, known oracle.Run, undone []undoing) (line string, wrong []string) {
	said := map[step][]history.Entry{} // how they ended, in the order of time
	for _, e := range known.Entries {
		if e.Op == history.Step {
			s := step{e.IDs[0], e.Text}
			said[s] = append(said[s], e)
		}
	}
	lost := func(e history.Entry) bool {
		return slices.ContainsFunc(undone, func(u undoing) bool { return e.At.After(u.since) && e.At.Before(u.until) })
	}
	all, again, events := 0, map[string]int{}, map[string]bool{}
	for s, of := range calls {
		ended := slices.SortedFunc(slices.Values(said[s]), func(a, b history.Entry) int { return a.At.Compare(b.At) })
		slices.SortFunc(of, func(a, b call) int { return a.at.Compare(b.at) })
		all, events[s.id] = all+len(of), true
		for i, c := range of {
			if c.key != of[0].key {
				wrong = append(wrong, fmt.Sprintf("%s was called with two keys: %s and %s", s, of[0].key, c.key))
			}
			if r := slices.IndexFunc(ended, func(e history.Entry) bool { return e.How == history.OK && e.At.Before(c.since) && !lost(e) }); r >= 0 {
				wrong = append(wrong, fmt.Sprintf("%s was called by %s, %s after %s had recorded it", s, c.by, c.since.Sub(ended[r].At), ended[r].Actor))
			}
			if i == 0 {
				continue
			}
			if why := whyAgain(of[i-1], ended, lost, known.KilledAt); why != "" {
				again[why]++
			} else {
				wrong = append(wrong, fmt.Sprintf("%s was called again by %s, although %s, which had called it, lives on and says nothing of it", s, c.by, of[i-1].by))
			}
		}
	}
	types := map[string]string{}
	for _, w := range known.Written {
		types[w.ID] = w.Type
	}
	for _, e := range known.Effects {
		for _, name := range stepNames {
			if s := (step{e.ID, name}); stepping(types[e.ID], e.ID) && len(calls[s]) == 0 {
				wrong = append(wrong, fmt.Sprintf("%s was never called, although the event was handled", s))
			}
		}
	}
	line = fmt.Sprintf("%d steps of %d events called the provider %d times, so %d times again", len(calls), len(events), all, all-len(calls))
	for _, why := range slices.Sorted(maps.Keys(again)) {
		line += fmt.Sprintf("; %s: %d", why, again[why])
	}
	slices.Sort(wrong)
	return line, wrong
}

// whyAgain says why a step may be called after a call of it, by what the call's process has said of its end; "" if there is no reason.
func whyAgain(c call, ended []history.Entry, lost func(history.Entry) bool, killed map[oracle.Process]time.Time) string {
	own := slices.IndexFunc(ended, func(e history.Entry) bool {
		return e.Actor == c.by.Actor && e.PID == c.by.PID && !e.At.Before(c.at)
	})
	if own < 0 {
		if _, dead := killed[c.by]; dead {
			return afterKill
		}
		return ""
	}
	switch e := ended[own]; {
	case e.How != history.OK:
		return afterFailure
	case lost(e):
		return afterUndoing
	default: // If it was recorded before the next began, that is said of the next.
		return alongside
	}
}

// judgeSteps adds what steps have shown to the report. Entries are the whole history.
func (r *run) judgeSteps(known oracle.Run, entries []history.Entry) {
	known.Entries = entries
	line, wrong := judgeSteps(r.provider.account.all(), known, r.undone)
	r.report.steps = line
	const most = 20
	if n := len(wrong); n > most {
		wrong = append(wrong[:most], fmt.Sprintf("and %d more like these", n-most))
	}
	r.report.troubles = append(r.report.troubles, wrong...)
	if strings.HasPrefix(line, "0 ") {
		r.trouble(errors.New("no step was called: nothing is shown of steps"))
	}
}

// processOf reads "consumer/0/4711", which is part.name.
func processOf(name string) (p oracle.Process) {
	at := max(strings.LastIndexByte(name, '/'), 0)
	_, _ = fmt.Sscan(strings.TrimPrefix(name[at:], "/"), &p.PID)
	p.Actor = cmp.Or(name[:at], name)
	return p
}
