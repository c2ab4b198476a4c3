package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

type unnamedSource struct{}

func (unnamedSource) Open(context.Context, time.Duration) (source.Session, error) { return nil, nil }

type namedSource struct {
	unnamedSource
	system string
}

func (n namedSource) System() string { return n.system }

func TestSource_ASourceIsOfTheSystemThatItNamesOrOfKafka(t *testing.T) {
	for want, s := range map[string]Source{"nats": namedSource{system: "nats"}, "kafka": unnamedSource{}} {
		if got := systemOf(s); got != want {
			t.Errorf("it is of %q, want %q", got, want)
		}
	}
	if got := systemOf(namedSource{}); got != "kafka" { // as one that wraps another and does not know
		t.Errorf("one that says nothing is of %q", got)
	}
}
