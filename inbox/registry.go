package inbox

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast"
)

// registry holds the handlers of an inbox, by type.
type registry struct {
	*settings
	handlers map[string]BatchHandler         // with what is around them; set when the inbox starts
	batched  map[string]bool                 // types that HandleBatch registered
	bare     map[string]handler              // as they were registered
	outer    func(BatchHandler) BatchHandler // around all handlers and their middleware

	around      []func(Handler) Handler // middleware, the outermost first
	aroundBatch []func(BatchHandler) BatchHandler

	// All types with a handler, and those without a limit of their own (WithConcurrency), sorted; set when the inbox starts.
	types, unlimited []string

	mu      sync.Mutex
	started bool  // Invariant: handlers does not change after it is set.
	wrong   error // what the registrations got wrong
}

// handler is for single events or for batches.
type handler struct {
	one   Handler
	batch BatchHandler
	read  func(ctx context.Context, e holdfast.Event) (any, error) // the payload, for On and OnBatch; nil for others
}

func newRegistry(s *settings, outer func(BatchHandler) BatchHandler) *registry {
	return &registry{
		settings: s,
		outer:    outer,
		handlers: map[string]BatchHandler{},
		batched:  map[string]bool{},
		bare:     map[string]handler{},
	}
}

// use adds middleware.
func (reg *registry) use(add func()) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.started {
		panic("inbox: use: the inbox has started: add middleware before Receive, Run and Consume")
	}
	add()
}

// register registers a handler for a type, and for older versions of it. They share what the registration says.
func (reg *registry) register(types []string, r registration, h handler) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for _, t := range types {
		reg.add(t, h)
	}
	r.batch = h.batch != nil
	reg.note(r, types...)
}

// add adds the handler of a type. The caller holds the mutex.
func (reg *registry) add(eventType string, h handler) {
	switch {
	case reg.started:
		panic(fmt.Sprintf("inbox: handle %q: the inbox has started: register handlers before Receive, Run and Consume", eventType))
	case checkText("type", eventType, 1, 255) != nil:
		panic(fmt.Sprintf("inbox: handle %q: %v", eventType, checkText("type", eventType, 1, 255)))
	case reg.bare[eventType].one != nil, reg.bare[eventType].batch != nil:
		panic(fmt.Sprintf("inbox: handle %q: the type has a handler already: register each once", eventType))
	}
	reg.bare[eventType] = h
	if h.batch != nil {
		reg.batched[eventType] = true
	}
}

// readerOf is what reads the payloads of a type; nil if they are taken as they come, or the type has no handler.
func (reg *registry) readerOf(eventType string) func(ctx context.Context, e holdfast.Event) (any, error) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return reg.bare[eventType].read
}

// start ends the registration of handlers. The error says what is wrong with it, each time.
func (reg *registry) start() error {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.started {
		return reg.wrong
	}
	reg.started = true
	reg.types = make([]string, 0, len(reg.bare))
	for t, h := range reg.bare {
		reg.types = append(reg.types, t)
		if h.batch != nil {
			reg.handlers[t] = reg.outer(wrappedBatch(h.batch, reg.aroundBatch))
		} else {
			reg.handlers[t] = reg.outer(wrapped(h.one, reg.around))
		}
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
