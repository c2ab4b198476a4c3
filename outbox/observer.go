package outbox

import (
	"context"
	"maps"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// Observer sees what an Outbox does. Any field may be nil. The functions are called in line, from many goroutines at once,
// and must be quick. The events carry payloads: keep those out of logs.
type Observer struct {
	// OnWrite is called by each Write, with its context and its events, before anything is checked or sent. The events belong to the
	// caller of Write: copy what you keep. ended is called once, with the error that Write returns.
	//
	// headers travel with each of the events, as traceparent does. An event that has one of these headers itself gets none of
	// them. Headers that could not be written, because their name or value is not valid, or because the event would exceed a limit
	// with them, are left out: what observes a change does not fail it.
	OnWrite func(ctx context.Context, events []holdfast.Event) (headers map[string]string, ended func(err error))
}

// withHeaders returns the events with more headers, except for those that have one of them or would exceed a limit. The given
// events stay as they are.
func withHeaders(events []holdfast.Event, more map[string]string) []holdfast.Event {
	if len(more) == 0 || len(limitHeaders(more)) > 0 {
		return events
	}
	all := make([]holdfast.Event, len(events))
	for i, e := range events {
		switch {
		case len(e.Headers) == 0:
			e.Headers = more
		case !anyOf(e.Headers, more):
			merged := maps.Clone(e.Headers)
			maps.Copy(merged, more)
			if len(limitSizes(merged)) == 0 {
				e.Headers = merged
			}
		}
		all[i] = e
	}
	return all
}

// anyOf says whether an event's headers have one of the names, in upper or lower case.
func anyOf(headers, names map[string]string) bool {
	for header := range headers {
		for name := range names {
			if strings.EqualFold(header, name) {
				return true
			}
		}
	}
	return false
}
