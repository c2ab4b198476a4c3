package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/retry"
)

var errBoom = errors.New("boom")

func TestVerdict_ADelayGrowsWithWhatItWaitsForAndNothingElse(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	for name, row := range map[string]struct {
		h    history
		f    fault
		want verdict
	}{
		"after three contended attempts": {history{attempts: 2, contended: 3, waits: 9, losses: 9}, faultContended, verdict{do: actAgain, free: true, delay: 12 * time.Millisecond}},
		"after three waits":              {history{contended: 9, waits: 3, losses: 9, waitsLong: true}, faultDatabase, verdict{do: actAgain, free: true, delay: 300 * time.Millisecond}},
		"after two lost connections":     {history{contended: 9, waits: 9, losses: 2}, faultLost, verdict{do: actAgain, free: true, delay: 150 * time.Millisecond}},
		"a second wait is no third":      {history{waits: 1}, faultDatabase, verdict{do: actAgain, free: true, delay: 75 * time.Millisecond}},
		"the last contended attempt":     {history{attempts: 1, contended: maxContended - 1, quick: 1}, faultContended, verdict{do: actAgain, free: true, delay: contendedCap / 4 * 3}},
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
		want        action
	}{
		"a young event":             {10 * time.Second, 0, actStore},
		"an attempt at its end":     {10 * time.Second, 9500 * time.Millisecond, actStore},
		"an attempt just behind it": {10 * time.Second, 9500*time.Millisecond + 1, actDead},
		"the shortest budget":       {1, 0, actDead},
		"no budget":                 {0, time.Hour, actStore},
		"no limit":                  {-1, time.Hour, actStore},
	} {
		p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: row.budget}
		if got := decide(p, history{attempts: 1, age: row.age}, faultEvent, errBoom, 0.5); got.do != row.want {
			t.Errorf("%s: %v, want %v", name, got.do, row.want)
		}
	}
}

func TestVerdict_OnlyAHandlerWhoseTimeRanOutIsNotTriedAtOnce(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	for timedOut, want := range map[bool]action{false: actAgain, true: actStore} {
		if got := decide(p, history{attempts: 1, quick: 1}, faultEvent, &handlerError{err: errBoom, timedOut: timedOut}, 0.5); got.do != want {
			t.Errorf("timed out %v: %v, want %v", timedOut, got.do, want)
		}
	}
}

func TestVerdict_AVerdictHoldsTheFailureThatItAnswers(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	_, v := history{quick: 1}.after(p, failure{faultEvent, errBoom}, time.Now(), 0.5)
	if v.failure != (failure{faultEvent, errBoom}) {
		t.Errorf("it answers %+v", v.failure)
	}
	_, v = history{losses: maxLosses - 1}.after(p, failure{faultLost, errBoom}, time.Now(), 0.5)
	if v.failure.fault != faultEvent || v.failure.err == errBoom || !errors.Is(v.failure.err, errBoom) {
		t.Errorf("the last of many losses amounts to %v, %v", v.failure.fault, v.failure.err)
	}
	v = history{attempts: 1, quick: 5}.elsewhere(p, failure{faultEvent, errBoom}, 0.5)
	if want := (verdict{do: actStore, delay: 500 * time.Millisecond, failure: failure{faultEvent, errBoom}}); v != want {
		t.Errorf("without time for an attempt here: %+v, want %+v", v, want)
	}
	if !errors.Is(&failure{err: errBoom}, errBoom) {
		t.Error("a failure hides its cause")
	}
}

func TestVerdict_ContentionWithoutEndCanBeTheLastAttempt(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	h, v := history{attempts: 2, contended: maxContended, quick: 1}.after(p, failure{faultContended, errBoom}, time.Now(), 0.5)
	if v.do != actDead || h.attempts != 3 {
		t.Errorf("%v after %d attempts, want it dead after 3", v.do, h.attempts)
	}
}

func TestVerdict_AVerdictIsWrittenAgainForEachFailureInItsOwnWay(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	for name, row := range map[string]struct {
		contended int
		f         fault
		want      history
	}{
		"contended":                     {0, faultContended, history{contended: 1}},
		"contended for the last time":   {maxContended - 1, faultContended, history{contended: maxContended}},
		"lost after much contention":    {maxContended, faultLost, history{contended: maxContended, losses: 1}},
		"unknown after much contention": {maxContended, faultUnknown, history{contended: maxContended, losses: 1, waits: 1}},
	} {
		got, _ := history{contended: row.contended, decided: true, waitsLong: true}.after(p, failure{row.f, errBoom}, time.Time{}, 0.5)
		got.first, got.age = time.Time{}, 0
		row.want.decided, row.want.waitsLong = true, true
		if got != row.want {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

func TestVerdict_AHandlersErrorSaysExactlyWhyItEnded(t *testing.T) {
	t.Parallel()
	deadline, cancelled := context.DeadlineExceeded, context.Canceled
	own := handlerError{timedOut: true}
	for name, row := range map[string]struct {
		r    handlerReturn
		says string // how it begins
		want handlerError
	}{
		"its own deadline closed its connection":        {handlerReturn{err: deadline, closed: true}, "the handler's own time-out: ", own},
		"its own cancelling closed it":                  {handlerReturn{err: cancelled, closed: true}, "the handler's own time-out: ", own},
		"its own time-out, seen by the connection":      {handlerReturn{err: errBoom, closed: true, ranOut: true}, "the handler's own time-out: ", own},
		"a deadline, with its connection open":          {handlerReturn{err: deadline}, "context deadline exceeded", handlerError{}},
		"a time-out seen, with its connection open":     {handlerReturn{err: errBoom, ranOut: true}, "boom", handlerError{}},
		"a deadline, told to stop":                      {handlerReturn{err: deadline, closed: true, stopped: true, over: true}, "context deadline exceeded", handlerError{stopped: true}},
		"a deadline, told to stop before":               {handlerReturn{err: deadline, closed: true, stopped: true}, "context deadline exceeded", handlerError{stopped: true}},
		"the deadline of its time":                      {handlerReturn{err: deadline, closed: true, over: true}, "the handler was cancelled after 1s: ", handlerError{timedOut: true}},
		"the deadline of its time, cut off":             {handlerReturn{err: deadline, closed: true, over: true, cutOff: true}, "the handler was cancelled after 1s: ", handlerError{timedOut: true, cutOff: true}},
		"nil on a closed connection after its time":     {handlerReturn{closed: true, over: true, cutOff: true}, "the handler was cancelled after 1s", handlerError{timedOut: true, cutOff: true}},
		"nil on a connection that its time-out closed":  {handlerReturn{closed: true, ranOut: true}, "the handler's own time-out closed", own},
		"nil on such a connection, told to stop":        {handlerReturn{closed: true, ranOut: true, stopped: true}, "the connection was lost", handlerError{stopped: true}},
		"nil on a lost connection, told to stop before": {handlerReturn{closed: true, stopped: true}, "the connection was lost", handlerError{stopped: true}},
		"nil after its time":                            {handlerReturn{over: true, status: 'T'}, "the handler was cancelled after 1s, and then", handlerError{timedOut: true}},
		"nil when told to stop":                         {handlerReturn{stopped: true, over: true, status: 'T'}, "the handler was told to stop", handlerError{stopped: true}},
	} {
		row.r.timeout = time.Second
		var got *handlerError
		if !errors.As(row.r.judge(), &got) {
			t.Errorf("%s: %v", name, row.r.judge())
			continue
		}
		if !strings.HasPrefix(got.Error(), row.says) || row.r.err != nil && !errors.Is(got, row.r.err) {
			t.Errorf("%s: %q, want %q", name, got, row.says)
		}
		if got.err = nil; *got != row.want {
			t.Errorf("%s: %+v, want %+v", name, *got, row.want)
		}
	}
	if err := (handlerReturn{ranOut: true, status: 'T'}).judge(); err != nil {
		t.Errorf("a time-out that closed nothing: %v", err)
	}
	for closed, err := range map[bool]error{true: errBoom, false: pgError("42501")} {
		var h *handlerError
		if !errors.As(judgeSettling(err, closed), &h) || !h.behind {
			t.Errorf("closed %v: %+v is not said to be behind the handler", closed, h)
		}
	}
}

func TestVerdict_WhoseFaultIsDecidedByEveryFact(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err  error
		c    failureFacts
		want fault
	}{
		"swallowed, but its time was not up":        {errBoom, failureFacts{inHandler: true, cutOff: true}, faultEvent},
		"read only behind it, on a lost connection": {pgError("25006"), failureFacts{inHandler: true, behind: true, connLost: true}, faultLost},
		"read only in the handler":                  {pgError("25006"), failureFacts{inHandler: true}, faultLost},
		"a lock that others hold, in our statement": {pgError("55P03"), failureFacts{}, faultDatabase},
		"a COMMIT that a constraint refuses":        {pgError("23505"), failureFacts{committing: true}, faultEvent},
	} {
		if got := faultOf(row.err, row.c); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
	for f := faultEvent; f <= faultInFlight; f++ {
		if want := f == faultDatabase || f == faultUnknown || f == faultLost; f.outage() != want {
			t.Errorf("%v is an outage: %v", f, f.outage())
		}
	}
	for _, code := range []string{"22000", "23505", "P0001"} {
		if !ofTheData(code) || unavailable(code) {
			t.Errorf("%s is said not to be of the data", code)
		}
	}
	for _, code := range []string{"08006", "53300", "58030", "57P01", "57P02", "57P03", "57P05", "25006"} {
		if !unavailable(code) || ofTheData(code) {
			t.Errorf("%s is said to be of a server that can work", code)
		}
	}
	for _, code := range []string{"", "2", "22", "2200", "220000", "P000", "0800", "5330", "5803", "42501", "40001", "57014"} {
		if ofTheData(code) || unavailable(code) {
			t.Errorf("%q is taken for a state that it is not", code)
		}
	}
}

func TestVerdict_AnEndedContextStopsWhateverFailed(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, row := range map[string]struct {
		ctx  context.Context
		c    failureFacts
		want fault
	}{
		"neither has ended":          {t.Context(), failureFacts{}, faultDatabase},
		"its context has ended":      {ended, failureFacts{}, faultStopped},
		"its handler was stopped":    {t.Context(), failureFacts{stopped: true}, faultStopped},
		"the handler ran out before": {ended, failureFacts{inHandler: true, timedOut: true}, faultEvent},
	} {
		if got := blame(row.ctx, errBoom, row.c); got.fault != row.want || got.err != errBoom {
			t.Errorf("%s: %v, %v; want %v", name, got.fault, got.err, row.want)
		}
	}
}

// A handler that hangs may be using its connection: nobody else may look at that.
func TestVerdict_AFailureOfAHandlerThatHangsAsksItsConnectionNothing(t *testing.T) {
	t.Parallel()
	hung := make(chan error)
	for name, row := range map[string]struct {
		h    handlerError
		want fault
	}{
		"its time was up":  {handlerError{timedOut: true}, faultEvent},
		"it was cut off":   {handlerError{timedOut: true, cutOff: true}, faultLost},
		"it was stopped":   {handlerError{stopped: true}, faultStopped},
		"only its handler": {handlerError{}, faultEvent},
	} {
		row.h.err, row.h.hung = errBoom, hung
		if got := failureOf(t.Context(), nil, &row.h); got.fault != row.want {
			t.Errorf("%s: %v, want %v", name, got.fault, row.want)
		}
	}
}
