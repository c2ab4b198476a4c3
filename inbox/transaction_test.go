package inbox

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
)

func TestTransaction_AnEndedContextStopsWhateverFailed(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	boom := errors.New("boom")
	for name, row := range map[string]struct {
		ctx  context.Context
		c    failure.Facts
		want failure.Fault
	}{
		"neither has ended":          {t.Context(), failure.Facts{}, failure.FaultDatabase},
		"its context has ended":      {ended, failure.Facts{}, failure.FaultStopped},
		"its handler was stopped":    {t.Context(), failure.Facts{Stopped: true}, failure.FaultStopped},
		"the handler ran out before": {ended, failure.Facts{InHandler: true, TimedOut: true}, failure.FaultEvent},
	} {
		if got := blame(row.ctx, boom, row.c); got.Fault != row.want || got.Err != boom {
			t.Errorf("%s: %v, %v; want %v", name, got.Fault, got.Err, row.want)
		}
	}
}

// A handler that hangs may be using its connection: nobody else may look at that.
func TestTransaction_AFailureOfAHandlerThatHangsAsksItsConnectionNothing(t *testing.T) {
	t.Parallel()
	hung := make(chan error)
	for name, row := range map[string]struct {
		h    failure.HandlerError
		want failure.Fault
	}{
		"its time was up":  {failure.HandlerError{TimedOut: true}, failure.FaultEvent},
		"it was cut off":   {failure.HandlerError{TimedOut: true, CutOff: true}, failure.FaultLost},
		"it was stopped":   {failure.HandlerError{Stopped: true}, failure.FaultStopped},
		"only its handler": {failure.HandlerError{}, failure.FaultEvent},
	} {
		row.h.Err, row.h.Hung = errors.New("boom"), hung
		if got := failureOf(t.Context(), nil, &row.h); got.Fault != row.want {
			t.Errorf("%s: %v, want %v", name, got.Fault, row.want)
		}
	}
}
