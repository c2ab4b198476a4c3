package natsjs

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// onTheWire is what nats.go makes of a message's headers.
func onTheWire(t testing.TB, m *nats.Msg) nats.Header {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("NATS/1.0\r\n")
	for name, values := range m.Header {
		for _, v := range values {
			b.WriteString(name + ": " + strings.TrimSpace(strings.NewReplacer("\r", " ", "\n", " ").Replace(v)) + "\r\n")
		}
	}
	b.WriteString("\r\n")
	h, err := nats.DecodeHeadersMsg(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func FuzzARecordComesBackFromAMessage(f *testing.F) {
	f.Add("k", "name", "value", []byte("payload"), true, true)
	f.Add("", "nats-rollup", "all", []byte(nil), true, false)
	f.Add(" ", "ce-id", "%41 ", []byte{}, false, true)
	f.Add("\x00\xff", "hf-key", "a\r\nNats-Rollup: all", []byte("%"), true, true)
	f.Add("ä", "Hf-Ce-x", "\t", []byte("x"), true, true)
	f.Fuzz(func(t *testing.T, key, name, value string, payload []byte, hasKey, hasValue bool) {
		if name == "" || strings.HasPrefix(strings.ToLower(name), "ce_") || strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) >= 0 {
			return // holdfast refuses such a header
		}
		r := publish.Record{Headers: []publish.Header{{Key: "ce_id", Value: []byte(value)}, {Key: name, Value: []byte(value)}}}
		if hasKey {
			r.Key = []byte(key)
		}
		if hasValue {
			r.Value = append([]byte{}, payload...)
		}
		m := MessageOf("orders.p0", r)
		for n := range m.Header {
			if strings.HasPrefix(strings.ToLower(n), "nats-") {
				t.Fatalf("a producer's header reaches the server as %s", n)
			}
		}
		got := RecordOf(onTheWire(t, m), m.Data)
		slices.SortFunc(got.Headers, func(a, b source.Header) int { return strings.Compare(a.Key, b.Key) })
		want := slices.Clone(r.Headers)
		slices.SortFunc(want, func(a, b publish.Header) int { return strings.Compare(a.Key, b.Key) })
		same := slices.EqualFunc(got.Headers, want, func(a source.Header, b publish.Header) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) })
		if !same || (got.Key == nil) != (r.Key == nil) || !bytes.Equal(got.Key, r.Key) || (got.Value == nil) != (r.Value == nil) || !bytes.Equal(got.Value, r.Value) {
			t.Fatalf("%+v comes back as %+v", r, got)
		}
	})
}

// What the server would drop as a repeat must be one for the inbox.
func TestMessage_OnlyARepeatHasTheSameMessageID(t *testing.T) {
	e := holdfast.Event{ID: "1", Source: "shop", Type: "t", Key: "k", Payload: []byte("p")}
	seen := map[string]holdfast.Event{}
	for _, change := range []func(e *holdfast.Event){
		func(*holdfast.Event) {}, func(e *holdfast.Event) { e.ID = "2" }, func(e *holdfast.Event) { e.Source = "other" }, func(e *holdfast.Event) { e.Type = "u" },
		func(e *holdfast.Event) { e.Key = "l" }, func(e *holdfast.Event) { e.Payload = []byte("q") }, func(e *holdfast.Event) { e.Payload = nil }, func(e *holdfast.Event) { e.Payload = []byte{} },
		func(e *holdfast.Event) { e.Headers = map[string]string{"tenant": "a"} }, func(e *holdfast.Event) { e.Headers = map[string]string{"tenant": "b"} },
		func(e *holdfast.Event) { e.Time = time.Unix(1, 0) }, func(e *holdfast.Event) { e.Headers = map[string]string{"tenan": "ta"} },
		func(e *holdfast.Event) { e.ID = "line\nbreak" }, func(e *holdfast.Event) { e.ID = strings.Repeat("x", 255) },
	} {
		changed := e
		change(&changed)
		id := messageID(changed)
		if other, twice := seen[id]; twice {
			t.Errorf("%+v and %+v have the message id %s", other, changed, id)
		}
		if seen[id] = changed; id != messageID(changed) || len(id) > 128 || strings.ContainsAny(id, "\r\n ") {
			t.Errorf("the message id of %+v is %q", changed, id)
		}
	}
	if got := messageID(e); !strings.HasPrefix(got, "1-") {
		t.Errorf("a readable id becomes %s", got)
	}
}

func TestMessage_ABinaryKeyGoesWhereItsBytesGo(t *testing.T) {
	e := holdfast.Event{ID: "1", Key: "data:;base64,AAAAAAAAACo="}
	if got, want := partitionOf(e, 7), murmur2.Partition("\x00\x00\x00\x00\x00\x00\x00\x2a", 7); got != want {
		t.Errorf("partition %d, want %d", got, want)
	}
}
