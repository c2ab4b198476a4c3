// Package steps is what the steps of an event's handler (inbox.Step) and of a request's (idempotency.Step) have in common: they run one at a
// time, each name once in a run, and their results are JSON of a bounded size. Where a result is recorded, and with what, is the business of
// those packages.
package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// MaxName is the maximum length of a step's name in bytes.
const MaxName = 128

// Errors of Do.
var (
	ErrName   = errors.New("its name must be 1 to 128 bytes of UTF-8 without NUL")
	ErrNested = errors.New("it runs inside another step: run one after the other")
	ErrTwice  = errors.New("this run has done a step of this name already: give each step its own name")
)

// Turns are the steps of one run of a handler. The zero value is that of a run that has done none. Many goroutines may use it at once.
type Turns struct {
	mu   sync.Mutex
	busy chan struct{}   // holds one element while a step runs; nil before the first
	done map[string]bool // the names of those that are done
}

// turn is the channel busy.
func (t *Turns) turn() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy == nil {
		t.busy = make(chan struct{}, 1)
	}
	return t.busy
}

// Busy reports that a step runs.
func (t *Turns) Busy() bool { return len(t.turn()) == 1 }

// Again says that the handler runs once more: it may do the same steps again.
func (t *Turns) Again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = nil
}

// isDone reports that a step of the name is done.
func (t *Turns) isDone(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done[name]
}

// did notes that a step of the name is done.
func (t *Turns) did(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = map[string]bool{}
	}
	t.done[name] = true
}

type inside struct{}

// Do runs a step of a run when those before it have ended, and returns its result. once does the step's work and records the result, or finds
// it recorded; it gets a context in which no other step can run. The error says which step it is of.
func Do[T any](ctx context.Context, t *Turns, name string, once func(ctx context.Context) (result []byte, err error)) (T, error) {
	var value, none T
	text, err := t.do(ctx, name, once)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		return none, fmt.Errorf("step %q: %w", name, err)
	}
	return value, nil
}

func (t *Turns) do(ctx context.Context, name string, once func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	switch {
	case name == "" || len(name) > MaxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return nil, ErrName
	case ctx.Value(inside{}) != nil:
		return nil, ErrNested
	}
	busy := t.turn()
	select {
	case busy <- struct{}{}:
		defer func() { <-busy }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if t.isDone(name) {
		return nil, ErrTwice
	}
	result, err := once(context.WithValue(ctx, inside{}, true))
	if err != nil {
		return nil, err
	}
	t.did(name)
	return result, nil
}

// Text is a step's result as it is recorded. One that is longer than most bytes, or that could not be read later, is an error now.
func Text[T any](value T, most int64) ([]byte, error) {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, new(T))
	}
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("its result is %d bytes long: it must be at most %d", len(text), most)
	}
	return text, err
}

// Key is what a step of an event gives to whom it calls: 64 hexadecimal digits, the SHA-256 of a JSON array of strings. hash is that of the event's
// type and payload.
func Key(consumer, source, eventID string, hash []byte, name string) string {
	text, _ := json.Marshal([]string{"holdfast/inbox/step", consumer, source, eventID, hex.EncodeToString(hash), name}) // Strings always can be.
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
