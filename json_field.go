package holdfast

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// This file finds the field because of which JSON does not fit a type. It is pure: values in, values out. It names fields of the
// type only, and never quotes the JSON, whose values and keys may be a person's.

// misfit is the innermost part of a JSON value that does not fit t, and what is wrong there. json.Unmarshal has refused the value.
//
// It decodes each part by itself, and goes on with the first that is refused. That takes the time of a few decodings at each level.
func misfit(t reflect.Type, value []byte) (field, problem string) {
	for depth := 0; depth < maxDepth; depth++ {
		part, of, rest := misfitIn(t, value)
		if of == nil {
			break
		}
		if part != "" && part[0] != '[' && field != "" {
			field += "."
		}
		field += part
		t, value = of, rest
	}
	return field, problemOf(t, value)
}

// maxDepth is how deep misfit looks.
const maxDepth = 100

// misfitIn is the first part of a value that does not fit, with its type. of is nil if the value has no such part.
func misfitIn(t reflect.Type, value []byte) (part string, of reflect.Type, rest []byte) {
	for t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	if decodesItself(t) {
		return "", nil, nil
	}
	switch kind := kindOf(value); {
	case t.Kind() == reflect.Struct && kind == "an object":
		return misfitField(t, value)
	case t.Kind() == reflect.Map && kind == "an object":
		var members map[string]json.RawMessage
		if json.Unmarshal(value, &members) != nil {
			return "", nil, nil
		}
		for _, name := range sortedNames(members) {
			if !fits(t.Elem(), members[name]) {
				return "*", t.Elem(), members[name]
			}
		}
	case (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && kind == "an array":
		var elements []json.RawMessage
		if json.Unmarshal(value, &elements) != nil {
			return "", nil, nil
		}
		for i, element := range elements {
			if !fits(t.Elem(), element) {
				return "[" + strconv.Itoa(i) + "]", t.Elem(), element
			}
		}
	}
	return "", nil, nil
}

// misfitField is misfitIn for the fields of a struct, in their order.
func misfitField(t reflect.Type, value []byte) (part string, of reflect.Type, rest []byte) {
	var members map[string]json.RawMessage
	if json.Unmarshal(value, &members) != nil {
		return "", nil, nil
	}
	names := sortedNames(members)
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" && options == "" {
			continue
		}
		if inner := indirect(f.Type); f.Anonymous && tag == "" && inner.Kind() == reflect.Struct && !decodesItself(f.Type) {
			if part, of, rest = misfitField(inner, value); of != nil {
				return part, of, rest
			}
			continue
		}
		if !f.IsExported() || slices.Contains(strings.Split(options, ","), "string") {
			continue
		}
		name := f.Name
		if tag != "" {
			name = tag
		}
		for _, theirs := range names {
			if strings.EqualFold(theirs, name) && !fits(f.Type, members[theirs]) {
				return name, f.Type, members[theirs]
			}
		}
	}
	return "", nil, nil
}

func sortedNames(members map[string]json.RawMessage) []string {
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// fits reports that a value can be decoded by itself.
func fits(t reflect.Type, value []byte) bool {
	return json.Unmarshal(value, reflect.New(t).Interface()) == nil
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[interface{ UnmarshalText([]byte) error }]()
)

// decodesItself reports that a type has its own way to be read.
func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Implements(unmarshaler) || p.Implements(unmarshaler) || t.Implements(textUnmarshaler) || p.Implements(textUnmarshaler)
}

// nullable reports that null is a value of a type.
func nullable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return decodesItself(t)
}

// problemOf says why a value does not fit a type.
func problemOf(t reflect.Type, value []byte) string {
	got, want := kindOf(value), wanted(t)
	t = indirect(t)
	switch {
	case decodesItself(t):
		return got + " that is no " + t.String()
	case got == "a number" && isNumber(t):
		return "a number that does not fit " + want
	case got == want, t.Kind() == reflect.Slice && got == "a string":
		return got + " that is no " + t.String()
	}
	return got + " where " + want + " is wanted"
}

func isNumber(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64 }

// kindOf is what a JSON value is.
func kindOf(value []byte) string {
	value = bytes.TrimLeft(value, " \t\r\n")
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}

// wanted is what JSON a type takes.
func wanted(t reflect.Type) string {
	t = indirect(t)
	if decodesItself(t) {
		return "a " + t.String()
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a base64 string"
		}
		return "an array"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "an " + t.Kind().String()
	default:
		return "a " + t.Kind().String()
	}
}
