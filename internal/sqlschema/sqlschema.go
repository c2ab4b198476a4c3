// Package sqlschema puts the configured schema name into statements that are written for the schema "holdfast".
//
// Every statement of holdfast is a constant that names its tables as holdfast.event, holdfast.inbox and so on, so that
// it can be read and tried in psql as it is. In is applied once, to constants only, never to anything that a caller
// passes.
package sqlschema

import (
	"fmt"
	"regexp"
	"sync"
)

// Default is the schema name if none is configured.
const Default = "holdfast"

var (
	allowed   = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	qualifier = regexp.MustCompile(`\bholdfast\.`)
	named     = regexp.MustCompile(`\b(create schema if not exists|in schema) holdfast\b`)
)

// Validate says whether name may be a schema name: lower-case letters, digits and underscores, at most 63 bytes, the
// length at which Postgres silently truncates. The empty name means Default. Names beginning with pg_ are Postgres's.
func Validate(name string) error {
	if name == "" {
		return nil
	}
	if !allowed.MatchString(name) || (len(name) >= 3 && name[:3] == "pg_") {
		return fmt.Errorf("schema is %q: it must match %s and not begin with pg_", name, allowed)
	}
	return nil
}

// In returns statement with the schema's name, quoted, in place of holdfast. It panics on a name that Validate
// refuses: callers validate their configuration first.
func In(name, statement string) string {
	if err := Validate(name); err != nil {
		panic(err)
	}
	if name == "" {
		name = Default
	}
	statement = named.ReplaceAllString(statement, `$1 "`+name+`"`)
	return qualifier.ReplaceAllString(statement, `"`+name+`".`)
}

// Statements holds the statements of one schema. Each is rewritten once, at its first use. Many goroutines may use it at
// once.
type Statements struct {
	schema    string
	rewritten sync.Map // from statements as they are written to what In makes of them
}

// For returns the statements of a schema. It panics on a name that Validate refuses, as In does.
func For(schema string) *Statements {
	if err := Validate(schema); err != nil {
		panic(err)
	}
	return &Statements{schema: schema}
}

// In returns a statement for the schema. It keeps every statement that it is given: pass constants only.
func (s *Statements) In(statement string) string {
	if text, known := s.rewritten.Load(statement); known {
		return text.(string)
	}
	text, _ := s.rewritten.LoadOrStore(statement, In(s.schema, statement))
	return text.(string)
}
