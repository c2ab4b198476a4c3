package relay

import (
	"context"

	"github.com/holdfast-go/holdfast"
)

// Publisher sends events to a broker, in the order given, and answers once for each: nil means that the event is
// acknowledged and will survive. After a refusal, later events of the same topic and key in the call are not sent and
// answer with the same error, wrapped. FaultOf says what an error means for the event, its topic or its lane.
//
// Publish is called from many goroutines at once, one a lane; it must be bounded in time by itself, because a relay
// that stops lets the call in hand finish.
type Publisher interface {
	Publish(ctx context.Context, events []holdfast.Event) []error
}
