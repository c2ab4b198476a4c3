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
	"maps"
	"reflect"
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
	mu     sync.Mutex
	busy   chan struct{}   // holds one element while a step runs; nil before the first
	done   map[string]bool // the names of those that are done
	before map[string]bool // of these, those that were done when the handler began (Begins); nil before
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

// Begins says that the handler is called. When it is called once more in a run, by a middleware, it may do its steps again, but still none of the
// middleware's.
func (t *Turns) Begins() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.before != nil {
		t.done = maps.Clone(t.before)
		return
	}
	t.before = map[string]bool{}
	maps.Copy(t.before, t.done)
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
	if err == nil && json.Unmarshal(text, &value) != nil { // The error may quote the result.
		err = fmt.Errorf("its recorded result cannot be read as %s", reflect.TypeFor[T]())
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
	case ctx.Value(inside{}) == t:
		return nil, ErrNested
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
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
	result, err := once(context.WithValue(ctx, inside{}, t))
	if err != nil {
		return nil, err
	}
	t.did(name)
	return result, nil
}

// Text is a step's result as it is recorded. One that is longer than most bytes, or that could not be read later, is an error now.
func Text[T any](value T, most int64) ([]byte, error) {
	text, err := json.Marshal(value)
	switch {
	case err != nil:
		return nil, err
	case !utf8.Valid(text):
		return nil, errors.New("its result is not UTF-8")
	case json.Unmarshal(text, new(T)) != nil: // The error may quote the result.
		return nil, fmt.Errorf("its result cannot be read as %s", reflect.TypeFor[T]())
	case int64(len(text)) > most:
		return nil, fmt.Errorf("its result is %d bytes long: it must be at most %d", len(text), most)
	}
	return text, nil
}

// Recordable is an error if no result of the type could be recorded.
func Recordable[T any]() error {
	var zero T
	_, err := json.Marshal(zero)
	return err
}

// Hash is what the steps of an event go by of the hash of its row: all of it, so that another payload has other steps. A row of package webhook
// may have the provider's version after the hash. One event in two versions cannot be compared, so its steps go by its id alone.
func Hash(hash []byte) []byte {
	if len(hash) > sha256.Size {
		return []byte{}
	}
	return hash
}

// Key is what a step of an event gives to whom it calls: 64 hexadecimal digits, the SHA-256 of a JSON array of strings. hash is as Hash returns it.
func Key(consumer, source, eventID string, hash []byte, name string) string {
	text, _ := json.Marshal([]string{"holdfast/inbox/step", consumer, source, eventID, hex.EncodeToString(hash), name}) // Strings always can be.
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
