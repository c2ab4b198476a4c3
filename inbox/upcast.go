package inbox

import (
	"fmt"
	"reflect"

	"github.com/holdfast-go/holdfast"
)

// This file has the options of On and OnBatch: how payloads are read, and how old versions become new ones.

// WithCodec says how On and OnBatch read payloads. Defaults to holdfast.JSON.
func WithCodec(c holdfast.Codec) Option { return func(r *registration) { r.codec = c } }

// WithUpcast lets On and OnBatch take an older version of the type: an event of the type oldType is decoded as an Old, and f makes the
// next version of it. Options of several versions are given from the oldest to the newest, and each goes on where the one before ended:
//
//	inbox.On(in, "order.placed.v3", handle,
//		inbox.WithUpcast("order.placed", func(o OrderV1) (OrderV2, error) { … }),
//		inbox.WithUpcast("order.placed.v2", func(o OrderV2) (OrderV3, error) { … }))
//
// f must do nothing but compute: it may run more than once for an event. Its error makes the event a dead letter at once. The old types
// have the other options of the registration, and share its turns (WithConcurrency). A tombstone is one in every version.
func WithUpcast[Old, New any](oldType string, f func(Old) (New, error)) Option {
	u := upcast{from: oldType, in: reflect.TypeFor[Old](), out: reflect.TypeFor[New]()}
	if f != nil {
		u.to = func(v any) (any, error) {
			old, _ := v.(Old)
			return f(old)
		}
	}
	return func(r *registration) { r.upcasts = append(r.upcasts, u) }
}

// upcast is one step from a version to the next.
type upcast struct {
	from    string // the type of events that come in this version
	in, out reflect.Type
	to      func(any) (any, error)
}

// upcastProblems is what is wrong with the steps to a handler of a type. It is pure.
func upcastProblems(steps []upcast, t reflect.Type) (problems []error) {
	for i, u := range steps {
		next, what := t, "the handler's type"
		if i+1 < len(steps) {
			next, what = steps[i+1].in, fmt.Sprintf("what the upcast from %q takes", steps[i+1].from)
		}
		if u.to == nil {
			problems = append(problems, fmt.Errorf("the upcast from %q is nil: it must be a function from %s to %s", u.from, u.in, u.out))
		}
		if u.out != next {
			problems = append(problems, fmt.Errorf("the upcast from %q makes a %s: it must make a %s, %s", u.from, u.out, next, what))
		}
	}
	return problems
}
