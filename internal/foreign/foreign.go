// Package foreign reads errors and panic values that a user's code made. Their methods may panic: an error that holds a nil pointer is not
// nil, and its methods meet the nil. A panic where nobody recovers ends the process, with every handler that runs in it. So an error
// goes through Error where it comes in, once, and from then on nothing that reads it can panic.
package foreign

import (
	"errors"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"strings"
)

// Error is err, or, where reading that could panic, an error that tells the same and cannot. Its text says whose Error method panicked.
// errors.Is and errors.As find in it what they find in err, without the parts whose methods panic and without nil pointers: a nil
// *pgconn.PgError says nothing. It has no Unwrap: use All and Innermost. It is nil for nil.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text, reads := textOf(err)
	plain, broken, nodes := true, "", 0
	for node := range walk(err, false) {
		nodes++
		if said, ok := textOf(node); !ok {
			broken = said // The innermost is at fault: the text of others is made of it.
		}
		_, known := node.(*read)
		plain = plain && (known || !isNil(node) && answers(node) && prints(node))
	}
	switch {
	case plain && broken == "" && nodes < maxNodes:
		return err
	case !reads:
		text = broken
	case broken != "" && !strings.Contains(text, broken): // Who wrapped it may have printed it as nil.
		text += " (" + broken + ")"
	}
	return &read{err: err, text: text, broken: broken}
}

// Errors is Error of each, in a slice of its own: who gave errs may keep it.
func Errors(errs []error) []error {
	read := make([]error, len(errs))
	for i, err := range errs {
		read[i] = Error(err)
	}
	return read
}

// Text is the text of an error, of a string, or of a panic value; of any other value only its type, because it may be an event's data.
func Text(v any) string {
	switch v := v.(type) {
	case nil:
		return "<nil>"
	case error:
		return Error(v).Error()
	case string:
		return v
	}
	return fmt.Sprintf("a value of type %T", v)
}

// Broken says whose Error method panicked, and not why, which may quote a value; "" if none has.
func Broken(err error) string {
	var r *read
	if !errors.As(Error(err), &r) {
		return ""
	}
	said, _, _ := strings.Cut(r.broken, ": ")
	return said
}

// All is err and all that it wraps, depth first, as errors.Is sees them. Nil pointers are left out, and so is what lies behind an Unwrap that
// panics.
func All(err error) iter.Seq[error] {
	return func(yield func(error) bool) {
		for node := range walk(err, true) {
			if !isNil(node) && !yield(node) {
				return
			}
		}
	}
}

// Innermost is what err wraps, and what that wraps, up to the last one; where an error wraps several, that one is the last.
func Innermost(err error) error {
	for range maxNodes {
		if r, ok := err.(*read); ok {
			err = r.err
		}
		inner, _ := Try(func() error { return errors.Unwrap(err) })
		if inner == nil {
			break
		}
		err = inner
	}
	return err
}

// Try is f's answer; ok is false if f panicked. It is for a user's function, and for methods of an error that errors.Is and errors.As do not
// call.
func Try[T any](f func() T) (answer T, ok bool) {
	defer func() {
		if !ok {
			_ = recover()
		}
	}()
	return f(), true
}

// read is an error of which one reads only what does not panic.
type read struct {
	err    error
	text   string
	broken string // says which Error method panicked; "" if none has
}

func (r *read) Error() string { return r.text }

func (r *read) Is(target error) bool {
	for node := range All(r.err) {
		if is, _ := Try(func() bool {
			if node == target {
				return true
			}
			own, ok := node.(interface{ Is(error) bool })
			return ok && own.Is(target)
		}); is {
			return true
		}
	}
	return false
}

func (r *read) As(target any) bool {
	wanted := reflect.ValueOf(target).Elem()
	for node := range All(r.err) {
		if reflect.TypeOf(node).AssignableTo(wanted.Type()) {
			wanted.Set(reflect.ValueOf(node))
			return true
		}
		if as, _ := Try(func() bool {
			own, ok := node.(interface{ As(any) bool })
			return ok && own.As(target)
		}); as {
			return true
		}
	}
	return false
}

// answers reports that the methods which errors.Is and errors.As call of err itself do not panic.
func answers(err error) bool {
	_, ok := Try(func() bool {
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			_ = e.Unwrap()
		case interface{ Unwrap() []error }:
			_ = e.Unwrap()
		}
		if own, has := err.(interface{ Is(error) bool }); has {
			own.Is(unknown{})
		}
		if own, has := err.(interface{ As(any) bool }); has {
			own.As(new(unknown))
		}
		return true
	})
	return ok
}

// unknown is an error that no user's code knows.
type unknown struct{}

func (unknown) Error() string { return "unknown" }

// prints reports that package fmt can print err. It recovers from a method that panics, and not where the panic's value does so again.
func prints(err error) bool {
	if _, own := err.(fmt.Formatter); !own {
		return true
	}
	_, ok := Try(func() string { return fmt.Sprint(err) })
	return ok
}

// isNil reports that err holds a nil pointer.
func isNil(err error) bool {
	v := reflect.ValueOf(err)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// textOf is the text of an error. ok is false if its Error method panicked: the text says so.
func textOf(err error) (text string, ok bool) {
	defer func() {
		if !ok {
			text = panicked(err, recover())
		}
	}()
	return err.Error(), true
}

// panicked says that the Error method of err panicked with p.
func panicked(err error, p any) string {
	whose := fmt.Sprintf("the Error method of a %T", err)
	if isNil(err) {
		whose = fmt.Sprintf("the Error method of a nil %T", err)
	}
	why, ok := p.(string)
	if e, is := p.(error); is {
		why, ok = Try(e.Error)
	}
	if !ok {
		why = fmt.Sprintf("a value of type %T", p)
	}
	return whose + " panicked: " + why
}

// PanickedAt says where the panic came from that the calling deferred function has recovered from: the function and its line. Of a
// panic that was recovered from and raised anew on the way it is the place of the first.
func PanickedAt() string {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	at := "an unknown place"
	for panicked := false; ; {
		frame, more := frames.Next()
		switch {
		case frame.Function == "runtime.gopanic":
			panicked = true
		case panicked && !strings.HasPrefix(frame.Function, "runtime.") && !strings.HasPrefix(frame.Function, "internal/runtime/"):
			at, panicked = fmt.Sprintf("%s:%d", frame.Function, frame.Line), false
		}
		if !more {
			return at
		}
	}
}

// maxNodes is how many errors are looked at of one that wraps others: it may wrap itself.
const maxNodes = 1000

// walk is All with nil pointers. through says whether to look into what Error returned earlier.
func walk(err error, through bool) iter.Seq[error] {
	return func(yield func(error) bool) {
		left := maxNodes
		var visit func(err error) bool
		visit = func(err error) bool {
			if err == nil {
				return true
			}
			if left--; left < 0 || !yield(err) {
				return false
			}
			for _, inner := range wrappedBy(err, through) {
				if !visit(inner) {
					return false
				}
			}
			return true
		}
		visit(err)
	}
}

// wrappedBy are the errors that err wraps.
func wrappedBy(err error, through bool) []error {
	switch e := err.(type) {
	case *read:
		if through {
			return []error{e.err}
		}
	case interface{ Unwrap() error }:
		inner, _ := Try(e.Unwrap)
		return []error{inner}
	case interface{ Unwrap() []error }:
		inner, _ := Try(e.Unwrap)
		return inner
	}
	return nil
}
