package idempotency

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

// R8.
func TestCanonical_DocumentsThatMeanTheSameHaveOneForm(t *testing.T) {
	for document, want := range map[string]string{
		`{"a":1,"b":2}`:                         `{"a":1,"b":2}`,
		"{ \"b\" : 2.0,\n\"a\":1 }":             `{"a":1,"b":2}`,
		`{"b":[3,1,2],"a":{"z":null,"y":true}}`: `{"a":{"y":true,"z":null},"b":[3,1,2]}`,
		`"\u00e9"`:                              `"é"`,
		`"<>&"`:                                 `"<>&"`,
		`"\/"`:                                  `"/"`,
		`1E30`:                                  `1e+30`,
		`4.50`:                                  `4.5`,
		`2e-3`:                                  `0.002`,
		`0.000000000000000000000000001`:         `1e-27`,
		`-0`:                                    `0`,
		`9007199254740991`:                      `9007199254740991`,
		`"\ud83d\ude00"`:                        `"😀"`,
		`{"\ufb33":1,"\ud83d\ude00":2}`:         "{\"😀\":2,\"\ufb33\":1}", // by UTF-16 code units
		`{"\u20ac":"Euro Sign","\r":"Carriage Return"}`: `{"\r":"Carriage Return","€":"Euro Sign"}`,
		`[]`: `[]`,
		`""`: `""`,
	} {
		if got, ok := canonical([]byte(document), nil); !ok || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", document, got, ok, want)
		}
	}
	// The example of RFC 8785, section 3.2.2, but for its first number, which float64 does not hold.
	got, ok := canonical([]byte(`{"numbers":[333333333.3333333,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`), nil)
	if hash := sha256.Sum256(got); !ok || !strings.HasPrefix(hex.EncodeToString(hash[:]), "2d5e01a3") {
		t.Errorf("got %s, %v", got, ok)
	}
}

// R9.
func TestCanonical_WhatWouldLoseSomethingIsComparedByItsBytes(t *testing.T) {
	for name, document := range map[string]string{
		"an integer above 2^53-1": `9007199254740993`, "another": `{"a":[9007199254740992]}`, "more digits than float64 has": `333333333.33333329`,
		"overflow": `1e400`, "underflow": `1e-400`, "a name twice": `{"a":1,"a":2}`, "a name twice, escaped": `{"a":1,"\u0061":2}`,
		"half a surrogate": `"\ud800"`, "the other half": `"\udc00x"`, "two halves apart": `"\ud83dx\ude00"`, "invalid UTF-8": "\"\xff\"",
		"a BOM": "\ufeff{}", "two documents": `{} {}`, "nothing": ``, "unended": `{"a":`, "not JSON": `{a:1}`, "a comma too much": `[1,]`,
		"too deep": strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1), "a leading zero": `01`, "NaN": `NaN`, "a comment": `1 // one`,
	} {
		if got, ok := canonical([]byte(document), nil); ok {
			t.Errorf("%s: %s became %s", name, document, got)
		}
	}
}

// R10.
func TestCanonical_PointersRemoveWhatTheyName(t *testing.T) {
	for _, c := range []struct {
		document string
		ignore   []string
		want     string
	}{
		{`{"a":1,"b":{"c":2,"d":3}}`, []string{"/b/c"}, `{"a":1,"b":{"d":3}}`},
		{`{"a/b":1,"c~d":2,"e":3}`, []string{"/a~1b", "/c~0d"}, `{"e":3}`},
		{`{"a":[{"n":1,"v":2},{"n":3}]}`, []string{"/a/0/n"}, `{"a":[{"v":2},{"n":3}]}`},
		{`[1,2,3]`, []string{"/1"}, `[1,null,3]`},
		{`{"a":1}`, []string{"/x/y", "/a/b"}, `{"a":1}`},
		{`{"a":"<&>","n":4.50}`, []string{"/x"}, `{"a":"<&>","n":4.5}`},
	} {
		if got, ok := canonical([]byte(c.document), c.ignore); !ok || string(got) != c.want {
			t.Errorf("%s without %v: got %s, %v; want %s", c.document, c.ignore, got, ok, c.want)
		}
	}
}

// The form is a fixed point, and says what the document said.
// R8.
func TestCanonical_TheFormMeansWhatTheDocumentMeant(t *testing.T) {
	value := rapid.Deferred(func() *rapid.Generator[any] {
		return jsonValue(3)
	})
	rapid.Check(t, func(t *rapid.T) {
		document, err := json.Marshal(value.Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		form, ok := canonical(document, nil)
		if !ok {
			t.Fatalf("%s has no form", document)
		}
		again, ok := canonical(form, nil)
		if !ok || string(again) != string(form) {
			t.Fatalf("%s became %s, and that %s", document, form, again)
		}
		var was, is any
		if json.Unmarshal(document, &was) != nil || json.Unmarshal(form, &is) != nil {
			t.Fatalf("%s became %s", document, form)
		}
		if !reflect.DeepEqual(was, is) { // -0 and 0 are one number, and the form says 0.
			t.Fatalf("%s became %s", document, form)
		}
	})
}

func jsonValue(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(v bool) any { return v }), rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(rapid.Int64Range(-(1<<53-1), 1<<53-1), func(v int64) any { return v }), rapid.Map(rapid.Float64Range(-1e6, 1e6), func(v float64) any { return cmp.Or(v, 0) }), // 0 for -0, which RFC 8785 writes as 0 too
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	return rapid.OneOf(append(leaves,
		rapid.Map(rapid.SliceOfN(jsonValue(depth-1), 0, 4), func(v []any) any { return v }),
		rapid.Map(rapid.MapOfN(rapid.String(), jsonValue(depth-1), 0, 4), func(v map[string]any) any { return v }))...)
}

// Whatever the bytes are: two documents with one form differ in nothing that a program can see.
func FuzzTheFormLosesNothing(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `1e400`, `{"a":9007199254740993}`, `"\ud800"`, `[1,2.50]`, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		form, ok := canonical(document, nil)
		if !ok {
			return
		}
		again, ok := canonical(form, nil)
		if !ok || string(again) != string(form) {
			t.Errorf("%q became %q, and that %q", document, form, again)
		}
	})
}

// R7.
func TestCanonical_QueriesAreComparedByNameAndOrderOfValues(t *testing.T) {
	same := [][2]string{{"a=1&b=2", "b=2&a=1"}, {"a=1&b=2&a=3", "b=2&a=1&a=3"}, {"a=%20", "a=+"}, {"a", "a="}, {"", "&&"}}
	differ := [][2]string{{"a=1&a=2", "a=2&a=1"}, {"a=1", "a=2"}, {"a=1&b=2", "a=1%26b=2"}, {"a=1", "A=1"}, {"", "a"}}
	for _, p := range same {
		if canonicalQuery(p[0]) != canonicalQuery(p[1]) {
			t.Errorf("%q and %q differ", p[0], p[1])
		}
	}
	for _, p := range differ {
		if canonicalQuery(p[0]) == canonicalQuery(p[1]) {
			t.Errorf("%q and %q are the same", p[0], p[1])
		}
	}
}
