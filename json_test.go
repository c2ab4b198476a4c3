package holdfast_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
)

type line struct {
	SKU  string `json:"sku"`
	Qty  int8   `json:"qty"`
	Note *string
}

type address struct {
	City string `json:"city"`
}

type order struct {
	address
	ID     int64             `json:"id"`
	Lines  []line            `json:"lines"`
	Prices map[string]*price `json:"prices"`
	At     time.Time         `json:"at"`
	Paid   bool
	Weight float64 `json:"weight"`
	Any    any     `json:"any"`
	Raw    []byte  `json:"raw"`
	Grid   [2][]uint
	Hidden int `json:"-"`
	Quoted int `json:"quoted,string"`
}

type price struct{ Cents int }

func TestJSON_APayloadThatDoesNotFitNamesTheFieldAndWhatWasWanted(t *testing.T) {
	for payload, want := range map[string]string{
		`{"lines":[{"qty":1},{},{"qty":"SECRET"}]}`:             `payload: field "lines[2].qty": a string where an int8 is wanted`,
		`{"lines":[{"qty":300}]}`:                               `payload: field "lines[0].qty": a number that does not fit an int8`,
		`{"id":1.5}`:                                            `payload: field "id": a number that does not fit an int64`,
		`{"LINES":[{"QTY":[]}]}`:                                `payload: field "lines[0].qty": an array where an int8 is wanted`,
		`{"lines":{"SECRET":1}}`:                                `payload: field "lines": an object where an array is wanted`,
		`{"lines":["SECRET"]}`:                                  `payload: field "lines[0]": a string where an object is wanted`,
		`{"prices":{"a":{"Cents":1},"SECRET":{"Cents":false}}}`: `payload: field "prices.*.Cents": a bool where an int is wanted`,
		`{"city":7}`:                                            `payload: field "city": a number where a string is wanted`,
		`{"at":"SECRET"}`:                                       `payload: field "at": a string that is no time.Time`,
		`{"at":5}`:                                              `payload: field "at": a number that is no time.Time`,
		`{"Paid":"yes"}`:                                        `payload: field "Paid": a string where a bool is wanted`,
		`{"weight":"1"}`:                                        `payload: field "weight": a string where a float64 is wanted`,
		`{"raw":"SECRET!"}`:                                     `payload: field "raw": a string that is no []uint8`,
		`{"raw":{}}`:                                            `payload: field "raw": an object where a base64 string is wanted`,
		`{"Grid":[[1],[2,-1]]}`:                                 `payload: field "Grid[1][1]": a number that does not fit a uint`,
		`{"lines":[{"Note":1}]}`:                                `payload: field "lines[0].Note": a number where a string is wanted`,
		`["SECRET"]`:                                            `payload: an array where an object is wanted`,
		`"SECRET"`:                                              `payload: a string where an object is wanted`,
		` null `:                                                `payload: null where an object is wanted`,
		`{"id":1,SECRET}`:                                       `payload: not JSON, at byte 9`,
		`{"id":1} {"id":2}`:                                     `payload: not JSON, at byte 10`,
		"":                                                      `payload: nothing where JSON is wanted`,
		" \n":                                                   `payload: nothing where JSON is wanted`,
	} {
		var o order
		err := holdfast.JSON{}.Decode(t.Context(), holdfast.Event{Payload: []byte(payload)}, &o)
		var fault *holdfast.PayloadError
		if !errors.As(err, &fault) || fault.Reason() != want {
			t.Errorf("%s: got\n%v, want\n%s", payload, err, want)
			continue
		}
		if strings.Contains(fault.Reason(), "SECRET") {
			t.Errorf("%s: the reason quotes it", payload)
		}
	}
}

func TestJSON_APayloadThatFitsIsDecoded(t *testing.T) {
	var o order
	payload := `{"city":"Rome","id":7,"lines":[{"sku":"a","qty":-3}],"prices":{"a":null,"b":{"Cents":2}},"at":"2026-01-02T03:04:05Z","more":{"a":1}}`
	if err := (holdfast.JSON{}).Decode(t.Context(), holdfast.Event{Payload: []byte(payload)}, &o); err != nil {
		t.Fatal(err)
	}
	want := order{address: address{City: "Rome"}, ID: 7, Lines: []line{{SKU: "a", Qty: -3}}, Prices: map[string]*price{"a": nil, "b": {Cents: 2}}, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if diff := cmp.Diff(want, o, cmp.AllowUnexported(order{}, address{})); diff != "" {
		t.Error(diff)
	}
	for _, any := range []any{new(*order), new(map[string]any), new([]int), new(any), new(json.RawMessage)} {
		if err := (holdfast.JSON{}).Decode(t.Context(), holdfast.Event{Payload: []byte("null")}, any); err != nil {
			t.Errorf("null for %T: %v", any, err)
		}
	}
}

func TestJSON_AnUnknownFieldIsAnErrorIfAskedFor(t *testing.T) {
	e := holdfast.Event{Payload: []byte(`{"id":1,"lines":[{"sku":"a","SECRET":2}]}`)}
	if err := (holdfast.JSON{}).Decode(t.Context(), e, new(order)); err != nil {
		t.Error(err)
	}
	var fault *holdfast.PayloadError
	err := holdfast.JSON{Strict: true}.Decode(t.Context(), e, new(order))
	if !errors.As(err, &fault) || fault.Reason() != "payload: a field that holdfast_test.order does not have" {
		t.Errorf("got %v", err)
	}
	if want := `payload: a field that holdfast_test.order does not have: json: unknown field "SECRET"`; err.Error() != want {
		t.Errorf("the whole error is %q, want %q", err, want)
	}
	e.Payload = []byte(`{"id":1}`)
	if err := (holdfast.JSON{Strict: true}).Decode(t.Context(), e, new(order)); err != nil {
		t.Error(err)
	}
}

func TestJSON_AReasonIsBounded(t *testing.T) {
	long := (&holdfast.PayloadError{Field: strings.Repeat("é", 200), Problem: "bad"}).Reason()
	if len(long) > 300 || !strings.HasSuffix(long, "é…") {
		t.Errorf("%d bytes: %q", len(long), long)
	}
	deep := strings.Repeat(`{"Next":`, 200) + `5` + strings.Repeat("}", 200)
	err := holdfast.JSON{}.Decode(t.Context(), holdfast.Event{Payload: []byte(deep)}, new(node))
	var fault *holdfast.PayloadError
	if !errors.As(err, &fault) || len(fault.Reason()) > 300 || !strings.HasPrefix(fault.Reason(), `payload: field "Next.Next.`) {
		t.Errorf("got %v", err)
	}
}

type node struct{ Next *node }

func TestJSON_EncodingKeepsTheEventAndSaysTheContentType(t *testing.T) {
	given := holdfast.Event{ID: "1", Headers: map[string]string{"traceparent": "x"}}
	e, err := holdfast.JSON{}.Encode(t.Context(), given, line{SKU: "a"})
	if err != nil {
		t.Fatal(err)
	}
	want := holdfast.Event{ID: "1", Payload: []byte(`{"sku":"a","qty":0,"Note":null}`), Headers: map[string]string{"traceparent": "x", "content-type": "application/json"}}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
	if len(given.Headers) != 1 {
		t.Error("the caller's map was changed")
	}
	e, _ = holdfast.JSON{}.Encode(t.Context(), holdfast.Event{Headers: map[string]string{"content-type": "application/vnd.shop+json"}}, line{})
	if e.Headers["content-type"] != "application/vnd.shop+json" {
		t.Error("the caller's content type was replaced")
	}
	for _, v := range []any{nil, (*line)(nil), make(chan int)} {
		if _, err := (holdfast.JSON{}).Encode(t.Context(), holdfast.Event{}, v); err == nil {
			t.Errorf("%T was encoded", v)
		}
	}
}

// A reason never quotes a payload: neither a value, nor a name that the program does not know.
func FuzzReasonsQuoteNothing(f *testing.F) {
	f.Add(`{"lines":[{"qty":"zzsecret"}]}`)
	f.Add(`{"prices":{"zzsecret":[]},"zzsecret":{"id":"zzsecret"}}`)
	f.Add(`["zzsecret`)
	f.Fuzz(func(t *testing.T, payload string) {
		for _, target := range []any{new(order), new(map[string]int), new([]line), new(string)} {
			err := holdfast.JSON{Strict: true}.Decode(context.Background(), holdfast.Event{Payload: []byte(payload)}, target)
			var fault *holdfast.PayloadError
			if err == nil {
				continue
			}
			if !errors.As(err, &fault) {
				t.Fatalf("%q: %v is no PayloadError", payload, err)
			}
			if reason := fault.Reason(); strings.Contains(reason, "zzsecret") || len(reason) > 300 {
				t.Fatalf("%q: %q", payload, reason)
			}
		}
	})
}
