package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
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
		if err := parseHeaders([]byte(*headersText(&record{Event: e})), &back); err != nil || !maps.Equal(back.Headers, e.Headers) {
			t.Fatalf("%v came back as %v, %v", e.Headers, back.Headers, err)
		}
	})
}

// A cut is mended by taking out its own transaction, and nothing else changes. The slow twin is a set.
func FuzzACutIsMendedByItsOwnTransactionAlone(f *testing.F) {
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
		mended := s.without(own)
		if s.String() != before {
			t.Fatalf("%s was changed in place to %s", before, s)
		}
		if again, err := parseSnapshot(mended.String()); err != nil || again.String() != mended.String() {
			t.Fatalf("%s without %d is %s, which reads as %v, %v", before, own, mended, again, err)
		}
		ask := append(slices.Clone(s.inFlight), own, s.xmin, s.xmax, s.xmin-1, s.xmax-1, own-1, own+1)
		for _, xid := range ask {
			if want := xid != own && s.visible(xid); mended.visible(xid) != want {
				t.Fatalf("%s without %d: %d is visible: %v", before, own, xid, mended.visible(xid))
			}
		}
		if mended.xmax != s.xmax {
			t.Fatalf("%s without %d ends at %d", before, own, mended.xmax)
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
			t.Fatalf("behind the last page of the window to %s the cursor is %+v", upto, at)
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
		want := 0 // the slow twin looks at every one
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

// javasMurmur2 is Utils.murmur2 as Java has it, in signed numbers, from bytes.
func javasMurmur2(data []byte) int32 {
	const m, r = int32(0x5bd1e995), 24
	h := int32(-1756908916) ^ int32(len(data)) // 0x9747b28c
	for i := range len(data) / 4 {
		k := int32(data[4*i]) + int32(data[4*i+1])<<8 + int32(data[4*i+2])<<16 + int32(data[4*i+3])<<24
		k *= m
		k ^= int32(uint32(k) >> r)
		k *= m
		h *= m
		h ^= k
	}
	rest := data[len(data)&^3:]
	if len(rest) == 3 {
		h ^= int32(rest[2]) << 16
	}
	if len(rest) >= 2 {
		h ^= int32(rest[1]) << 8
	}
	if len(rest) >= 1 {
		h ^= int32(rest[0])
		h *= m
	}
	h ^= int32(uint32(h) >> 13)
	h *= m
	return h ^ int32(uint32(h)>>15)
}

func FuzzKeysGoWhereJavaPutsThem(f *testing.F) {
	for key := range murmurVectors {
		f.Add([]byte(key), uint8(7))
	}
	f.Add([]byte{0x80, 0xff, 0x80}, uint8(0))
	f.Fuzz(func(t *testing.T, key []byte, more uint8) {
		partitions := int(more) + 1
		if got, want := int32(murmur2(string(key))), javasMurmur2(key); got != want {
			t.Fatalf("murmur2(%x) = %d, Java's is %d", key, got, want)
		}
		if len(key) == 0 {
			return
		}
		all := make([]int, partitions)
		for i := range all {
			all[i] = i
		}
		want := kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: key}, all...)
		if got := Murmur2(holdfast.Event{Key: string(key), ID: "other"}, partitions); got != want || got < 0 || got >= partitions {
			t.Fatalf("%x goes to %d of %d, kafka-go says %d", key, got, partitions, want)
		}
	})
}

// Every code of Kafka's has one fault and one class, and neither wrapping nor what is joined to it changes them.
func FuzzEveryErrorIsSomebodysFault(f *testing.F) {
	for code := range kafkaFaults {
		f.Add(int(code), byte(0), "text")
	}
	f.Add(-1, byte(1), "")
	f.Add(1<<30, byte(255), "x\x00\xff")
	f.Add(0, byte(2), "no code at all")
	faults := []Fault{FaultRecord, FaultTopic, FaultPartition, FaultBroker}
	f.Fuzz(func(t *testing.T, code int, shape byte, text string) {
		var err error = kafka.Error(code)
		if shape&1 != 0 {
			err = errors.New(text)
		}
		if shape&2 != 0 {
			err = retry.Permanent(err)
		}
		fault := FaultOf(err)
		if !slices.Contains(faults, fault) {
			t.Fatalf("%v is the fault of %q", err, fault)
		}
		wrapped := fmt.Errorf("%s: %w", text, err)
		if got := FaultOf(wrapped); got != fault {
			t.Fatalf("%v: %q, and wrapped %q", err, fault, got)
		}
		if got := FaultOf(errors.Join(errors.New(text), err)); got != fault {
			t.Fatalf("%v: %q, and joined %q", err, fault, got)
		}
		for _, said := range faults {
			e := &PublishError{Topic: text, Partition: code, Fault: said, Err: err}
			if got := FaultOf(fmt.Errorf("publish: %w", e)); got != said {
				t.Fatalf("a PublishError says %q, and FaultOf %q", said, got)
			}
			class := retry.Classify(e)
			if class == "" || said != FaultRecord && class == retry.Validation || said == FaultRecord && class != retry.Validation {
				t.Fatalf("%v, the fault of %q, has the class %q", err, said, class)
			}
		}
		if shape&3 == 0 {
			if row, known := kafkaFaults[kafka.Error(code)]; known && row.fault != fault || !known && fault != unknownFault.fault {
				t.Fatalf("%v is the fault of %q, which the table does not say", err, fault)
			}
		}
	})
}
