// Package badly has errors whose methods panic, as a user's code may return them.
package badly

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/retry"
)

// Behaved is an error with what its text must say, wherever it is read.
type Behaved struct {
	Name string
	Err  error
	Says string
}

// Errors are such errors of every kind.
func Errors() []Behaved {
	cycle := &linked{text: "cycle"}
	cycle.to = cycle
	return []Behaved{
		{"a nil pointer", (*refused)(nil), "the Error method of a nil *badly.refused panicked: runtime error: invalid memory address"},
		{"a nil pointer of a known type", (*pgconn.PgError)(nil), "the Error method of a nil *pgconn.PgError panicked"},
		{"a nil pointer, marked", retry.Permanent((*refused)(nil)), "the Error method of a nil *badly.refused panicked"},
		{"a nil pointer, wrapped", fmt.Errorf("charge: %w", (*refused)(nil)), "the Error method of a nil *badly.refused panicked"},
		{"a nil pointer among others", errors.Join(errors.New("one"), (*refused)(nil)), "the Error method of a nil *badly.refused panicked"},
		{"its text panics", panics{"planned"}, "the Error method of a badly.panics panicked: planned"},
		{"its text panics with an error that panics", panics{panics{"planned"}}, "the Error method of a badly.panics panicked: a value of type badly.panics"},
		{"its text panics with an error that panics, wrapped", retry.Permanent(panics{panics{panics{"planned"}}}), "the Error method of a badly.panics panicked: a value of type badly.panics"},
		{"its text panics with a value", panics{struct{ card string }{"4111"}}, "the Error method of a badly.panics panicked: a value of type struct"},
		{"its Unwrap panics", &unwraps{}, "unwraps"},
		{"its Is panics", fmt.Errorf("charge: %w", &is{}), "charge: is"},
		{"its As panics", fmt.Errorf("charge: %w", &as{}), "charge: as"},
		{"its class panics", &classed{}, "classed"},
		{"it says that it is a time-out by a panic", &timed{}, "timed"},
		{"its format panics twice", &formats{}, "formats"},
		{"it wraps itself", cycle, "cycle"},
	}
}

type refused struct{ why string }

func (r *refused) Error() string { return r.why }

type panics struct{ with any }

func (p panics) Error() string { panic(p.with) }

type unwraps struct{}

func (*unwraps) Error() string { return "unwraps" }
func (*unwraps) Unwrap() error { panic("planned") }

type is struct{}

func (*is) Error() string   { return "is" }
func (*is) Is(e error) bool { return e.(*is) != nil } // as somebody writes who compares with errors of one type only

type as struct{}

func (*as) Error() string { return "as" }
func (*as) As(any) bool   { panic("planned") }

type classed struct{}

func (*classed) Error() string           { return "classed" }
func (*classed) RetryClass() retry.Class { panic("planned") }

type timed struct{}

func (*timed) Error() string { return "timed" }
func (*timed) Timeout() bool { panic("planned") }

type formats struct{}

func (*formats) Error() string          { return "formats" }
func (*formats) Format(fmt.State, rune) { panic(panics{panics{panics{"planned"}}}) }

type linked struct {
	text string
	to   error
}

func (l *linked) Error() string { return l.text }
func (l *linked) Unwrap() error { return l.to }
