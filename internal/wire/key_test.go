package wire

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast"
)

func TestKey_AKeyThatIsNoTextIsADataURL(t *testing.T) {
	for record, want := range map[string]string{
		"":                                      "",
		"order-1":                               "order-1",
		"é/\n":                                  "é/\n",
		"\x00\x00\x00\x00\x00\x00\x00\x2a":      "data:;base64,AAAAAAAAACo=", // LongSerializer
		"\x00\x00\x00\x00\x07\x02a":             "data:;base64,AAAAAAcCYQ==", // Confluent's wire format
		"\xff":                                  "data:;base64,/w==",
		"a\x00b":                                "data:;base64,YQBi",
		"data:;base64,":                         "data:;base64,",     // a text
		"data:;base64,aGk=":                     "data:;base64,aGk=", // "hi" stands for itself, so this does, too
		"data:;base64,/w":                       "data:;base64,/w",
		"data:;base64,/x==":                     "data:;base64,/x==",   // not as base64 is written
		"data:;base64,/w==\n":                   "data:;base64,/w==\n", // Go's decoder skips it
		"data:;base64,/w==":                     "data:;base64,ZGF0YTo7YmFzZTY0LC93PT0=",
		"data:;base64,ZGF0YTo7YmFzZTY0LC93PT0=": "data:;base64,ZGF0YTo7YmFzZTY0LFpHRjBZVG83WW1GelpUWTBMQzkzUFQwPQ==",
	} {
		got := EventKey([]byte(record))
		if got != want {
			t.Errorf("the record's key %q is the event's %q, want %q", record, got, want)
		}
		if back := RecordKey(got); back != record {
			t.Errorf("%q came back as %q", record, back)
		}
	}
}

// No two keys become one, and whoever writes an event with a key reads it with that key.
func TestKey_KeysComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "encoded") {
			for range rapid.IntRange(1, 3).Draw(t, "times") {
				b = []byte(BinaryText(string(b)))
			}
		}
		key := EventKey(b)
		if !IsText(key) || RecordKey(key) != string(b) {
			t.Fatalf("%q is %q, and that came back as %q", b, key, RecordKey(key))
		}
		text := strings.ReplaceAll(rapid.String().Draw(t, "text"), "\x00", "") + rapid.SampledFrom([]string{"", key}).Draw(t, "end")
		for _, text := range []string{text, key} {
			if again := EventKey([]byte(RecordKey(text))); again != text {
				t.Fatalf("%q is read as %q", text, again)
			}
		}
	})
}

func TestKey_TheSubjectOfABinaryKeyIsItsText(t *testing.T) {
	e, err := Read("t", []byte{0, 1, 0xff}, []byte("p"), []Header{{HeaderSubject, []byte("data:;base64,AAH/")}}, noon)
	if err != nil || e.Key != "data:;base64,AAH/" || e.Headers != nil {
		t.Fatalf("%+v, %v", e, err)
	}
	if got := pairs(Headers[Header](nil, holdfast.Event{ID: "1", Source: "s", Type: "t", Key: e.Key})); got[len(got)-1] != "ce_subject=data:;base64,AAH/" {
		t.Error(got)
	}
}
