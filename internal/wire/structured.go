package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// This file reads records in the structured mode of CloudEvents: the value is the whole event, in JSON. Other producers write them. It is
// pure: values in, values out.

// Structured reports that an event that Parse has read holds a CloudEvent, or several, as its payload.
func Structured(e holdfast.Event) bool {
	_, structured := structuredFormat(e.Headers)
	return structured && e.Payload != nil
}

// structuredFormat is what follows "application/cloudevents" in the content type.
func structuredFormat(headers map[string]string) (format string, structured bool) {
	for name, value := range headers {
		if strings.EqualFold(name, holdfast.HeaderContentType) {
			media, _, _ := strings.Cut(value, ";")
			return strings.CutPrefix(strings.ToLower(strings.TrimSpace(media)), "application/cloudevents")
		}
	}
	return "", false
}

// AttributeError says which attribute of a CloudEvent is malformed. It quotes no value.
type AttributeError struct {
	Attribute string // "" for the event as a whole
	Problem   string
}

func (e *AttributeError) Error() string {
	if e.Attribute == "" {
		return "cloudevent: " + e.Problem
	}
	return fmt.Sprintf("cloudevent: attribute %q: %s", e.Attribute, e.Problem)
}

// Open takes a structured event apart. The key and the topic stay those of the record, and so does the time if the event has none. The
// error is an *AttributeError; the event then has what could be read of ID, Source and Type, and the payload that came.
func Open(e holdfast.Event) (holdfast.Event, error) {
	format, _ := structuredFormat(e.Headers)
	if format != "+json" {
		return e, &AttributeError{"", "it is in a batch, or in another format than JSON: holdfast reads application/cloudevents+json"}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(e.Payload, &members); err != nil || members == nil {
		return e, &AttributeError{"", "it is no JSON object"}
	}
	for name, value := range members { // An attribute that is null is not set. Data that is null is null.
		if name != "data" && string(value) == "null" {
			delete(members, name)
		}
	}
	o := opening{members: members}
	opened := holdfast.Event{
		Topic:   e.Topic,
		Key:     e.Key,
		Time:    e.Time,
		Headers: maps.Clone(e.Headers),
	}
	for name := range opened.Headers {
		if strings.EqualFold(name, holdfast.HeaderContentType) {
			delete(opened.Headers, name)
		}
	}
	// 1. What the event is recognised by. All that can be read is, for a dead letter to say.
	opened.ID, opened.Source, opened.Type = o.required("id"), o.required("source"), o.required("type")
	if opened.Source == NoSource {
		opened.Source = ""
	}
	e.ID, e.Source, e.Type = opened.ID, opened.Source, opened.Type
	if version := o.required("specversion"); !strings.HasPrefix(version, "1.") {
		o.bad("specversion", "it is not 1.x")
	}
	// 2. What may be there.
	if at := o.optional("time"); at != "" {
		t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(at))
		if err != nil {
			o.bad("time", "it is not as in RFC 3339")
		}
		opened.Time = t.UTC().Truncate(time.Microsecond)
	}
	if subject := o.optional("subject"); subject != "" {
		opened.Headers[HeaderSubject] = subject
	}
	if schema := o.optional("dataschema"); schema != "" {
		opened.Headers[headerDataSchema] = schema
	}
	contentType := o.optional("datacontenttype")
	// 3. The data.
	opened.Payload = o.data(contentType)
	if opened.Payload != nil {
		if contentType == "" && o.members["data_base64"] == nil {
			contentType = "application/json"
		}
		if contentType != "" {
			opened.Headers[holdfast.HeaderContentType] = contentType
		}
	}
	// 4. Extension attributes, under the names that they have in binary mode.
	o.extensions(opened.Headers)
	if o.err != nil {
		return e, o.err
	}
	named(&opened)
	return opened, nil
}

// opening is an event that is being taken apart. err is the first thing that is wrong.
type opening struct {
	members map[string]json.RawMessage
	err     error
}

func (o *opening) bad(attribute, problem string) {
	if o.err == nil {
		o.err = &AttributeError{attribute, problem}
	}
}

func (o *opening) required(name string) string {
	if o.members[name] == nil {
		o.bad(name, "it is missing")
		return ""
	}
	return o.optional(name)
}

// optional is the text of an attribute; "" if it is not there.
func (o *opening) optional(name string) string {
	value := o.members[name]
	if value == nil {
		return ""
	}
	var text *string
	switch err := json.Unmarshal(value, &text); {
	case err != nil || text == nil:
		o.bad(name, "it is no string")
	case *text == "":
		o.bad(name, "it is empty")
	default:
		return *text
	}
	return ""
}

// data is the payload: nil if there is none.
func (o *opening) data(contentType string) []byte {
	value, encoded := o.members["data"], o.members["data_base64"]
	switch {
	case value != nil && encoded != nil:
		o.bad("data", "it is there twice, as data and as data_base64")
	case encoded != nil:
		var text string
		if json.Unmarshal(encoded, &text) != nil {
			o.bad("data_base64", "it is no string")
			return nil
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			o.bad("data_base64", "it is no base64")
			return nil
		}
		return append([]byte{}, data...)
	case value == nil:
	case isJSON(contentType):
		return bytes.Clone(value)
	default: // A text in another format. What is no string is JSON all the same.
		var text string
		if json.Unmarshal(value, &text) == nil && string(value) != "null" {
			return []byte(text)
		}
		return bytes.Clone(value)
	}
	return nil
}

// isJSON says whether data of a content type is JSON. Without one it is.
func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	media = strings.TrimSpace(media)
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// extensions puts the extension attributes among headers.
func (o *opening) extensions(headers map[string]string) {
	for name, value := range o.members {
		switch name {
		case "id", "source", "type", "specversion", "time", "subject", "dataschema", "datacontenttype", "data", "data_base64":
			continue
		}
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			o.bad("", "an extension attribute has a name that is not of small letters and digits")
			continue
		}
		var text string
		switch value[0] {
		case '"':
			_ = json.Unmarshal(value, &text)
		case '{', '[':
			o.bad("", "an extension attribute is an object or an array")
			continue
		default: // a number or a boolean
			text = string(value)
		}
		headers["ce_"+name] = text
	}
}
