package wire_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/wire"
)

type named string

func (n named) System() string { return string(n) }

func TestSystem_WhoNamesNoSystemIsOfKafka(t *testing.T) {
	for want, of := range map[string]any{"nats": named("nats"), "kafka": struct{}{}} {
		if got := wire.System(of); got != want {
			t.Errorf("%T is of %q, want %q", of, got, want)
		}
	}
	if got := wire.System(named("")); got != "kafka" { // as one that wraps another and does not know
		t.Errorf("one that says nothing is of %q", got)
	}
}
