package servers

import (
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Missing says why the machine cannot give a server. It is an error of the machine, not of the server.
type Missing string

func (m Missing) Error() string { return string(m) }

// IsMissing tells a machine that has no such server from one whose server fails.
func IsMissing(err error) bool {
	var missing Missing
	return errors.As(err, &missing) || errors.Is(err, ErrNoClone)
}

// Need ends a test that needs what, "PostgreSQL", and got err instead. Where the machine has none the test is skipped, or
// fails if services are required; remedy says what to do about it, and variable, where there is one, is how to name a server that runs already. A server
// that fails, where there is one, is a failure. A nil error ends nothing.
func Need(t testing.TB, err error, what, remedy, variable string) {
	t.Helper()
	switch {
	case err == nil:
		return
	case !IsMissing(err):
		t.Fatal(err)
	case errors.Is(err, ErrNoClone):
		remedy = "clone the repository"
		if variable != "" {
			remedy += " or set " + variable
		}
	}
	skip.Without(t, what, remedy, err)
}

// Once is what the tests of a binary share: the first that asks for it starts it, and a failure is remembered too.
type Once[S any] struct {
	once   sync.Once
	server S
	err    error
}

// Get returns the server, which start starts if no test has asked before.
func (o *Once[S]) Get(start func() (S, error)) (S, error) {
	o.once.Do(func() { o.server, o.err = start() })
	return o.server, o.err
}

// Close returns the server where one was started. Get fails from then on where none was: a server that no test asked for
// is not started to be stopped.
func (o *Once[S]) Close() (server S, started bool) {
	o.once.Do(func() { o.err = errors.New("the tests are over") })
	return o.server, o.err == nil
}
