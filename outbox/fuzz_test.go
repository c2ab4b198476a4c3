package outbox

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

var (
	tokenName = regexp.MustCompile(`^[!#$%&'*+.^_` + "`" + `|~0-9A-Za-z-]{1,255}$`)
	kafkaName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)
)

// What the door lets in are exactly the events within the limits, and each of them travels through the table's JSON and
// Kafka's headers and comes out as it went in.
func FuzzWhatTheDoorLetsInArrivesAsItWas(f *testing.F) {
	f.Add("id", "src", "order.placed", "orders", "k", "traceparent", "00-4b-01", "tenant", "ö", int64(1_700_000_000_000_000))
	f.Add("", "", "", "..", "\x00", "CE_id", "x", "hf_a", "y", int64(0))
	f.Add("i", "s", "t", "o.p_q-R", "", "bad name", "x", "", "", int64(-62135596800000001))
	f.Add("i", "s", "t", "o", "k", "a", "\xff", "b", "\x00", int64(253402300800000000))
	f.Add("i", "s", "t", "o", "k", "content-type", "application/json", "Content-Type", "text", int64(1))
	f.Fuzz(func(t *testing.T, id, source, typ, topic, key, name1, value1, name2, value2 string, micros int64) {
		e := holdfast.Event{ID: id, Source: source, Type: typ, Topic: topic, Key: key, Payload: []byte("p"),
			Headers: map[string]string{name1: value1, name2: value2}, Time: time.UnixMicro(micros).UTC()}
		problems := checkEvent(&e, -1)

		text := func(s string, min, max int) bool {
			return len(s) >= min && len(s) <= max && utf8.ValidString(s) && !strings.Contains(s, "\x00")
		}
		fits := text(id, 0, 255) && text(source, 0, 255) && text(typ, 1, 255) && text(key, 0, 1024) &&
			kafkaName.MatchString(topic) && topic != "." && topic != ".."
		if year := e.Time.Year(); !e.Time.IsZero() && (year < 1 || year > 9999) {
			fits = false
		}
		size := 0
		for name, value := range e.Headers {
			size += len(name) + len(value)
			lower := strings.ToLower(name)
			fits = fits && tokenName.MatchString(name) && !strings.HasPrefix(lower, "ce_") && !strings.HasPrefix(lower, "hf_") && text(value, 0, 1<<30)
		}
		fits = fits && size <= 8<<10
		if fits != (len(problems) == 0) {
			t.Fatalf("%+v is within the limits: %v, and the door says %v", e, fits, problems)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Field, "header ") && len(value1) > 20 && strings.Contains(p.Error(), value1) {
				t.Fatal("the error tells a header's value")
			}
		}
		if !fits {
			return
		}
		e.ID = "id" // Write gives it one
		kept, err := json.Marshal(e.Headers)
		if err != nil {
			t.Fatal(err)
		}
		var headers map[string]string
		if err := json.Unmarshal(kept, &headers); err != nil {
			t.Fatal(err)
		}
		e.Headers = headers
		var record []byte
		if key != "" {
			record = []byte(key)
		}
		got, err := wire.Parse(topic, record, e.Payload, wire.Headers[wire.Header](nil, e), time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		want := e
		want.Headers = map[string]string{name1: value1, name2: value2}
		if e.Time.IsZero() {
			got.Time = e.Time // the record's own, then
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
