//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type mortal struct{ looks atomic.Int32 }

func (m *mortal) Revive(context.Context) (ended, err error) {
	switch m.looks.Add(1) {
	case 2:
		return errors.New("PgBouncer 1.18.0 ended by itself, its log ends with:\nLOG something\nFATAL bad client state: 0\n"), nil
	case 3:
		return nil, errors.New("no port")
	}
	return nil, nil
}

func TestSupervise_APoolerThatEndsByItselfIsStartedAgainAndTheReportSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, m := &run{Options: Options{Out: io.Discard}, report: &Report{}}, &mortal{}
		finish := r.supervise(t.Context(), m)
		time.Sleep(5*superviseEvery + superviseEvery/2)
		r.report.revived = finish()
		if want := []string{"FATAL bad client state: 0", "could not be started again: no port"}; !slices.Equal(r.report.revived, want) {
			t.Errorf("it saw %q, want %q", r.report.revived, want)
		}
		looks := m.looks.Load()
		time.Sleep(2 * superviseEvery)
		if m.looks.Load() != looks {
			t.Error("it looks on after it was finished")
		}
		if text := r.report.String(); !strings.Contains(text, "PgBouncer ended by itself 2 times") || !strings.Contains(text, "FATAL bad client state") {
			t.Errorf("the report does not say it:\n%s", text)
		}
	})
}
