package holdfasttest

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
)

// Golden compares events with a file, such as testdata/order_placed.golden.json. RequireGolden uses the zero Golden.
type Golden struct {
	// KeepIDs compares ids as they are. Without it, they become "id 1", "id 2" and so on, in the order of the file. An id of an event is
	// replaced in keys, headers and payloads too.
	KeepIDs bool

	// KeepTimes compares Time and NotBefore as they are. Without it, a time that is set becomes "set".
	KeepTimes bool

	// ChangeFunc changes a copy of each event before it is compared, to replace what is different in each run, such as a random number in
	// a payload. Headers and Payload are its own. Defaults to nil: it changes nothing.
	ChangeFunc func(e *holdfast.Event)
}

// RequireGolden is Golden{}.Require.
func RequireGolden(t testing.TB, file string, events []holdfast.Event) {
	t.Helper()
	Golden{}.Require(t, file, events)
}

// Require ends the test unless the events are those of the file, and shows the lines that differ. All of an event is compared, and
// the file shows it: what a change of the code does to what other services get is seen in its review. The events are in the order of
// their topics and keys, those of a key in theirs, those without one by their types: there is no other order. Payloads that are JSON are indented, and their fields sorted.
//
// With a flag -update that is true, Require writes the file instead. The package does not define the flag, because your tests may:
//
//	var _ = flag.Bool("update", false, "write golden files")
func (g Golden) Require(t testing.TB, file string, events []holdfast.Event) {
	t.Helper()
	got, err := g.text(events)
	if err != nil {
		t.Fatalf("compare with %s: %v", file, err)
		return // for a testing.TB whose Fatalf returns
	}
	if updating() {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatalf("write the golden file: %v", err)
			return
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatalf("write the golden file: %v", err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("read the golden file: %v: run the test with -update to write it", err)
		return
	}
	want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n")) // a checkout on Windows
	if !bytes.Equal(want, got) {
		t.Fatalf("the events are not those of %s (- the file, + the events). If they are right, run the test with -update:\n%s",
			file, diffLines(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")))
	}
}

// updating says whether the test binary has a flag -update that is true.
func updating() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

// goldenEvent is an event as a file shows it. One of the payloads is set, or Tombstone.
type goldenEvent struct {
	Topic     string            `json:"topic"`
	Key       string            `json:"key"`
	Type      string            `json:"type"`
	Source    string            `json:"source,omitempty"`
	ID        string            `json:"id"`
	Time      string            `json:"time,omitempty"`
	NotBefore string            `json:"not_before,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Payload   *any              `json:"payload,omitempty"` // JSON
	Text      *string           `json:"payload_text,omitempty"`
	Base64    *string           `json:"payload_base64,omitempty"`
	Tombstone bool              `json:"tombstone,omitempty"`
}

// text is the file's content for the events. It changes none of them.
func (g Golden) text(events []holdfast.Event) ([]byte, error) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b holdfast.Event) int {
		order := cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Key, b.Key))
		if order == 0 && a.Key == "" { // these have no order at all
			order = cmp.Compare(a.Type, b.Type)
		}
		return order
	})
	ids := g.ids(events)
	shown := make([]goldenEvent, len(events))
	for i, e := range events {
		e.Headers, e.Payload = maps.Clone(e.Headers), bytes.Clone(e.Payload)
		if g.ChangeFunc != nil {
			g.ChangeFunc(&e)
		}
		shown[i] = g.show(e, ids)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(shown); err != nil {
		return nil, fmt.Errorf("show the events: %w", err)
	}
	return out.Bytes(), nil
}

// ids replaces the events' ids by numbers. Longer ones come first: one may be a part of another.
func (g Golden) ids(events []holdfast.Event) *strings.Replacer {
	if g.KeepIDs {
		return strings.NewReplacer()
	}
	names := map[string]string{}
	for _, e := range events {
		if _, known := names[e.ID]; !known && e.ID != "" {
			names[e.ID] = fmt.Sprint("id ", len(names)+1)
		}
	}
	var pairs []string
	for _, id := range slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }) {
		pairs = append(pairs, id, names[id])
	}
	return strings.NewReplacer(pairs...)
}

func (g Golden) show(e holdfast.Event, ids *strings.Replacer) goldenEvent {
	s := goldenEvent{
		Topic:     e.Topic,
		Key:       ids.Replace(e.Key),
		Type:      e.Type,
		Source:    e.Source,
		ID:        ids.Replace(e.ID),
		Time:      g.moment(e.Time),
		NotBefore: g.moment(e.NotBefore),
	}
	for name, value := range e.Headers {
		if s.Headers == nil {
			s.Headers = map[string]string{}
		}
		s.Headers[name] = ids.Replace(value)
	}
	switch value, isJSON := decode([]byte(ids.Replace(string(e.Payload)))); {
	case e.Payload == nil:
		s.Tombstone = true
	case isJSON:
		s.Payload = &value
	case utf8.Valid(e.Payload):
		text := ids.Replace(string(e.Payload))
		s.Text = &text
	default:
		text := base64.StdEncoding.EncodeToString(e.Payload)
		s.Base64 = &text
	}
	return s
}

func (g Golden) moment(at time.Time) string {
	switch {
	case at.IsZero():
		return ""
	case g.KeepTimes:
		return at.UTC().Format(time.RFC3339Nano)
	}
	return "set"
}
