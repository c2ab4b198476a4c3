// Package program has what every command works with: where it writes, who answers its questions, and its database.
package program

import (
	"context"
	"errors"
	"io"

	"github.com/alecthomas/kong"

	"github.com/holdfast-go/holdfast"
)

// Program is what a command works with.
type Program struct {
	Ctx      context.Context
	Out      io.Writer
	ErrOut   io.Writer
	Database ConnectionFlags

	Given Given
	Model *kong.Application

	Terminal io.Reader // on which a person answers; nil if there is none
}

// ErrNeedsPerson sets the exit status to 1 after everything was printed.
var ErrNeedsPerson = errors.New("something needs a person")

// UsageError is a mistake on the command line that kong cannot detect.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Schema is the schema that the flags name.
func (p *Program) Schema() holdfast.SchemaConfig {
	return holdfast.SchemaConfig{Schema: p.Database.Schema}
}
