package private

import (
	"strings"
	"testing"
)

func TestEvent_ATextIsKeptWithoutWhatItSharesWithAnEvent(t *testing.T) {
	order := `{"customer": {"name": "Ann Lee", "tags": ["vip", {"deep": "caf\u00e9"}]}, "card": 4111111111111111, "total": 42.50, "qty": 2, "paid": true}`
	long := strings.Repeat("lorem ipsum ", 1000)
	for _, c := range []struct{ name, text, payload, want string }{
		{"nothing shared", "tax service says no", order, "tax service says no"},
		{"a name", "no customer Ann Lee here", order, "no customer # here"},
		{"names of fields stay", "json: field order.customer.name: no card, no total", order, "json: field order.customer.name: no card, no total"},
		{"a number", "card 4111111111111111: 42.50 is too much", order, "card #: # is too much"},
		{"a value in a list", "(vip)", order, "(#)"},
		{"as it is read", "no café", order, "no #"},
		{"as it stands", `no caf\u00e9`, order, "no #"},
		{"a part of a word", "vips, advip, Ann Leeds", order, "vips, advip, Ann Leeds"},
		{"twice, with one character between", "vip vip-vip", order, "# #-#"},
		{"a part of a long value, within a word", "x411111111111111x", order, "x#x"},
		{"short values stay", "2 of true", order, "2 of true"},
		{"quoted", `"Ann Lee"`, order, `"#"`},
		{"all of a payload", "bad: " + order, order, `bad: {"customer": {"name": "#", "tags": ["#", {"deep": "#"}]}, "card": #, "total": #, "qty": 2, "paid": true}`},
		{"no JSON", "bad: hello, brave world!", "xx hello, brave world yy", "bad:#!"},
		{"all of one that is no JSON", "bad: Ann", "Ann", "bad: #"},
		{"a header", "no s3cr3t", "", "no #"},
		{"bytes of a binary payload", "no \x00\x01\x02card 4111111111\x03", "\x08\x00\x01\x02card 4111111111\x03\x09", "no #"},
		{"a text that is too long", "too long: " + long, long, "too long:#"},
		{"no payload", "Ann", "", "Ann"},
		{"JSON that is cut", `{"name": "Ann`, `{"name": "Ann`, "#"},
		{"nested JSON", "one two", `[[["one"], "two"], {"a": {"b": "one"}, "c": "two"}]`, "# #"},
		{"one string", "one two", `"one"`, "# two"},
	} {
		if got := WithoutEvent(c.text, []byte(c.payload), "s3cr3t", ""); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A text that is cut ends before what may be the beginning of a value.
func TestEvent_ACutTextEndsBeforeTheBeginningOfAValue(t *testing.T) {
	text := strings.Repeat("x", longestText-4) + " Ann Lee"
	if got := WithoutEvent(text, []byte("Ann Lee")); strings.Contains(got, "A") || !strings.HasSuffix(got, "x#") {
		t.Errorf("it ends with %q", got[len(got)-10:])
	}
}

func FuzzATextSharesNoRunWithAnEvent(f *testing.F) {
	f.Add("bad: hello, brave world!", []byte("xx hello, brave world yy"), "a header's value")
	f.Add(`{"a": "hello, brave world"}`, []byte(`{"a": "hello, brave world"}`), "")
	f.Add("aaaaaaaaaaaaaaaaaaaaaaaa", []byte("aaaaaaaaaaaaa"), "aaaa")
	f.Fuzz(func(t *testing.T, text string, payload []byte, header string) {
		got := WithoutEvent(text, payload, header)
		if strings.ContainsRune(string(payload)+header, '#') {
			return // it may make a run of its own
		}
		for value := range values(payload, []string{header}) {
			for i := 0; i+leastRun <= len(value); i++ {
				if strings.Contains(got, value[i:i+leastRun]) {
					t.Fatalf("%q of %q is left of %q: %q", value[i:i+leastRun], value, text, got)
				}
			}
		}
	})
}
