package failure

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/retry"
)

func TestReturned_AHandlerIsJudgedByWhatItLeaves(t *testing.T) {
	boom := errors.New("boom")
	for name, row := range map[string]struct {
		r    Return
		want string // of its error; "" for a success
		f    Fault
	}{
		"nil in an open transaction":                {Return{Status: 'T'}, "", 0},
		"an error":                                  {Return{Err: boom, Status: 'T'}, "boom", FaultEvent},
		"an error after its time":                   {Return{Err: boom, Over: true, Status: 'T'}, "cancelled after 1s: boom", FaultEvent},
		"an error after it was told to stop":        {Return{Err: boom, Over: true, Stopped: true, Status: 'T'}, "boom", FaultStopped},
		"an error on a lost connection":             {Return{Err: boom, Closed: true}, "boom", FaultLost},
		"an error of its own time-out":              {Return{Err: context.DeadlineExceeded, Closed: true}, "the handler's own time-out", FaultEvent},
		"an error after its own time-out":           {Return{Err: boom, Closed: true, RanOut: true}, "the handler's own time-out", FaultEvent},
		"an error on a swallowed statement":         {Return{Err: boom, Over: true, Closed: true, CutOff: true}, "cancelled after 1s: boom", FaultLost},
		"nil after its time":                        {Return{Over: true, Status: 'T'}, "cancelled after 1s, and then returned nil", FaultEvent},
		"nil after it was told to stop":             {Return{Over: true, Stopped: true, Status: 'T'}, "told to stop", FaultStopped},
		"nil on a lost connection":                  {Return{Closed: true}, "the connection was lost", FaultLost},
		"nil on a lost connection, told to stop":    {Return{Closed: true, Over: true, Stopped: true}, "the connection was lost", FaultStopped},
		"nil after its statement was cancelled":     {Return{Closed: true, Over: true}, "cancelled after 1s", FaultEvent},
		"nil after a swallowed statement":           {Return{Closed: true, Over: true, CutOff: true}, "cancelled after 1s", FaultLost},
		"nil after its own time-out":                {Return{Closed: true, RanOut: true}, "the handler's own time-out", FaultEvent},
		"nil with rows open":                        {Return{Busy: true, Status: 'T'}, "rows or batch results open", FaultEvent},
		"nil without a transaction":                 {Return{Status: 'I'}, "ended its transaction", FaultEvent},
		"nil in a transaction that it began itself": {Return{Status: 'T', Ended: true}, "ended its transaction", FaultEvent},
		"an error in one that it began itself":      {Return{Err: boom, Status: 'T', Ended: true}, "it returned: boom", FaultEvent},
		"an error after it ended it":                {Return{Err: boom, Status: 'I', Ended: true}, "it returned: boom", FaultEvent},
		"an error after it ended it unseen":         {Return{Err: boom, Status: 'I'}, "it returned: boom", FaultEvent},
		"its time is over after it ended it unseen": {Return{Err: boom, Over: true, Status: 'I'}, "it returned: boom", FaultEvent},
		"the refusal to end it":                     {Return{Err: ErrNotTheHandlers, Status: 'T', Ended: true}, "ended its transaction by a statement: holdfast ends", FaultEvent},
		"nil after it tried to end it, too late":    {Return{Over: true, Status: 'T', Ended: true}, "ended its transaction", FaultEvent},
		"nil in a failed transaction":               {Return{Status: 'E'}, "a statement failed, but the handler returned nil", FaultEvent},
	} {
		row.r.Timeout = time.Second
		err := row.r.Judge()
		if row.want == "" || err == nil {
			if err != nil || row.want != "" {
				t.Errorf("%s: %v, want %q", name, err, row.want)
			}
			continue
		}
		var h *HandlerError
		if !errors.As(err, &h) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want a handler's error with %q", name, err, row.want)
			continue
		}
		c := Facts{InHandler: true, TimedOut: h.TimedOut, Stopped: h.Stopped, CutOff: h.CutOff, ConnLost: row.r.Closed}
		if f := FaultOf(err, c); f != row.f {
			t.Errorf("%s: judged %v, want %v", name, f, row.f)
		}
		if gone := row.r.Ended || row.r.Status == 'I'; gone != retry.IsPermanent(err) && !row.r.Closed {
			t.Errorf("%s: permanent is %v", name, !gone)
		}
	}
}

func TestReturned_WhatPostgresRefusesBehindAHandlerIsItsFailure(t *testing.T) {
	boom := errors.New("boom")
	for name, row := range map[string]struct {
		err    error
		closed bool
		want   Fault
	}{
		"a role without rights":                       {pgError("42501"), false, FaultEvent},
		"a failed transaction":                        {pgError("25P02"), false, FaultEvent},
		"a transaction made read only":                {pgError("25006"), false, FaultEvent},
		"a constraint":                                {pgError("23514"), false, FaultEvent},
		"contention":                                  {pgError("40001"), false, FaultContended},
		"a lock that others hold":                     {pgError("55P03"), false, FaultLost},
		"a statement that was cancelled":              {pgError("57014"), false, FaultLost},
		"a server that shuts down":                    {pgError("57P01"), false, FaultLost},
		"a connection that was lost":                  {boom, true, FaultLost},
		"a lease that was lost is not":                {errors.New("the lease of the event was lost"), false, FaultDatabase},
		"nor is anything else that Postgres says not": {boom, false, FaultDatabase},
	} {
		err := JudgeSettling(row.err, row.closed)
		var h *HandlerError
		blamed := errors.As(err, &h)
		if got := FaultOf(err, Facts{InHandler: blamed, Behind: blamed && h.Behind, ConnLost: row.closed}); got != row.want || !errors.Is(err, row.err) {
			t.Errorf("%s: judged %v (%v), want %v", name, got, err, row.want)
		}
	}
	if err := JudgeSettling(nil, false); err != nil {
		t.Error(err)
	}
}
