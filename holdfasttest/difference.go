package holdfasttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// difference is one field in which an event differs from the one wanted.
type difference struct{ field, want, got string }

// nothing stands for a missing value.
const nothing = "nothing"

// differences compares the fields that are set in want.
func differences(want, got holdfast.Event) []difference {
	var all []difference
	text := func(field, w, g string) {
		if w != "" && w != g {
			all = append(all, difference{field, quote(w), quote(g)})
		}
	}
	moment := func(field string, w, g time.Time) {
		if w.IsZero() || w.Truncate(time.Microsecond).Equal(g.Truncate(time.Microsecond)) {
			return
		}
		d := difference{field, w.UTC().Format(time.RFC3339Nano), nothing}
		if !g.IsZero() {
			d.got = g.UTC().Format(time.RFC3339Nano)
		}
		all = append(all, d)
	}
	text("Type", want.Type, got.Type)
	text("Topic", want.Topic, got.Topic)
	text("Key", want.Key, got.Key)
	text("Source", want.Source, got.Source)
	text("ID", want.ID, got.ID)
	for _, name := range slices.Sorted(maps.Keys(want.Headers)) {
		if value, there := got.Headers[name]; !there {
			all = append(all, difference{"Headers[" + name + "]", quote(want.Headers[name]), nothing})
		} else if value != want.Headers[name] {
			all = append(all, difference{"Headers[" + name + "]", quote(want.Headers[name]), quote(value)})
		}
	}
	moment("Time", want.Time, got.Time)
	moment("NotBefore", want.NotBefore, got.NotBefore)
	if want.Payload != nil {
		all = append(all, payloads(want.Payload, got.Payload)...)
	}
	return all
}

// weight says how different an event is from the one wanted. What an event is about counts more than its content.
func weight(all []difference) int {
	w := 0
	for _, d := range all {
		switch d.field {
		case "Type":
			w += 10_000
		case "Key", "Topic", "ID":
			w += 100
		default:
			w++
		}
	}
	return w
}

func payloads(want, got []byte) []difference {
	if got != nil && bytes.Equal(want, got) {
		return nil
	}
	if w, ok := decode(want); ok {
		if g, ok := decode(got); ok {
			return values("Payload", w, g, nil)
		}
	}
	d := difference{"Payload", quote(string(want)), "a tombstone (nil)"}
	if got != nil {
		d.got = quote(string(got))
	}
	return []difference{d}
}

func decode(text []byte) (value any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // so that a large id is not rounded
	if d.Decode(&value) != nil {
		return nil, false
	}
	_, err := d.Token()
	return value, err == io.EOF
}

// values compares two JSON values and names each difference by its path.
func values(path string, want, got any, all []difference) []difference {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		names := slices.Collect(maps.Keys(w))
		for name := range g {
			if _, both := w[name]; !both {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			wv, inWant := w[name]
			gv, inGot := g[name]
			switch at := path + "." + name; {
			case !inWant:
				all = append(all, difference{at, nothing, compact(gv)})
			case !inGot:
				all = append(all, difference{at, compact(wv), nothing})
			default:
				all = values(at, wv, gv, all)
			}
		}
		return all
	case []any:
		g, ok := got.([]any)
		if !ok {
			break
		}
		for i := range max(len(w), len(g)) {
			switch at := path + "[" + strconv.Itoa(i) + "]"; {
			case i >= len(w):
				all = append(all, difference{at, nothing, compact(g[i])})
			case i >= len(g):
				all = append(all, difference{at, compact(w[i]), nothing})
			default:
				all = values(at, w[i], g[i], all)
			}
		}
		return all
	case json.Number:
		if g, ok := got.(json.Number); ok && sameNumber(string(w), string(g)) {
			return all
		}
	default: // string, bool, nil
		switch got.(type) {
		case map[string]any, []any, json.Number:
		default:
			if want == got {
				return all
			}
		}
	}
	return append(all, difference{path, compact(want), compact(got)})
}

// sameNumber reports whether two JSON numbers are equal: 1.50 and 1.5, 1e3 and 1000. Whole numbers are compared digit
// by digit, because a float64 cannot hold all of them.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	if !strings.ContainsAny(a, ".eE") && !strings.ContainsAny(b, ".eE") {
		return false
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && x == y
}

func compact(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("holdfasttest: marshal what was unmarshaled: %v", err))
	}
	return excerpt(string(text))
}

func quote(s string) string { return excerpt(strconv.Quote(s)) }

// describe names an event by the fields that are set.
func describe(e holdfast.Event) string {
	var parts []string
	add := func(field, value string) {
		if value != "" {
			parts = append(parts, field+" "+quote(value))
		}
	}
	add("Type", e.Type)
	add("Topic", e.Topic)
	add("Key", e.Key)
	add("Source", e.Source)
	add("ID", e.ID)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		add("Headers["+name+"]", e.Headers[name])
	}
	if !e.Time.IsZero() {
		parts = append(parts, "Time "+e.Time.UTC().Format(time.RFC3339Nano))
	}
	if !e.NotBefore.IsZero() {
		parts = append(parts, "NotBefore "+e.NotBefore.UTC().Format(time.RFC3339Nano))
	}
	if value, ok := decode(e.Payload); ok {
		parts = append(parts, "Payload "+compact(value))
	} else if e.Payload != nil {
		parts = append(parts, "Payload "+quote(string(e.Payload)))
	}
	if len(parts) == 0 {
		return "any event"
	}
	return strings.Join(parts, ", ")
}
