package holdfast

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

//go:embed schema.sql
var schemaSQL string

// SchemaSQL returns schema.sql: the whole schema with its commentary, written for the schema name "holdfast".
func SchemaSQL() string { return schemaSQL }

// SchemaVersion is the version of the schema that this build works with.
const SchemaVersion = sqlschema.Version

// defaultLanes is how many lanes a new schema gets when SchemaConfig.Lanes is zero.
const defaultLanes = 8

// The limits of SchemaConfig.MaxPayload. The default is that of outbox.Config. The largest is half of what a relay may hold
// in memory by default, so that it can always read an event.
const (
	defaultMaxPayload = 1<<20 - 16<<10
	largestMaxPayload = 64 << 20
)

// ErrSchemaMissing is returned by Check, and by the parts when they start, where the schema, or a part of it, is not there.
var ErrSchemaMissing = sqlschema.ErrMissing

// ErrSchemaVersion is returned by Check, and by the parts when they start, where the schema is older than the build needs, or
// so new that the build must not run on it. The error says which, and what to do.
var ErrSchemaVersion = sqlschema.ErrVersion

// SchemaConfig says which schema holds holdfast's tables.
type SchemaConfig struct {
	// Schema is the name of the Postgres schema. It must match ^[a-z_][a-z0-9_]{0,62}$. Defaults to "holdfast".
	Schema string

	// Lanes is the number of lanes that keys hash into; at most this many relays share the work. It is fixed when the
	// schema is created; between 1 and 256. Defaults to 8, or to what is installed.
	Lanes int

	// MaxPayload is the maximum size in bytes of an event's payload, for every writer: outbox.Write, or another language
	// through the SQL functions. Write refuses earlier what exceeds its own outbox.Config.MaxPayload. Keep it below the
	// broker's max.message.bytes less 16 KiB. Migrate changes it at any time; it is at most 67,108,864 (64 MiB). Defaults to
	// 1,032,192 (1 MiB less 16 KiB), or to what is installed.
	MaxPayload int
}

func (c SchemaConfig) withDefaults() SchemaConfig {
	if c.Schema == "" {
		c.Schema = sqlschema.Default
	}
	return c
}

func (c SchemaConfig) validate() error {
	var problems []error
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if c.Lanes < 0 || c.Lanes > 256 {
		problems = append(problems, fmt.Errorf("lanes is %d: it must be between 1 and 256, or 0 for %d", c.Lanes, defaultLanes))
	}
	if c.MaxPayload < 0 || c.MaxPayload > largestMaxPayload {
		problems = append(problems, fmt.Errorf("max payload is %d: it must be between 1 and %d, or 0 for %d or what is installed", c.MaxPayload, largestMaxPayload, defaultMaxPayload))
	}
	return errors.Join(problems...)
}

// SQL returns the script that creates the schema in one transaction: what Migrate runs on an empty database. Use it if you
// run your migrations by other means.
func SQL(c SchemaConfig) (string, error) {
	if err := c.validate(); err != nil {
		return "", fmt.Errorf("schema config: %w", err)
	}
	return "begin;\n\n" + installSQL(c.withDefaults()) + "\ncommit;\n", nil
}

// UpgradeSQL returns the script that upgrades a schema of version from to SchemaVersion in one transaction: what Migrate
// runs there. Use it if you run your migrations by other means. The script raises an error, and changes nothing, on a schema
// of another version.
func UpgradeSQL(c SchemaConfig, from int) (string, error) {
	if err := c.validate(); err != nil {
		return "", fmt.Errorf("schema config: %w", err)
	}
	if from < 1 || from >= SchemaVersion {
		return "", fmt.Errorf("from is %d: it must be an older version of the schema, from 1 to %d", from, SchemaVersion-1)
	}
	return "begin;\n\n" + upgradeSQL(c.withDefaults(), from) + "\ncommit;\n", nil
}

// installSQL is schema.sql and the rows that a new installation starts with. The lanes' first snapshot is taken in the
// transaction that creates the log, so before the first event can commit. The rows are written at top level, never
// under a savepoint: birth.born must equal the row's xmin.
func installSQL(c SchemaConfig) string {
	lanes := c.Lanes
	if lanes == 0 {
		lanes = defaultLanes
	}
	schema := strings.Replace(schemaSQL, lanesBody, fmt.Sprintf("$$ select %d $$", lanes), 1)
	return plainPath(sqlschema.In(c.Schema, withMaxPayload(schema, c)+fmt.Sprintf(`
-- ---------------------------------------------------------------------------------------------------------------------
-- The rows that a new installation starts with, and who may do what.

insert into holdfast.installation (version, lanes, compatible_from) values (%d, %d, %d);
insert into holdfast.birth default values;
insert into holdfast.cluster (system_identifier) select s.system_identifier from pg_control_system() s;
insert into holdfast.incarnation default values;
insert into holdfast.segments default values;
insert into holdfast.lane (lane, done) select n, pg_current_snapshot() from generate_series(0, %d) n;

`, SchemaVersion, lanes, compatibleFrom, lanes-1)+grantsSQL))
}

// plainPath runs a script that finds functions and operators among Postgres' own only: whoever may create in another schema of the
// session's search path could make one that fits a call better, and it would run as whoever runs the script. Afterwards the path is
// what it was, because a tool for migrations writes to tables of its own in the same transaction.
func plainPath(script string) string {
	return `select pg_catalog.set_config('migration.search_path', pg_catalog.current_setting('search_path'), true);
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

` + script + `
select pg_catalog.set_config('search_path', pg_catalog.current_setting('migration.search_path'), true);
`
}

// compatibleFrom is the oldest build that may run on a schema of SchemaVersion, by its own SchemaVersion. Raise it only in a
// migration that removes what older builds use (contract), never in one that adds (expand).
const compatibleFrom = 1

// lanesBody is the body of the function lanes in schema.sql, with the default number.
const lanesBody = "$$ select 8 $$"

// withMaxPayload writes the configured limit into the function max_payload, whose body has the default in schema.sql.
func withMaxPayload(schema string, c SchemaConfig) string {
	if c.MaxPayload == 0 {
		return schema
	}
	return strings.Replace(schema, fmt.Sprintf("$$ select %d $$", defaultMaxPayload), fmt.Sprintf("$$ select %d $$", c.MaxPayload), 1)
}

// grantsSQL revokes everything from everybody but the owner; roles.sql grants to whom what.
// What everybody gets shows nothing that a role may not see anyway: the views require the role's own rights to the tables,
// own_consumers says what the user itself is bound to, which policies ask in its name, and installation has no more than the
// version, by which every part checks at its start that it may run. What is paused, without who and why, is what consumer_hold
// reads: nodes whose roles were made before there was a pause go on after an upgrade.
const grantsSQL = `revoke all on all functions in schema holdfast from public;
grant execute on function holdfast.last_errors(text[]), holdfast.own_consumers() to public;
grant select on holdfast.current_incarnation, holdfast.lane_hold, holdfast.consumer_hold, holdfast.idempotency_keys, holdfast.inbox_events, holdfast.backlog, holdfast.waiting, holdfast.waiting_in_relays, holdfast.waiting_in_consumers, holdfast.waiting_in_schedule, holdfast.installation to public;
grant select (consumer, topic, key) on holdfast.pause to public;
`
