package sqloutbox

import (
	"encoding/hex"
	"fmt"
	"time"
)

// This file writes arguments as text that Postgres reads, whatever the driver is. Drivers agree on strings, bytes and NULL; on times
// and arrays they do not.

// moment is a timestamptz, in the microseconds that Postgres has. More digits are cut off, as pgx does: Postgres would round. Every
// DateStyle reads it.
const moment = "2006-01-02T15:04:05.000000Z07:00"

// asText returns the arguments of an outbox.Exec as strings, bytes and nil.
func asText(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		out[i] = text(arg)
	}
	return out
}

func text(arg any) any {
	switch v := arg.(type) {
	case string:
		return v
	case []byte:
		if v == nil { // lib/pq takes a nil slice in an interface for an empty value
			return nil
		}
		return v
	case *string:
		if v == nil {
			return nil
		}
		return *v
	case *time.Time:
		if v == nil {
			return nil
		}
		return v.UTC().Format(moment)
	case []string:
		return array(v, func(out []byte, s string) []byte { return quoted(out, s) })
	case []*string:
		return array(v, func(out []byte, s *string) []byte {
			if s == nil {
				return append(out, "null"...)
			}
			return quoted(out, *s)
		})
	case []*time.Time:
		return array(v, func(out []byte, t *time.Time) []byte {
			if t == nil {
				return append(out, "null"...)
			}
			return append(t.UTC().AppendFormat(append(out, '"'), moment), '"')
		})
	case [][]byte:
		return array(v, func(out []byte, b []byte) []byte {
			if b == nil {
				return append(out, "null"...)
			}
			return append(hex.AppendEncode(append(out, `"\\x`...), b), '"')
		})
	default:
		panic(fmt.Sprintf("sqloutbox: package outbox passes a %T", arg))
	}
}

// array is an array as Postgres reads it, or nil for a nil slice, which is NULL.
func array[T any](values []T, add func(out []byte, value T) []byte) any {
	if values == nil {
		return nil
	}
	out := []byte{'{'}
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = add(out, v)
	}
	return string(append(out, '}'))
}

// quoted adds an element in quotes. Only the quote and the backslash have a meaning inside.
func quoted(out []byte, s string) []byte {
	out = append(out, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			out = append(out, '\\')
		}
		out = append(out, s[i])
	}
	return append(out, '"')
}
