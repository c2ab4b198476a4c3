//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

func TestContent_AContentTellsWhateverAnEventCarries(t *testing.T) {
	t.Parallel()
	event := func(change func(e *holdfast.Event)) holdfast.Event {
		e := holdfast.Event{ID: "1", Source: "torture", Type: typeChanged, Payload: []byte("a"), Headers: map[string]string{"by": "producer/0", "b": "2"}}
		change(&e)
		return e
	}
	seen := map[string]string{}
	for name, e := range map[string]holdfast.Event{
		"as it is":           event(func(e *holdfast.Event) {}),
		"another payload":    event(func(e *holdfast.Event) { e.Payload = []byte("b") }),
		"an empty payload":   event(func(e *holdfast.Event) { e.Payload = []byte{} }),
		"a tombstone":        event(func(e *holdfast.Event) { e.Payload = nil }),
		"another type":       event(func(e *holdfast.Event) { e.Type = typeShaky }),
		"a header is gone":   event(func(e *holdfast.Event) { delete(e.Headers, "b") }),
		"a header's value":   event(func(e *holdfast.Event) { e.Headers["b"] = "3" }),
		"no headers":         event(func(e *holdfast.Event) { e.Headers = nil }),
		"payload and header": event(func(e *holdfast.Event) { e.Payload, e.Headers = []byte(`a "b"="2"`), nil }),
	} {
		c := content(e)
		if other, known := seen[c]; known {
			t.Errorf("%q is reported as %q", name, other)
		}
		seen[c] = name
		if e.Topic = "orders"; content(e) != c {
			t.Errorf("%s: its topic is compared by itself", name)
		}
		record := kafkaserver.Record{Key: []byte(e.Key), Value: e.Payload, Headers: wire.Headers[kafka.Header](nil, e)}
		if read, err := eventOf("orders", record); err != nil || content(read) != c {
			t.Errorf("%s: a record of it is read as %+v, %v", name, read, err)
		}
	}
}

func TestContent_APayloadBeginsWithTheCanaryAndCannotBeCompressed(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	text := payload(rng, "0123", large)
	if !strings.HasPrefix(string(text), canary+" 0123 ") || len(text) < large {
		t.Errorf("%d bytes that begin with %q", len(text), text[:20])
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	if b.Len() < large {
		t.Errorf("%d bytes are compressed to %d", len(text), b.Len())
	}
	if bytes.Equal(text, payload(rng, "0123", large)) {
		t.Error("two payloads are the same")
	}
}
