// Package sqlschema puts the configured schema name into statements that are written for the schema "holdfast".
//
// Every statement of holdfast is a constant that names its tables as holdfast.event, holdfast.inbox and so on, so that
// it can be read and tried in psql as it stands. In is applied once, when a part is made, never to anything a caller
// says.
package sqlschema

import (
	"fmt"
	"regexp"
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
