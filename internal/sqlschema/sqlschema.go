// Package sqlschema puts the configured schema name into statements that are written for the schema "holdfast".
//
// Every statement of holdfast is a constant that names its tables as holdfast.event, holdfast.inbox and so on, so that
// it can be read and tried in psql as it stands. In is applied once, when a part is made, never to anything a caller
// says.
package sqlschema

import (
	"fmt"
	"regexp"
	"sync"
)

// Default is the schema name when none is configured.
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

// In returns statement with the schema's name, quoted, where it says holdfast. It panics on a name that Validate
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

// Statements gives the statements of one schema: each is rewritten once, when it is first asked for. It may be used by many
// goroutines at once.
type Statements struct {
	schema    string
	rewritten sync.Map // of statements, as they are written, to what In makes of them
}

// For returns the statements of a schema. It panics on a name that Validate refuses, as In does.
func For(schema string) *Statements {
	if err := Validate(schema); err != nil {
		panic(err)
	}
	return &Statements{schema: schema}
}

// In returns a statement for the schema. It remembers every statement it is asked for: ask for constants only.
func (s *Statements) In(statement string) string {
	if text, known := s.rewritten.Load(statement); known {
		return text.(string)
	}
	text, _ := s.rewritten.LoadOrStore(statement, In(s.schema, statement))
	return text.(string)
}
