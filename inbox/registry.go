package inbox

import (
	"fmt"
	"slices"
	"sync"
)

// registry holds the handlers of an inbox, by type.
type registry struct {
	*settings
	handlers map[string]BatchHandler
	batched  map[string]bool // types that HandleBatch registered

	// All types with a handler, and those without a limit of their own (WithConcurrency), sorted; set when the inbox starts.
	types, unlimited []string

	mu      sync.Mutex
	started bool  // Invariant: handlers does not change after it is set.
	wrong   error // what the registrations got wrong
}

func newRegistry(s *settings) *registry {
	return &registry{settings: s, handlers: map[string]BatchHandler{}, batched: map[string]bool{}}
}

// register registers a handler for a type, and for older versions of it. They share what the registration says.
func (reg *registry) register(types []string, r registration, batched bool, h BatchHandler) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for _, t := range types {
		reg.add(t, batched, h)
	}
	reg.note(r, types...)
}

// add adds the handler of a type. The caller holds the mutex.
func (reg *registry) add(eventType string, batched bool, h BatchHandler) {
	switch {
	case reg.started:
		panic(fmt.Sprintf("inbox: handle %q: the inbox has started: register handlers before Receive, Run and Consume", eventType))
	case checkText("type", eventType, 1, 255) != nil:
		panic(fmt.Sprintf("inbox: handle %q: %v", eventType, checkText("type", eventType, 1, 255)))
	case reg.handlers[eventType] != nil:
		panic(fmt.Sprintf("inbox: handle %q: the type has a handler already: register each once", eventType))
	}
	reg.handlers[eventType] = h
	if batched {
		reg.batched[eventType] = true
	}
}

// start ends the registration of handlers. The error says what is wrong with it, each time.
func (reg *registry) start() error {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.started {
		return reg.wrong
	}
	reg.started = true
	reg.types = make([]string, 0, len(reg.handlers))
	for t := range reg.handlers {
		reg.types = append(reg.types, t)
	}
	slices.Sort(reg.types)
	reg.unlimited = slices.DeleteFunc(slices.Clone(reg.types), func(t string) bool { return reg.turnsOf(t) != nil })
	reg.wrong = reg.checked()
	return reg.wrong
}

// after are the types that a worker may go on with after a stored event of a type, without another turn.
func (reg *registry) after(eventType string) []string {
	if reg.turnsOf(eventType) != nil {
		return []string{eventType}
	}
	return reg.unlimited
}
