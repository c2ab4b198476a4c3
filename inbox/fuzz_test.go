package inbox

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Whatever a record of a topic is, it becomes an event that the tables can hold: one to handle, or a letter.
func FuzzEveryRecordIsAnEventOrALetter(f *testing.F) {
	f.Add([]byte("k"), []byte("v"), "ce_id", []byte("1"), "ce_type", []byte("t"), "ce_source", []byte("s"), int64(5))
	f.Add([]byte(nil), []byte(nil), "ce_time", []byte("9999-12-31T23:59:59Z"), "ce_id", []byte{}, "x", []byte("\xff"), int64(0))
	f.Add([]byte("\x00\xff"), []byte{}, "CE_ID", []byte(strings.Repeat("i", 300)), "ce_type", []byte("\x00"), "\xff", []byte("v"), int64(1)<<60)
	f.Add([]byte(strings.Repeat("k", 1100)), []byte("v"), "ce_time", []byte("0000-01-01T00:00:00Z"), "ce_type", []byte(strings.Repeat("t", 256)), "", []byte(nil), int64(-1))
	f.Fuzz(func(t *testing.T, key, value []byte, name1 string, value1 []byte, name2 string, value2 []byte, name3 string, value3 []byte, offset int64) {
		bare := bareReceiver()
		p := &partition{env: bare.env, receiver: bare, tp: source.TopicPartition{Topic: "orders", Partition: 3}, fence: &position.Fence{}}
		d, letter := p.delivery(source.Record{Offset: offset, Key: key, Value: value, Time: time.Unix(1_700_000_000, 0),
			Headers: []source.Header{{Key: name1, Value: value1}, {Key: name2, Value: value2}, {Key: name3, Value: value3}}})
		p.fence, p.c.HoldKey = nil, true // as where a log is compared with what was settled, before the partition is ours
		if before, _ := p.delivery(source.Record{Offset: offset, Key: key, Value: value, Time: time.Unix(1_700_000_000, 0),
			Headers: []source.Header{{Key: name1, Value: value1}, {Key: name2, Value: value2}, {Key: name3, Value: value3}}}); !bytes.Equal(before.hash, d.hash) {
			t.Fatalf("without a fence it is another event: %+v", before.e)
		}
		e := d.e
		if e.Topic != "orders" || e.ID == "" || d.from == nil || d.from.offset != offset || len(d.hash) != 32 {
			t.Fatalf("%+v is not where it came from", d)
		}
		if (e.Payload == nil) != (value == nil) || string(e.Payload) != string(value) {
			t.Fatal("the payload is not the record's value")
		}
		if year := e.Time.UTC().Year(); year < 1 || year > 9999 {
			t.Fatalf("the tables do not hold the year %d", year)
		}
		holds := func(field, s string, longest int) {
			if len(s) > longest || !utf8.ValidString(s) || strings.Contains(s, "\x00") {
				t.Fatalf("letter: %v: the tables do not hold the %s %.60q", letter != nil, field, s)
			}
		}
		holds("id", e.ID, 255)
		holds("source", e.Source, 255)
		holds("type", e.Type, 255)
		holds("key", e.Key, 1024)
		for name, value := range e.Headers {
			holds("header's name", name, 1<<20)
			holds("header's value", value, 1<<20)
		}
		back, err := headersOf(headersJSON(e.Headers))
		if err != nil || len(back) != len(e.Headers) {
			t.Fatalf("the headers %v came back as %v, %v", e.Headers, back, err)
		}
		for name, value := range e.Headers {
			if back[name] != value {
				t.Fatalf("the header %q came back otherwise", name)
			}
		}
	})
}

// What the relay publishes, the inbox takes for the same event.
func FuzzAPublishedEventIsReceivedAsItWas(f *testing.F) {
	f.Add("id", "src", "order.placed", "k", "traceparent", "00-4b-01", []byte("p"), int64(1_700_000_000_123_456))
	f.Add("i", "", "t", "", "", "", []byte(nil), int64(1))
	f.Fuzz(func(t *testing.T, id, src, typ, key, name, value string, payload []byte, micros int64) {
		e := holdfast.Event{ID: id, Source: src, Type: typ, Topic: "orders", Key: key, Payload: payload, Time: time.UnixMicro(micros).UTC()}
		if name != "" {
			e.Headers = map[string]string{name: value}
		}
		if checkEvent(e) != nil || wire.Reserved(name) || e.Time.IsZero() || e.Time.Year() < 1 || e.Time.Year() > 9999 {
			return // the door refuses it
		}
		var recordKey []byte
		if key != "" {
			recordKey = []byte(wire.RecordKey(key))
		}
		bare := bareReceiver()
		p := &partition{env: bare.env, receiver: bare, tp: source.TopicPartition{Topic: "orders", Partition: 3}, fence: &position.Fence{}}
		d, letter := p.delivery(source.Record{Key: recordKey, Value: payload, Headers: wire.Headers[source.Header](nil, e), Time: time.Unix(9, 0)})
		if letter != nil {
			t.Fatalf("%+v became a letter", e)
		}
		if diff := cmp.Diff(e, d.e); diff != "" {
			t.Fatal(diff)
		}
	})
}

// bareReceiver reads records, and has nothing to do more with them.
func bareReceiver() *receiver {
	env := &env{}
	return &receiver{env: env, registry: newRegistry(&env.settings, env.decrypting), pauses: newPauses(env)}
}
