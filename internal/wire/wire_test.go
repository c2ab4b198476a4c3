package wire

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

var noon = time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)

func pairs(headers []Header) []string {
	var out []string
	for _, h := range headers {
		out = append(out, h.Key+"="+string(h.Value))
	}
	return out
}

func TestWire_Headers(t *testing.T) {
	for _, test := range []struct {
		name  string
		event holdfast.Event
		want  []string
	}{
		{
			"an event's identity comes first and its own headers follow in the order of their names",
			holdfast.Event{ID: "1", Source: "shop", Type: "order.placed", Time: noon, Headers: map[string]string{"z": "3", "traceparent": "00-ab", "content-type": "application/json"}},
			[]string{"ce_specversion=1.0", "ce_id=1", "ce_source=shop", "ce_type=order.placed", "ce_time=2026-11-21T12:00:00.123456Z", "content-type=application/json", "traceparent=00-ab", "z=3"},
		},
		{
			"an empty source has a name, and a time nobody knows is left out",
			holdfast.Event{ID: "1", Type: "t"},
			[]string{"ce_specversion=1.0", "ce_id=1", "ce_source=urn:holdfast:unnamed", "ce_type=t"},
		},
		{
			"a time in another zone is written in UTC, cut to the microsecond",
			holdfast.Event{Source: "s", Time: time.Date(2026, 1, 2, 3, 4, 5, 999_999_999, time.FixedZone("", 2*3600))},
			[]string{"ce_specversion=1.0", "ce_id=", "ce_source=s", "ce_type=", "ce_time=2026-01-02T01:04:05.999999Z"},
		},
		{
			"a year that RFC 3339 cannot say is left out",
			holdfast.Event{Source: "s", Time: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)},
			[]string{"ce_specversion=1.0", "ce_id=", "ce_source=s", "ce_type="},
		},
		{
			"a user's header does not change the event's identity",
			holdfast.Event{ID: "1", Source: "s", Type: "t", Headers: map[string]string{"ce_id": "2", "ce_source": "other"}},
			[]string{"ce_specversion=1.0", "ce_id=1", "ce_source=s", "ce_type=t"},
		},
		{
			"the subject is the key",
			holdfast.Event{ID: "1", Source: "s", Type: "t", Key: "o-1", Headers: map[string]string{"a": "b"}},
			[]string{"ce_specversion=1.0", "ce_id=1", "ce_source=s", "ce_type=t", "ce_subject=o-1", "a=b"},
		},
		{
			"a foreign event keeps its subject",
			holdfast.Event{ID: "1", Source: "s", Type: "t", Key: "o-1", Headers: map[string]string{"ce_subject": "theirs"}},
			[]string{"ce_specversion=1.0", "ce_id=1", "ce_source=s", "ce_type=t", "ce_subject=theirs"},
		},
		{
			"the schema of the data is an attribute",
			holdfast.Event{ID: "1", Source: "s", Type: "t", Headers: map[string]string{"dataschema": "https://x/1"}},
			[]string{"ce_specversion=1.0", "ce_id=1", "ce_source=s", "ce_type=t", "ce_dataschema=https://x/1"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, pairs(Headers[Header](nil, test.event))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWire_HeadersAppendToWhatIsThere(t *testing.T) {
	got := Headers([]Header{{Key: "first"}}, holdfast.Event{ID: "1", Type: "t"})
	if got[0].Key != "first" || len(got) != 5 {
		t.Fatalf("got %v", pairs(got))
	}
}

func TestWire_AppendingToOneValueDoesNotRunIntoTheNext(t *testing.T) {
	got := Headers[Header](nil, holdfast.Event{ID: "1", Source: "s", Type: "t"})
	_ = append(got[1].Value, "xxxx"...)
	if string(got[2].Value) != "s" || string(got[3].Value) != "t" {
		t.Fatalf("got %v", pairs(got))
	}
}

func TestWire_AnEmptyHeaderValueIsEmptyAndNotNull(t *testing.T) {
	for _, h := range Headers[Header](nil, holdfast.Event{Headers: map[string]string{"a": ""}}) {
		if h.Value == nil {
			t.Errorf("%s is null", h.Key)
		}
	}
}

func TestWire_AppendAllocatesNothingIntoMemoryThatIsThere(t *testing.T) {
	e := holdfast.Event{ID: "018f-0000", Source: "shop", Type: "order.placed", Time: noon, Headers: map[string]string{"traceparent": "00-ab", "content-type": "application/json"}}
	headers, scratch := Append[Header](nil, nil, e)
	n := testing.AllocsPerRun(100, func() { headers, scratch = Append(headers[:0], scratch[:0], e) })
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWire_Parse(t *testing.T) {
	at := noon.Add(time.Hour)
	for _, test := range []struct {
		name    string
		key     []byte
		value   []byte
		headers []Header
		want    holdfast.Event
	}{
		{"a record without headers has a topic, a time and a payload", nil, []byte("x"), nil,
			holdfast.Event{Topic: "t", Payload: []byte("x"), Time: at}},
		{"a null value stays a tombstone", []byte("k"), nil, nil,
			holdfast.Event{Topic: "t", Key: "k", Time: at}},
		{"an empty value stays empty", []byte("k"), []byte{}, nil,
			holdfast.Event{Topic: "t", Key: "k", Payload: []byte{}, Time: at}},
		{"a time that cannot be read is the record's", nil, nil, []Header{{"ce_time", []byte("yesterday")}},
			holdfast.Event{Topic: "t", Time: at}},
		{"a null time is the record's", nil, nil, []Header{{"ce_time", nil}},
			holdfast.Event{Topic: "t", Time: at}},
		{"a time in another zone and with nanoseconds is read", nil, nil, []Header{{"ce_time", []byte("2026-11-21T13:00:00.123456789+01:00")}},
			holdfast.Event{Topic: "t", Time: noon}},
		{"of two headers with one name the last counts", nil, nil,
			[]Header{{"ce_id", []byte("1")}, {"a", []byte("x")}, {"ce_id", []byte("2")}, {"a", []byte("y")}},
			holdfast.Event{Topic: "t", ID: "2", Headers: map[string]string{"a": "y"}, Time: at}},
		{"of two times the last counts even when it cannot be read", nil, nil,
			[]Header{{"ce_time", []byte("2026-11-21T12:00:00Z")}, {"ce_time", []byte("?")}},
			holdfast.Event{Topic: "t", Time: at}},
		{"values that are not UTF-8 are kept", nil, nil, []Header{{"ce_id", []byte{0xff}}, {"a", []byte{0xfe, 0}}},
			holdfast.Event{Topic: "t", ID: "\xff", Headers: map[string]string{"a": "\xfe\x00"}, Time: at}},
		{"a source that stands for none is none", nil, nil, []Header{{"ce_source", []byte("urn:holdfast:unnamed")}},
			holdfast.Event{Topic: "t", Time: at}},
		{"a subject that is the key is no header", []byte("k"), nil, []Header{{"ce_subject", []byte("k")}},
			holdfast.Event{Topic: "t", Key: "k", Time: at}},
		{"of two subjects the last counts", []byte("k"), nil, []Header{{"ce_subject", []byte("x")}, {"ce_subject", []byte("k")}},
			holdfast.Event{Topic: "t", Key: "k", Time: at}},
		{"the schema of the data is a header", nil, nil, []Header{{"ce_dataschema", []byte("u")}},
			holdfast.Event{Topic: "t", Headers: map[string]string{"dataschema": "u"}, Time: at}},
		{"a header of that name stays beside it", nil, nil, []Header{{"ce_dataschema", []byte("u")}, {"dataschema", []byte("v")}},
			holdfast.Event{Topic: "t", Headers: map[string]string{"dataschema": "v", "ce_dataschema": "u"}, Time: at}},
		{"extension attributes and other spellings stay headers", nil, nil,
			[]Header{{"ce_subject", []byte("s")}, {"CE_ID", []byte("1")}, {"ce_specversion", []byte("1.0")}, {"", []byte("e")}},
			holdfast.Event{Topic: "t", Headers: map[string]string{"ce_subject": "s", "CE_ID": "1", "": "e"}, Time: at}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse("t", test.key, test.value, test.headers, at)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWire_ParseWithoutATopicIsAnError(t *testing.T) {
	if _, err := Parse[Header]("", nil, nil, nil, noon); err == nil {
		t.Error("no error")
	}
}

func TestWire_Reserved(t *testing.T) {
	for name, want := range map[string]bool{
		"ce_id": true, "CE_anything": true, "hf_x": true, "Hf_": true,
		"content-type": false, "traceparent": false, "ce-id": false, "ce": false, "": false, "xce_": false,
	} {
		if Reserved(name) != want {
			t.Errorf("Reserved(%q) is %v", name, !want)
		}
	}
}

// anyEvent draws an event as the door lets it through.
func anyEvent(t *rapid.T) holdfast.Event {
	text := rapid.String()
	e := holdfast.Event{
		ID:     text.Draw(t, "id"),
		Source: text.Draw(t, "source"),
		Type:   text.Draw(t, "type"),
		Topic:  rapid.StringN(1, 20, -1).Draw(t, "topic"),
		Key:    text.Draw(t, "key"),
		Time:   time.UnixMicro(rapid.Int64Range(-62135596799_000000, 253402300799_999999).Draw(t, "time")).UTC(),
	}
	if rapid.Bool().Draw(t, "payload") {
		e.Payload = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		if e.Payload == nil {
			e.Payload = []byte{}
		}
	}
	names := text.Filter(func(s string) bool { return !Reserved(s) })
	if h := rapid.MapOfN(names, text, 0, 20).Draw(t, "headers"); len(h) > 0 {
		e.Headers = h
	}
	return e
}

func TestWire_EveryEventReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anyEvent(t)
		headers := Headers[Header](nil, e)
		var key []byte
		if e.Key != "" {
			key = []byte(e.Key)
		}
		got, err := Parse(e.Topic, key, e.Payload, headers, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Fatal(diff)
		}
		size := 0
		for _, h := range headers {
			size += len(h.Key) + varint(len(h.Key)) + len(h.Value) + varint(len(h.Value))
		}
		if size > Size(e) {
			t.Fatalf("the headers take %d bytes, Size says at most %d", size, Size(e))
		}
		own := slices.IndexFunc(headers, func(h Header) bool { return !identity(h.Key) && (h.Key != HeaderSubject || e.Key == "") })
		unnamed := func(name string) string { return strings.TrimPrefix(name, "ce_") } // ce_dataschema stands where dataschema would
		if own >= 0 && !slices.IsSortedFunc(headers[own:], func(a, b Header) int { return strings.Compare(unnamed(a.Key), unnamed(b.Key)) }) {
			t.Fatalf("the headers are not in order: %v", pairs(headers))
		}
	})
}

func TestWire_TimesAreWrittenAsTheStandardLibraryDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMicro(rapid.Int64Range(-62135596799_000000, 253402300799_999999).Draw(t, "time"))
		if got, want := string(appendTime(nil, at)), at.UTC().Format(timeLayout); got != want {
			t.Fatalf("%s instead of %s", got, want)
		}
	})
}

// varint is how many bytes a length takes.
func varint(n int) int {
	size := 1
	for n = n << 1; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

func FuzzParse(f *testing.F) {
	f.Add("t", []byte("k"), []byte("v"), "ce_id", []byte("1"), "ce_time", []byte("2026-11-21T12:00:00Z"))
	f.Add("t", []byte(nil), []byte(nil), "ce_time", []byte("\xff"), "ce_id", []byte(nil))
	f.Add("", []byte{}, []byte{}, "", []byte{}, "CE_type", []byte("x"))
	f.Add("t", []byte("k"), []byte("v"), "ce_subject", []byte("k"), "ce_dataschema", []byte("2"))
	f.Add("t", []byte("k"), []byte("v"), "dataschema", []byte("k"), "ce_source", []byte(NoSource))
	f.Add("t", []byte("k"), []byte("v"), "tenant", []byte("1"), "tenant", []byte("2"))
	f.Fuzz(func(t *testing.T, topic string, key, value []byte, name1 string, value1 []byte, name2 string, value2 []byte) {
		headers := []Header{{name1, value1}, {name2, value2}}
		e, err := Parse(topic, key, value, headers, noon)
		if (err != nil) != (topic == "") {
			t.Fatalf("topic %q: %v", topic, err)
		}
		if err != nil {
			return
		}
		if (e.Payload == nil) != (value == nil) {
			t.Fatal("a tombstone and an empty payload were mixed up")
		}
		last := map[string]string{} // of headers with one name
		for _, h := range headers {
			last[h.Key] = string(h.Value)
		}
		if last[HeaderSource] == NoSource {
			last[HeaderSource] = ""
		}
		if string(key) != "" && last[HeaderSubject] == string(key) {
			delete(last, HeaderSubject)
		}
		if schema, has := last["ce_dataschema"]; has && last["dataschema"] == "" {
			if _, taken := last["dataschema"]; !taken {
				delete(last, "ce_dataschema")
				last["dataschema"] = schema
			}
		}
		fields := map[string]string{HeaderID: e.ID, HeaderSource: e.Source, HeaderType: e.Type}
		rest := map[string]string{}
		for name, value := range last {
			if !identity(name) {
				rest[name] = value
			}
		}
		for name, field := range fields {
			if field != last[name] {
				t.Fatalf("%s is %q, and was read as %q", name, last[name], field)
			}
		}
		if e.Topic != topic || e.Key != string(key) || !bytes.Equal(e.Payload, value) || len(rest)+len(e.Headers) > 0 && !maps.Equal(rest, e.Headers) {
			t.Fatalf("topic %q, key %q, value %q and headers %q were read as %+v", topic, key, value, rest, e)
		}
		// What was read can be written, and reads the same again: a dead letter of a foreign record can be replayed.
		again, err := Parse(topic, key, value, Headers[Header](nil, e), noon)
		if err != nil {
			t.Fatal(err)
		}
		if y := e.Time.Year(); e.Time.IsZero() || y < 0 || y > math.MaxInt16 {
			again.Time = e.Time
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	e := holdfast.Event{ID: "018f6a52-7f2c-7a10-8c4e-2b1d3f4a5b6c", Source: "shop/orders", Type: "order.placed", Time: noon,
		Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	b.ReportAllocs()
	var headers []Header
	var scratch []byte
	for b.Loop() {
		headers, scratch = Append(headers[:0], scratch[:0], e)
	}
}

func BenchmarkParse(b *testing.B) {
	e := holdfast.Event{ID: "018f6a52-7f2c-7a10-8c4e-2b1d3f4a5b6c", Source: "shop/orders", Type: "order.placed", Time: noon,
		Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	headers := Headers[Header](nil, e)
	key, value := []byte("key"), make([]byte, 300)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("orders", key, value, headers, noon); err != nil {
			b.Fatal(err)
		}
	}
}
