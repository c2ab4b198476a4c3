package holdfast

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
)

// JSON is the Codec of encoding/json. The zero value accepts fields that a type does not have, so that a producer may add some.
type JSON struct {
	// Strict makes a field that the type does not have an error. Defaults to false.
	Strict bool
}

// contentTypeJSON is what JSON writes.
const contentTypeJSON = "application/json"

// Encode is json.Marshal. A value that it refuses is an error, and so is a nil pointer.
func (JSON) Encode(_ context.Context, e Event, v any) (Event, error) {
	if rv := reflect.ValueOf(v); !rv.IsValid() || rv.Kind() == reflect.Pointer && rv.IsNil() {
		return e, fmt.Errorf("encode payload: %w", errTombstone)
	}
	payload, err := json.Marshal(v)
	if err != nil {
		return e, fmt.Errorf("encode payload: %w", err)
	}
	e.Payload = payload
	return withContentType(e, contentTypeJSON), nil
}

// withContentType is the event with a content type, unless it has one.
func withContentType(e Event, contentType string) Event {
	if _, has := e.Headers[HeaderContentType]; has {
		return e
	}
	headers := maps.Clone(e.Headers)
	if headers == nil {
		headers = map[string]string{}
	}
	headers[HeaderContentType] = contentType
	e.Headers = headers
	return e
}

// Decode is json.Unmarshal. It refuses null for what is no pointer, map, slice or interface. Its errors are *PayloadError, with
// the field.
func (j JSON) Decode(_ context.Context, e Event, v any) error {
	target := reflect.TypeOf(v)
	if target == nil || target.Kind() != reflect.Pointer {
		return fmt.Errorf("decode payload: the target is a %T: it must be a pointer", v)
	}
	return j.decode(e.Payload, v, target.Elem())
}

func (j JSON) decode(payload []byte, v any, t reflect.Type) error {
	if len(bytes.TrimSpace(payload)) == 0 {
		return &PayloadError{Problem: "nothing where JSON is wanted"}
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(payload, new(nothing)); errors.As(err, &syntax) {
		return &PayloadError{Problem: fmt.Sprintf("not JSON, at byte %d", syntax.Offset), Err: err}
	}
	if kindOf(payload) == "null" && !nullable(t) {
		return &PayloadError{Problem: "null where " + wanted(t) + " is wanted"}
	}
	if err := json.Unmarshal(payload, v); err != nil {
		field, problem := misfit(t, payload)
		return &PayloadError{Field: field, Problem: problem, Err: err}
	}
	if !j.Strict {
		return nil
	}
	strict := json.NewDecoder(bytes.NewReader(payload))
	strict.DisallowUnknownFields()
	if err := strict.Decode(reflect.New(t).Interface()); err != nil && !errors.Is(err, io.EOF) {
		return &PayloadError{Problem: "a field that " + t.String() + " does not have", Err: err}
	}
	return nil
}

// nothing takes any JSON, so that only its syntax is checked.
type nothing struct{}

func (*nothing) UnmarshalJSON([]byte) error { return nil }
