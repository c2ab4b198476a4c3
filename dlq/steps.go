package dlq

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/steps"
)

// Step is a step of an event's handler that is done and recorded (inbox.Step): when the handler runs again, it gets Result and does not call again.
type Step struct {
	Name         string
	Key          string // what its function got, for the system that it calls
	DoneAt       time.Time
	Result       string // as JSON; "" if it was not asked for
	OtherPayload bool   // it ran for another payload under the event's id, before an edit or of a conflict: for the payload now it runs again
}

// readSteps adds the steps of its event to a letter of an inbox.
func (d *DLQ) readSteps(ctx context.Context, l *Letter) error {
	if l.Origin != OriginInbox {
		return nil
	}
	recorded, err := steps.Read(ctx, d.pool, d.schema, l.Consumer, l.Event.Source, l.Event.ID, l.hash, true)
	for _, s := range recorded {
		l.Steps = append(l.Steps, Step(s))
	}
	return err
}
