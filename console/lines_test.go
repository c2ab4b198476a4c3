package console

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

func TestLines_AComparisonHasBothTextsAndWhatTheyShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string {
			return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", ""}), 1, 12).Draw(t, name), "\n")
		}
		old, now := text("old"), text("now")
		var was, is []string
		common := 0
		for _, l := range compare(old, now) {
			if l.Sign != "+" {
				was = append(was, l.Text)
			}
			if l.Sign != "-" {
				is = append(is, l.Text)
			}
			if l.Sign == " " {
				common++
			}
		}
		if strings.Join(was, "\n") != old || strings.Join(is, "\n") != now {
			t.Fatalf("%q and %q are compared as %q and %q", old, now, was, is)
		}
		if want := longest(strings.Split(old, "\n"), strings.Split(now, "\n")); common != want {
			t.Fatalf("%q and %q have %d common lines, want %d", old, now, common, want)
		}
	})
}

// longest is the length of the longest common subsequence, by its definition.
func longest(a, b []string) int {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	if a[0] == b[0] {
		return 1 + longest(a[1:], b[1:])
	}
	return max(longest(a[1:], b), longest(a, b[1:]))
}

func TestLines_LongTextsAreComparedInABoundedTime(t *testing.T) {
	t.Parallel()
	lines := compare(strings.Repeat("a\n", 50_000), strings.Repeat("a\n", 50_000))
	changed := 0
	for _, l := range lines {
		if l.Sign != " " {
			changed++
		}
	}
	if want := 2 * (50_001 - mostCompared); changed != want || len(lines) != want+mostCompared {
		t.Errorf("%d of %d lines are shown as changed, want %d", changed, len(lines), want)
	}
	// Each text has the bound: a line of the short one is looked for in so many lines of the long one, and no further.
	long := strings.Repeat("a\n", mostCompared) + "z"
	for _, texts := range [][2]string{{"z", long}, {long, "z"}} {
		for _, l := range compare(texts[0], texts[1]) {
			if l.Sign == " " {
				t.Errorf("line %d of one text is compared: %q is found", mostCompared+1, l.Text)
			}
		}
	}
}

func TestLines_AnEditChangesNoByteThatNobodyEdited(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		payload, edit, want string // edit is made of the text that the form shows
		refused             bool
	}{
		"nothing is edited":              {`{"a": 1,"b":2}`, "", `{"a": 1,"b":2}`, false},
		"JSON on one line":               {`{"a": 1,"b":2}`, "2>3", `{"a": 1,"b":3}`, false},
		"compact JSON":                   {`{"a":1.0,"a":[2,{}],"b":"x  <\u00e9>\n"}`, "2>3", `{"a":1.0,"a":[3,{}],"b":"x  <\u00e9>\n"}`, false},
		"compact JSON that stays":        {`{"a":1e400,"b":[2]}`, "", `{"a":1e400,"b":[2]}`, false},
		"compact JSON, and no longer":    {`{"a":1}`, "1>", "{\n  \"a\": \n}", false},
		"compact JSON with spaces":       {`{"a": 1, "b": ["x, y: \\ \", z", {}]}`, "1>2", `{"a": 2, "b": ["x, y: \\ \", z", {}]}`, false},
		"compact JSON, spaced, as it is": {`{"a": 1, "b": 2}`, "", `{"a": 1, "b": 2}`, false},
		"JSON of several lines":          {"{\n \"a\":1\n}\n", "1>2", "{\n \"a\":2\n}\n", false},
		"line breaks of Windows":         {"a\r\nb\r\n", "b>c", "a\r\nc\r\n", false},
		"one more of them":               {"a\r\nb", "b>b\nc", "a\r\nb\r\nc", false},
		"a line break at the beginning":  {"\n\na", "a>b", "\n\nb", false},
		"JSON that is not UTF-8":         {"{\"a\":\"\xff\"}", "a>b", "", true},
		"text that is not UTF-8":         {"a\xff", "a>b", "", true},
		"a NUL":                          {"a\x00b", "a>b", "", true},
		"line breaks of both kinds":      {"a\r\nb\n", "a>b", "", true},
		"a CR alone":                     {"a\rb", "a>b", "", true},
		"what is too large":              {strings.Repeat("a", mostShown+1), "a>b", "", true},
	} {
		e := editorOf([]byte(c.payload))
		if e.OK == c.refused {
			t.Errorf("%s: offered as text: %v", name, e.OK)
		}
		if strings.HasPrefix(name, "compact") && !strings.Contains(e.Text, "\n") {
			t.Errorf("%s: it is shown on one line: %s", name, e.Text)
		}
		from, to, _ := strings.Cut(c.edit, ">")
		sent := strings.ReplaceAll(strings.Replace(e.Text, from, to, 1), "\n", "\r\n") // as a browser does
		got, err := edited([]byte(c.payload), sent)
		if string(got) != c.want || (err != nil) != c.refused {
			t.Errorf("%s: %q became %q (%v), want %q", name, c.payload, got, err, c.want)
		}
	}
	if got, err := edited(nil, ""); got != nil || err != nil {
		t.Errorf("a tombstone became %q (%v)", got, err)
	}
	if _, err := edited([]byte("a"), "\xff"); err == nil {
		t.Error("bytes that are not UTF-8 are taken from a form")
	}
}

func TestLines_PayloadsAreShownAsWhatTheyAre(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bytes      []byte
		kind, text string
	}{
		"a tombstone":                        {nil, "tombstone", ""},
		"JSON":                               {[]byte(`{"b":1,"a":[2]}`), "JSON", "{\n  \"b\": 1,\n  \"a\": [\n    2\n  ]\n}"},
		"text":                               {[]byte("{not JSON"), "text", "{not JSON"},
		"JSON with bytes that are not UTF-8": {[]byte("{\"a\":\"\xff\"}"), "bytes", "00000000  7b 22 61 22 3a 22 ff 22  7d                       |{\"a\":\".\"}|\n"},
		"bytes":                              {[]byte{0xff}, "bytes", "00000000  ff                                                |.|\n"},
		"nothing":                            {[]byte{}, "text", ""},
		"a large one":                        {make([]byte, mostShown+1), "too large", "it has 256.0 KiB: read it with holdfast dlq show --payload"},
	} {
		if p := payloadOf(c.bytes); p.Kind != c.kind || p.Text != c.text || p.Size != len(c.bytes) {
			t.Errorf("%s is shown as %+v", name, p)
		}
	}
}

func TestLines_LongIdsAreCutBeforeTheirEnd(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"":                                       "",
		"order-1234567890":                       "",
		"order-12345678901":                      "order-12345|678901",
		"0199c2a4-7b3e-7c55-9d41-000000000001":   "0199c2a4-7b3e-7c55-9d41-000000|000001",
		"größe-größe-größe":                      "größe-größe|-größe",
		"\xff bytes that are no UTF-8, and long": "",
	} {
		if got := strings.Join(halves(id), "|"); got != want {
			t.Errorf("%q is cut as %q, want %q", id, got, want)
		}
	}
}

func TestLines_SpansHaveOneUnit(t *testing.T) {
	t.Parallel()
	for span, want := range map[time.Duration]string{
		0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2min", 119 * time.Minute: "119min", 47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		if got := forSpan(span); got != want {
			t.Errorf("%v is %q, want %q", span, got, want)
		}
	}
	for moment, want := range map[time.Time]string{{}: "–", time.Now().Add(-3*time.Hour - time.Minute): "3h ago", time.Now().Add(3*time.Hour + time.Minute): "in 3h"} {
		if got := ago(moment); got != want {
			t.Errorf("%v is %q, want %q", moment, got, want)
		}
	}
}
