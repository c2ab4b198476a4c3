package inbox

import (
	"fmt"
	"slices"
	"sync"
)

// registry holds the handlers of an inbox, by type.
type registry struct {
	handlers map[string]BatchHandler
	batched  map[string]bool // types that HandleBatch registered
	types    []string        // all types with a handler, sorted; set when the inbox starts

	mu      sync.Mutex
	started bool // Invariant: handlers does not change after it is set.
}

func newRegistry() *registry {
	return &registry{handlers: map[string]BatchHandler{}, batched: map[string]bool{}}
}

func (reg *registry) register(eventType string, h BatchHandler) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	switch {
	case reg.started:
		panic(fmt.Sprintf("inbox: handle %q: the inbox has started: register handlers before Receive, Run and Consume", eventType))
	case checkText("type", eventType, 1, 255) != nil:
		panic(fmt.Sprintf("inbox: handle %q: %v", eventType, checkText("type", eventType, 1, 255)))
	case reg.handlers[eventType] != nil:
		panic(fmt.Sprintf("inbox: handle %q: the type has a handler already: register each once", eventType))
	}
	reg.handlers[eventType] = h
}

// start ends the registration of handlers.
func (reg *registry) start() {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.started {
		return
	}
	reg.started = true
	reg.types = make([]string, 0, len(reg.handlers))
	for t := range reg.handlers {
		reg.types = append(reg.types, t)
	}
	slices.Sort(reg.types)
}
