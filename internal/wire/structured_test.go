package wire

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
)

const cloudJSON = "application/cloudevents+json; charset=UTF-8"

func structured(value string) holdfast.Event {
	e, err := Parse("t", []byte("k"), []byte(value), []Header{{"Content-Type", []byte(cloudJSON)}, {"traceparent", []byte("00")}}, noon)
	if err != nil {
		panic(err)
	}
	return e
}

// required is the beginning of an event with all attributes that it must have.
const required = `{"specversion":"1.0","id":"1","source":"/theirs","type":"order.placed"`

func TestStructured_AStructuredEventIsTakenApart(t *testing.T) {
	event := func(payload []byte, headers ...string) holdfast.Event {
		e := holdfast.Event{ID: "1", Source: "/theirs", Type: "order.placed", Topic: "t", Key: "k", Payload: payload, Time: noon, Headers: map[string]string{"traceparent": "00"}}
		for i := 0; i < len(headers); i += 2 {
			e.Headers[headers[i]] = headers[i+1]
		}
		return e
	}
	later := event(nil)
	later.Time = time.Date(2026, 1, 2, 2, 4, 5, 678901000, time.UTC)
	for value, want := range map[string]holdfast.Event{
		required + `}`:                                                           event(nil),
		required + `,"data":{ "a" : 1 }}`:                                        event([]byte(`{ "a" : 1 }`), "content-type", "application/json"),
		required + `,"data":null}`:                                               event([]byte(`null`), "content-type", "application/json"),
		required + `,"data":"x","datacontenttype":null}`:                         event([]byte(`"x"`), "content-type", "application/json"),
		required + `,"data":"x","datacontenttype":"text/xml"}`:                   event([]byte(`x`), "content-type", "text/xml"),
		required + `,"data":[1],"datacontenttype":"text/xml"}`:                   event([]byte(`[1]`), "content-type", "text/xml"),
		required + `,"data":"x","datacontenttype":"application/vnd.x+json;a=b"}`: event([]byte(`"x"`), "content-type", "application/vnd.x+json;a=b"),
		required + `,"data_base64":"AAE="}`:                                      event([]byte{0, 1}),
		required + `,"data_base64":"","datacontenttype":"application/avro"}`:     event([]byte{}, "content-type", "application/avro"),
		required + `,"time":"2026-01-02T03:04:05.6789012+01:00"}`:                later,
		required + `,"subject":"k","dataschema":"https://x"}`:                    event(nil, "dataschema", "https://x"),
		required + `,"subject":"s","a1":"x","b":7,"c":true,"d":null}`:            event(nil, "ce_subject", "s", "ce_a1", "x", "ce_b", "7", "ce_c", "true"),
	} {
		e := structured(value)
		if !Structured(e) {
			t.Fatal("it is not seen to be structured")
		}
		got, err := Open(e)
		if err != nil {
			t.Errorf("%s: %v", value, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", value, diff)
		}
	}
}

func TestStructured_AMalformedStructuredEventNamesItsAttribute(t *testing.T) {
	for value, want := range map[string]string{
		`SECRET`:     `cloudevent: it is no JSON object`,
		`["SECRET"]`: `cloudevent: it is no JSON object`,
		`null`:       `cloudevent: it is no JSON object`,
		`{"specversion":"1.0","source":"s","type":"t"}`:           `cloudevent: attribute "id": it is missing`,
		`{"specversion":"1.0","source":"s","type":"t","id":""}`:   `cloudevent: attribute "id": it is empty`,
		`{"specversion":"1.0","source":"s","type":"t","id":7}`:    `cloudevent: attribute "id": it is no string`,
		`{"specversion":"1.0","source":null,"type":"t","id":"1"}`: `cloudevent: attribute "source": it is missing`,
		`{"specversion":"1.0","source":"s","id":"1"}`:             `cloudevent: attribute "type": it is missing`,
		`{"source":"s","type":"t","id":"1"}`:                      `cloudevent: attribute "specversion": it is missing`,
		`{"specversion":"0.3","source":"s","type":"t","id":"1"}`:  `cloudevent: attribute "specversion": it is not 1.x`,
		required + `,"time":"SECRET"}`:                            `cloudevent: attribute "time": it is not as in RFC 3339`,
		required + `,"subject":["SECRET"]}`:                       `cloudevent: attribute "subject": it is no string`,
		required + `,"dataschema":""}`:                            `cloudevent: attribute "dataschema": it is empty`,
		required + `,"datacontenttype":1}`:                        `cloudevent: attribute "datacontenttype": it is no string`,
		required + `,"data":1,"data_base64":"AA=="}`:              `cloudevent: attribute "data": it is there twice, as data and as data_base64`,
		required + `,"data_base64":"SECRET!"}`:                    `cloudevent: attribute "data_base64": it is no base64`,
		required + `,"data_base64":[]}`:                           `cloudevent: attribute "data_base64": it is no string`,
		required + `,"SECRET":1}`:                                 `cloudevent: an extension attribute has a name that is not of small letters and digits`,
		required + `,"a":{"SECRET":1}}`:                           `cloudevent: an extension attribute is an object or an array`,
	} {
		e := structured(value)
		got, err := Open(e)
		var attribute *AttributeError
		if !errors.As(err, &attribute) || err.Error() != want {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
		if string(got.Payload) != value || got.Key != "k" || got.Headers["Content-Type"] != cloudJSON {
			t.Errorf("%s: it did not stay as it came: %+v", value, got)
		}
		if strings.Contains(value, `"type":"t"`) && got.Type != "t" {
			t.Errorf("%s: its type was not read", value)
		}
	}
	e := structured("x")
	e.Headers["Content-Type"] = "application/cloudevents-batch+json"
	if _, err := Open(e); err == nil || !strings.Contains(err.Error(), "it is in a batch") {
		t.Errorf("a batch: %v", err)
	}
}

func TestStructured_OtherContentIsNotStructured(t *testing.T) {
	for name, e := range map[string]holdfast.Event{
		"no headers":  {Payload: []byte("{}")},
		"JSON":        {Payload: []byte("{}"), Headers: map[string]string{"content-type": "application/json"}},
		"a tombstone": {Headers: map[string]string{"content-type": cloudJSON}},
		"another":     {Payload: []byte("{}"), Headers: map[string]string{"x-content-type": cloudJSON}},
	} {
		if Structured(e) {
			t.Errorf("%s is taken for a structured event", name)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(required + `,"data":{"a":1},"subject":"s","a1":7}`)
	f.Add(required + `,"data_base64":"AAE=","time":"2026-01-02T03:04:05Z"}`)
	f.Fuzz(func(t *testing.T, value string) {
		e := structured(value)
		opened, err := Open(e)
		if err != nil {
			if strings.Contains(value, "zzsecret") && strings.Contains(err.Error(), "zzsecret") {
				t.Fatalf("%q: %v", value, err)
			}
			return
		}
		if opened.ID == "" || opened.Type == "" || opened.Topic != "t" || opened.Key != "k" {
			t.Fatalf("%q: %+v", value, opened)
		}
		// What was taken apart can be published, and reads the same again.
		again, err := Parse("t", []byte("k"), opened.Payload, Headers[Header](nil, opened), opened.Time)
		if err != nil {
			t.Fatal(err)
		}
		if y := opened.Time.Year(); y < 0 || y > 9999 {
			again.Time = opened.Time
		}
		if diff := cmp.Diff(opened, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
