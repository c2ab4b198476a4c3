package failure

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/retry"
)

var errBoom = errors.New("boom")

func TestVerdict_ADelayGrowsWithWhatItWaitsForAndNothingElse(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	for name, row := range map[string]struct {
		h    History
		f    Fault
		want Verdict
	}{
		"after three contended attempts": {History{Attempts: 2, Contended: 3, Waits: 9, Losses: 9}, FaultContended, Verdict{Do: ActAgain, Free: true, Delay: 12 * time.Millisecond}},
		"after three waits":              {History{Contended: 9, Waits: 3, Losses: 9, WaitsLong: true}, FaultDatabase, Verdict{Do: ActAgain, Free: true, Delay: 300 * time.Millisecond}},
		"after two lost connections":     {History{Contended: 9, Waits: 9, Losses: 2}, FaultLost, Verdict{Do: ActAgain, Free: true, Delay: 150 * time.Millisecond}},
		"a second wait is no third":      {History{Waits: 1}, FaultDatabase, Verdict{Do: ActAgain, Free: true, Delay: 75 * time.Millisecond}},
		"the last contended attempt":     {History{Attempts: 1, Contended: maxContended - 1, Quick: 1}, FaultContended, Verdict{Do: ActAgain, Free: true, Delay: loop.ContendedCap / 4 * 3}},
	} {
		if got := decide(p, row.h, row.f, errBoom, 0.5); got != row.want {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

func TestVerdict_ABudgetEndsWhereTheNextAttemptWouldPassIt(t *testing.T) {
	t.Parallel()
	// The first delay is 500 ms with this chance.
	for name, row := range map[string]struct {
		budget, age time.Duration
		want        Action
	}{
		"a young event":             {10 * time.Second, 0, ActStore},
		"an attempt at its end":     {10 * time.Second, 9500 * time.Millisecond, ActStore},
		"an attempt just behind it": {10 * time.Second, 9500*time.Millisecond + 1, ActDead},
		"the shortest budget":       {1, 0, ActDead},
		"no budget":                 {0, time.Hour, ActStore},
		"no limit":                  {-1, time.Hour, ActStore},
	} {
		p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: row.budget}
		if got := decide(p, History{Attempts: 1, Age: row.age}, FaultEvent, errBoom, 0.5); got.Do != row.want {
			t.Errorf("%s: %v, want %v", name, got.Do, row.want)
		}
	}
}

func TestVerdict_OnlyAHandlerWhoseTimeRanOutIsNotTriedAtOnce(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	for timedOut, want := range map[bool]Action{false: ActAgain, true: ActStore} {
		if got := decide(p, History{Attempts: 1, Quick: 1}, FaultEvent, &HandlerError{Err: errBoom, TimedOut: timedOut}, 0.5); got.Do != want {
			t.Errorf("timed out %v: %v, want %v", timedOut, got.Do, want)
		}
	}
}

func TestVerdict_AVerdictHoldsTheFailureThatItAnswers(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	_, v := History{Quick: 1}.After(p, Error{FaultEvent, errBoom}, time.Now(), 0.5)
	if v.Failure != (Error{FaultEvent, errBoom}) {
		t.Errorf("it answers %+v", v.Failure)
	}
	_, v = History{Losses: MaxLosses - 1}.After(p, Error{FaultLost, errBoom}, time.Now(), 0.5)
	if v.Failure.Fault != FaultEvent || v.Failure.Err == errBoom || !errors.Is(v.Failure.Err, errBoom) {
		t.Errorf("the last of many losses amounts to %v, %v", v.Failure.Fault, v.Failure.Err)
	}
	v = History{Attempts: 1, Quick: 5}.Elsewhere(p, Error{FaultEvent, errBoom}, 0.5)
	if want := (Verdict{Do: ActStore, Delay: 500 * time.Millisecond, Failure: Error{FaultEvent, errBoom}}); v != want {
		t.Errorf("without time for an attempt here: %+v, want %+v", v, want)
	}
	if !errors.Is(&Error{Err: errBoom}, errBoom) {
		t.Error("a failure hides its cause")
	}
}

func TestVerdict_ContentionWithoutEndCanBeTheLastAttempt(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	h, v := History{Attempts: 2, Contended: maxContended, Quick: 1}.After(p, Error{FaultContended, errBoom}, time.Now(), 0.5)
	if v.Do != ActDead || h.Attempts != 3 {
		t.Errorf("%v after %d attempts, want it dead after 3", v.Do, h.Attempts)
	}
}

func TestVerdict_AVerdictIsWrittenAgainForEachFailureInItsOwnWay(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	for name, row := range map[string]struct {
		contended int
		f         Fault
		want      History
	}{
		"contended":                     {0, FaultContended, History{Contended: 1}},
		"contended for the last time":   {maxContended - 1, FaultContended, History{Contended: maxContended}},
		"lost after much contention":    {maxContended, FaultLost, History{Contended: maxContended, Losses: 1}},
		"unknown after much contention": {maxContended, FaultUnknown, History{Contended: maxContended, Losses: 1, Waits: 1}},
	} {
		got, _ := History{Contended: row.contended, Decided: true, WaitsLong: true}.After(p, Error{row.f, errBoom}, time.Time{}, 0.5)
		got.First, got.Age = time.Time{}, 0
		row.want.Decided, row.want.WaitsLong = true, true
		if got != row.want {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

func TestVerdict_AHandlersErrorSaysExactlyWhyItEnded(t *testing.T) {
	t.Parallel()
	deadline, cancelled := context.DeadlineExceeded, context.Canceled
	own := HandlerError{TimedOut: true}
	for name, row := range map[string]struct {
		r    Return
		says string // how it begins
		want HandlerError
	}{
		"its own deadline closed its connection":        {Return{Err: deadline, Closed: true}, "the handler's own time-out: ", own},
		"its own cancelling closed it":                  {Return{Err: cancelled, Closed: true}, "the handler's own time-out: ", own},
		"its own time-out, seen by the connection":      {Return{Err: errBoom, Closed: true, RanOut: true}, "the handler's own time-out: ", own},
		"a deadline, with its connection open":          {Return{Err: deadline}, "context deadline exceeded", HandlerError{}},
		"a time-out seen, with its connection open":     {Return{Err: errBoom, RanOut: true}, "boom", HandlerError{}},
		"a deadline, told to stop":                      {Return{Err: deadline, Closed: true, Stopped: true, Over: true}, "context deadline exceeded", HandlerError{Stopped: true}},
		"a deadline, told to stop before":               {Return{Err: deadline, Closed: true, Stopped: true}, "context deadline exceeded", HandlerError{Stopped: true}},
		"the deadline of its time":                      {Return{Err: deadline, Closed: true, Over: true}, "the handler was cancelled after 1s: ", HandlerError{TimedOut: true}},
		"the deadline of its time, cut off":             {Return{Err: deadline, Closed: true, Over: true, CutOff: true}, "the handler was cancelled after 1s: ", HandlerError{TimedOut: true, CutOff: true}},
		"nil on a closed connection after its time":     {Return{Closed: true, Over: true, CutOff: true}, "the handler was cancelled after 1s", HandlerError{TimedOut: true, CutOff: true}},
		"nil on a connection that its time-out closed":  {Return{Closed: true, RanOut: true}, "the handler's own time-out closed", own},
		"nil on such a connection, told to stop":        {Return{Closed: true, RanOut: true, Stopped: true}, "the connection was lost", HandlerError{Stopped: true}},
		"nil on a lost connection, told to stop before": {Return{Closed: true, Stopped: true}, "the connection was lost", HandlerError{Stopped: true}},
		"nil after its time":                            {Return{Over: true, Status: 'T'}, "the handler was cancelled after 1s, and then", HandlerError{TimedOut: true}},
		"nil when told to stop":                         {Return{Stopped: true, Over: true, Status: 'T'}, "the handler was told to stop", HandlerError{Stopped: true}},
	} {
		row.r.Timeout = time.Second
		var got *HandlerError
		if !errors.As(row.r.Judge(), &got) {
			t.Errorf("%s: %v", name, row.r.Judge())
			continue
		}
		if !strings.HasPrefix(got.Error(), row.says) || row.r.Err != nil && !errors.Is(got, row.r.Err) {
			t.Errorf("%s: %q, want %q", name, got, row.says)
		}
		if got.Err = nil; *got != row.want {
			t.Errorf("%s: %+v, want %+v", name, *got, row.want)
		}
	}
	if err := (Return{RanOut: true, Status: 'T'}).Judge(); err != nil {
		t.Errorf("a time-out that closed nothing: %v", err)
	}
	for closed, err := range map[bool]error{true: errBoom, false: pgError("42501")} {
		var h *HandlerError
		if !errors.As(JudgeSettling(err, closed), &h) || !h.Behind {
			t.Errorf("closed %v: %+v is not said to be behind the handler", closed, h)
		}
	}
}

func TestVerdict_WhoseFaultIsDecidedByEveryFact(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err  error
		c    Facts
		want Fault
	}{
		"swallowed, but its time was not up":        {errBoom, Facts{InHandler: true, CutOff: true}, FaultEvent},
		"read only behind it, on a lost connection": {pgError("25006"), Facts{InHandler: true, Behind: true, ConnLost: true}, FaultLost},
		"read only in the handler":                  {pgError("25006"), Facts{InHandler: true}, FaultLost},
		"a lock that others hold, in our statement": {pgError("55P03"), Facts{}, FaultDatabase},
		"a COMMIT that a constraint refuses":        {pgError("23505"), Facts{Committing: true}, FaultEvent},
	} {
		if got := FaultOf(row.err, row.c); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
	for f := FaultEvent; f <= FaultInFlight; f++ {
		if want := f == FaultDatabase || f == FaultUnknown || f == FaultLost || f == FaultUnable; f.Outage() != want {
			t.Errorf("%v is an outage: %v", f, f.Outage())
		}
	}
	for _, code := range []string{"22000", "23505", "P0001"} {
		if !ofTheData(code) || unavailable(code) {
			t.Errorf("%s is said not to be of the data", code)
		}
	}
	for _, code := range []string{"08006", "53100", "53300", "58030", "57P01", "57P02", "57P03", "57P05", "25006"} {
		if !unavailable(code) || ofTheData(code) {
			t.Errorf("%s is said to be of a server that can work", code)
		}
		if want := code == "53100" || code == "58030"; saysUnable(pgError(code)) != want {
			t.Errorf("%s is of a server's disk: %v, want %v", code, !want, want)
		}
	}
	for _, code := range []string{"", "2", "22", "2200", "220000", "P000", "0800", "5330", "5803", "42501", "40001", "57014"} {
		if ofTheData(code) || unavailable(code) {
			t.Errorf("%q is taken for a state that it is not", code)
		}
	}
}

// What something else is to blame for spends no attempt. An event that alone says so does in the end.
func TestVerdict_AnAbsentDependencyIsNotTheEventsFault(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Minute, Cap: time.Minute, Budget: -1}
	away := Error{Fault: FaultUnavailable, Err: &HandlerError{Err: &UnavailableError{Name: "stripe", Err: errBoom}}}
	for name, row := range map[string]struct {
		h      History
		want   Verdict
		doubts int
	}{
		"a fresh event":                     {History{Alone: true, Quick: 3}, Verdict{Do: ActStore, Free: true}, 1},
		"a fresh one among others":          {History{Quick: 3}, Verdict{Do: ActStore, Free: true}, 0},
		"a stored one that tries it":        {History{Stored: true, Attempts: 1}, Verdict{Do: ActStore, Free: true}, 1},
		"one that has tried it often":       {History{Stored: true, Attempts: 1, Doubts: 1}, Verdict{Do: ActStore, Free: true}, 1},
		"alone for the second time":         {History{Stored: true, Attempts: 1, Doubts: 1, Alone: true}, Verdict{Do: ActStore, Free: true, Delay: 750 * time.Millisecond}, 2},
		"alone for the fourth time":         {History{Stored: true, Attempts: 1, Doubts: 3, Alone: true}, Verdict{Do: ActStore, Free: true, Delay: 3 * time.Second}, 4},
		"among others after four times":     {History{Stored: true, Attempts: 1, Doubts: 4}, Verdict{Do: ActStore, Free: true}, 4},
		"its last attempt, and not counted": {History{Stored: true, Attempts: 3}, Verdict{Do: ActStore, Free: true}, 1},
	} {
		h, got := row.h.After(p, away, time.Time{}, 0.5)
		got.Failure = Error{}
		if got != row.want || h.Doubts != row.doubts || h.Attempts != row.h.Attempts {
			t.Errorf("%s: %+v with %d doubts, want %+v with %d", name, got, h.Doubts, row.want, row.doubts)
		}
	}
	lost := History{Stored: true, Attempts: 1, Losses: 4, Alone: true}
	if h, got := lost.After(p, away, time.Time{}, 0.5); !got.Free || got.Delay != 0 || h.Losses != 0 || h.Doubts != 1 {
		t.Errorf("alone for the first time, after lost connections: %+v, %+v", got, h)
	}
	_, got := History{Stored: true, Attempts: 1, Doubts: 4, Alone: true}.After(p, away, time.Time{}, 0.5)
	if got.Free || got.Do != ActStore || got.Delay != p.Delay(1, 0.5) || got.Failure.Fault != FaultEvent || !errors.Is(got.Failure.Err, errBoom) {
		t.Errorf("alone for the fifth time: %+v", got)
	}
}

func TestVerdict_OnlyAHandlersWordCountsAsAbsent(t *testing.T) {
	t.Parallel()
	said := &HandlerError{Err: &UnavailableError{Name: "stripe", Err: context.DeadlineExceeded}}
	if got := FaultOf(&HandlerError{Err: retry.Permanent(said.Err)}, Facts{InHandler: true}); got != FaultEvent {
		t.Errorf("but it gives the event up: %s, want event", got)
	}
	for name, row := range map[string]struct {
		facts Facts
		want  Fault
	}{
		"its handler returned it":                {Facts{InHandler: true}, FaultUnavailable},
		"and its time was over":                  {Facts{InHandler: true, TimedOut: true}, FaultUnavailable},
		"and its connection is closed":           {Facts{InHandler: true, TimedOut: true, ConnLost: true}, FaultUnavailable},
		"but the network swallowed what it sent": {Facts{InHandler: true, TimedOut: true, CutOff: true}, FaultLost},
		"but it was stopped":                     {Facts{InHandler: true, Stopped: true}, FaultStopped},
	} {
		if got := FaultOf(said, row.facts); got != row.want {
			t.Errorf("%s: %s, want %s", name, got, row.want)
		}
	}
}

func TestVerdict_ARowKeepsWhichKindOfTryWasFree(t *testing.T) {
	t.Parallel()
	for row, want := range map[int]History{0: {}, 3: {Losses: 3}, -7: {Unable: 7}, 101: {Doubts: 1}, 104: {Doubts: 4}} {
		if got := (History{Losses: 9, Unable: 9, Doubts: 9}).FromRow(row); got != want || got.Row() != row {
			t.Errorf("%d: %+v, and back %d", row, got, got.Row())
		}
	}
}
