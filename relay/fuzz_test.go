package relay

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast"
)

// Headers that a table may hold come back as they were written, and no text of a JSON object stops a reader.
func FuzzHeadersComeBackFromTheTable(f *testing.F) {
	f.Add("traceparent", "00-4bf92f-01", "tenant", "ö\"\\\u2028", `{"a": "b"}`)
	f.Add("", "", "a", "<script>&", `{"n": 1, "s": "x", "l": ["y"], "o": {}, "z": null}`)
	f.Add("a", "null", "", "", `{"z": null, "s": "null"}`)
	f.Add("dup", "1", "dup", "2", `{"dup": "1", "dup": 2}`)
	f.Add("a", "\xff", "b", "\ufffd", `[1]`)
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2, text string) {
		var raw map[string]json.RawMessage
		object := json.Unmarshal([]byte(text), &raw) == nil
		var read holdfast.Event
		if err := parseHeaders([]byte(text), &read); (err == nil) != object {
			t.Fatalf("%q is an object: %v, and read with %v", text, object, err)
		}
		if len(read.Headers) != len(raw) {
			t.Fatalf("%q has %d headers of %d", text, len(read.Headers), len(raw))
		}
		for name, value := range raw {
			want := string(value) // the JSON that it is
			if value[0] == '"' {
				if err := json.Unmarshal(value, &want); err != nil {
					t.Fatal(err)
				}
			}
			if got, there := read.Headers[name]; !there || got != want {
				t.Fatalf("%q: header %q is %q, want %q", text, name, got, want)
			}
		}
		for _, s := range []string{name1, value1, name2, value2} {
			if !utf8.ValidString(s) {
				return // the door refuses it
			}
		}
		e := holdfast.Event{Headers: map[string]string{name1: value1, name2: value2}}
		var back holdfast.Event
		if err := parseHeaders([]byte(*headersText(&logEvent{Event: e})), &back); err != nil || !maps.Equal(back.Headers, e.Headers) {
			t.Fatalf("%v came back as %v, %v", e.Headers, back.Headers, err)
		}
	})
}

// A cut is corrected by taking out its own transaction, and nothing else changes. A set is the slow model of it.
func FuzzACutIsCorrectedByItsOwnTransactionAlone(f *testing.F) {
	f.Add("10:20:11,14", uint64(15))
	f.Add("10:20:", uint64(9))
	f.Add("10:10:", uint64(10))
	f.Add("5:9:5,6,7,8", uint64(4))
	f.Fuzz(func(t *testing.T, text string, own uint64) {
		s, err := parseSnapshot(text)
		if err != nil || own == 0 {
			return
		}
		before := s.String()
		corrected := s.without(own)
		if s.String() != before {
			t.Fatalf("%s was changed in place to %s", before, s)
		}
		if again, err := parseSnapshot(corrected.String()); err != nil || again.String() != corrected.String() {
			t.Fatalf("%s without %d is %s, which reads as %v, %v", before, own, corrected, again, err)
		}
		ask := append(slices.Clone(s.inFlight), own, s.xmin, s.xmax, s.xmin-1, s.xmax-1, own-1, own+1)
		for _, xid := range ask {
			if want := xid != own && s.visible(xid); corrected.visible(xid) != want {
				t.Fatalf("%s without %d: %d is visible: %v", before, own, xid, corrected.visible(xid))
			}
		}
		if corrected.xmax != s.xmax {
			t.Fatalf("%s without %d ends at %d", before, own, corrected.xmax)
		}
	})
}

// A cursor that goes over the pages of a window covers what has been read, at each of them, and nothing else; in the end it
// covers the window. Which transactions the two snapshots see, and how they lie in the log, is free.
func FuzzACursorCoversWhatWasReadAndNoMore(f *testing.F) {
	f.Add([]byte{2, 9, 4, 9, 12, 5, 3}, byte(8), byte(6), byte(0b10010), byte(0b1000), byte(2))
	f.Add([]byte{1, 1, 1, 1}, byte(1), byte(9), byte(0), byte(0), byte(1))
	f.Add([]byte{7, 0, 3, 15, 15, 15, 14}, byte(15), byte(0), byte(255), byte(1), byte(3))
	f.Fuzz(func(t *testing.T, xids []byte, first, later, flying, still, limit byte) {
		if limit == 0 {
			return
		}
		// In flight at done are some of the eight transactions below its end; at upto some of those, and some that began since.
		done := snapshot{xmax: 3 + uint64(first)}
		for xid := max(3, done.xmax-8); xid < done.xmax; xid++ {
			if flying>>(done.xmax-xid-1)&1 == 1 {
				done.inFlight = append(done.inFlight, xid)
			}
		}
		upto := snapshot{xmax: done.xmax + uint64(later)}
		for xid := max(3, upto.xmax-8); xid < upto.xmax; xid++ {
			if still>>(upto.xmax-xid-1)&1 == 1 && !done.visible(xid) {
				upto.inFlight = append(upto.inFlight, xid)
			}
		}
		for _, s := range []*snapshot{&done, &upto} {
			if s.xmin = s.xmax; len(s.inFlight) > 0 {
				s.xmin = s.inFlight[0]
			}
		}
		covered := func(c cursor, xid uint64, seq int64) bool {
			before, err := parseSnapshot(c.done)
			if err != nil {
				t.Fatal(err)
			}
			if before.visible(xid) || c.upto == "" {
				return before.visible(xid)
			}
			window, err := parseSnapshot(c.upto)
			if err != nil {
				t.Fatal(err)
			}
			return window.visible(xid) && seq <= c.pos
		}
		at := cursor{done: done.String()}
		read := map[int64]bool{}
		for full := true; full; {
			var page []int64
			for i, x := range xids {
				seq, xid := int64(i+1), 3+uint64(x)
				if upto.visible(xid) && !done.visible(xid) && seq > at.pos && len(page) < int(limit) {
					page = append(page, seq)
				}
			}
			full = len(page) == int(limit)
			last := int64(0)
			for _, seq := range page {
				read[seq], last = true, seq
			}
			at = at.after(upto.String(), full, last)
			for i, x := range xids {
				seq, xid := int64(i+1), 3+uint64(x)
				if want := done.visible(xid) || read[seq]; covered(at, xid, seq) != want {
					t.Fatalf("from %s to %s, at %+v: event %d of transaction %d is covered: %v", done, upto, at, seq, xid, !want)
				}
			}
		}
		if (at != cursor{done: upto.String()}) {
			t.Fatalf("after the last page of the window to %s the cursor is %+v", upto, at)
		}
	})
}

// The cut that ends a window is the last of those that the log holds within the span.
func FuzzTheCutOfAWindow(f *testing.F) {
	f.Add([]byte{1, 2, 3, 50, 51}, int64(10))
	f.Add([]byte{}, int64(0))
	f.Add([]byte{255, 0, 255}, int64(-1))
	f.Fuzz(func(t *testing.T, gaps []byte, span int64) {
		var cuts []cut
		seq := int64(0)
		for i, gap := range gaps {
			seq += int64(gap)
			cuts = append(cuts, cut{upto: fmt.Sprint(i), seq: seq})
		}
		chosen, found := chooseCut(cuts, span)
		if found != (len(cuts) > 0) {
			t.Fatalf("%d cuts, found: %v", len(cuts), found)
		}
		if !found {
			return
		}
		want := 0 // the slow model looks at every one
		for i := range cuts {
			within := true
			for _, c := range cuts[1 : i+1] {
				within = within && c.seq-cuts[0].seq <= span
			}
			if within {
				want = i
			}
		}
		if chosen != cuts[want] {
			t.Fatalf("of %v within %d: %v instead of %v", cuts, span, chosen, cuts[want])
		}
	})
}
