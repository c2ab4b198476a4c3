package holdfast

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

//go:embed schema.sql
var schemaSQL string

// SchemaSQL returns schema.sql: the whole schema with its commentary, written for the schema name "holdfast".
func SchemaSQL() string { return schemaSQL }

// SchemaVersion is the version of the schema that this build works with.
const SchemaVersion = 1

// MinPostgres is the oldest PostgreSQL that holdfast works with, as server_version_num.
const MinPostgres = 150000

// defaultLanes is how many lanes a new schema gets when SchemaConfig.Lanes is zero.
const defaultLanes = 8

// ErrSchemaMissing is returned by Check, and by the parts when they start, where the schema is not there at all.
var ErrSchemaMissing = sqlschema.ErrMissing

// SchemaConfig says which schema holds holdfast's tables.
type SchemaConfig struct {
	// Schema is the name of the Postgres schema. It must match ^[a-z_][a-z0-9_]{0,62}$. Defaults to "holdfast".
	Schema string

	// Lanes is the number of lanes that keys hash into; at most this many relays share the work. It is fixed when the
	// schema is created; between 1 and 256. Defaults to 8, or to what is installed.
	Lanes int
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
	return errors.Join(problems...)
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
	return sqlschema.In(c.Schema, schema+fmt.Sprintf(`
-- ---------------------------------------------------------------------------------------------------------------------
-- The rows that a new installation starts with, and who may do what.

insert into holdfast.installation (version, lanes) values (%d, %d);
insert into holdfast.birth default values;
insert into holdfast.cluster (system_identifier) select s.system_identifier from pg_control_system() s;
insert into holdfast.incarnation default values;
insert into holdfast.segments default values;
insert into holdfast.lane (lane, done) select n, pg_current_snapshot() from generate_series(0, %d) n;

`, SchemaVersion, lanes, lanes-1)+grantsSQL)
}

// lanesBody is the body of the function lanes in schema.sql, with the default number.
const lanesBody = "$$ select 8 $$"

// grantsSQL revokes everything from everybody but the owner; docs/operations.md lists what to grant to whom.
// What everybody gets shows nothing that a role may not see anyway: the views require the role's own rights to the tables.
const grantsSQL = `revoke all on all functions in schema holdfast from public;
grant execute on function holdfast.last_errors(text[]) to public;
grant select on holdfast.current_incarnation, holdfast.lane_hold, holdfast.consumer_hold to public;
`

// SQL returns the script that creates the schema in one transaction: what Migrate runs on an empty database. Use it if you
// run your migrations by other means.
func SQL(c SchemaConfig) (string, error) {
	if err := c.validate(); err != nil {
		return "", fmt.Errorf("schema config: %w", err)
	}
	return "begin;\n\n" + installSQL(c.withDefaults()) + "\ncommit;\n", nil
}

// Migrate creates the schema, or upgrades it to SchemaVersion, in one transaction. It may be called from many nodes at
// once: one does the work, the others wait for it. A schema that is up to date is left alone. It needs the right to
// create the schema, or to create objects in it when it is there.
func Migrate(ctx context.Context, pool *pgxpool.Pool, c SchemaConfig) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("schema config: %w", err)
	}
	c = c.withDefaults()
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: "begin isolation level read committed"}, func(tx pgx.Tx) error {
		// A lock of the transaction, not of the session: it works through a pooler and ends with a crash.
		if _, err := tx.Exec(ctx, "-- holdfast.migrate_lock\nselect pg_advisory_xact_lock(1751541606, hashtext('migrate ' || $1::text))", c.Schema); err != nil {
			return fmt.Errorf("wait for other migrations: %w", err)
		}
		if err := checkServer(ctx, tx); err != nil {
			return err
		}
		version, lanes, err := installed(ctx, tx, c.Schema)
		switch {
		case errors.Is(err, ErrSchemaMissing):
			return install(ctx, tx, c)
		case err != nil:
			return err
		case version > SchemaVersion:
			return fmt.Errorf("schema %s is at version %d, this build knows %d: use a newer build", c.Schema, version, SchemaVersion)
		case c.Lanes != 0 && c.Lanes != lanes:
			return fmt.Errorf("lanes is %d: it must be 0, or that of schema %s, which was created with %d: lanes are fixed for life", c.Lanes, c.Schema, lanes)
		}
		// Version 1 is the first: there is nothing to upgrade from yet.
		return complete(ctx, tx, c.Schema)
	})
	if err != nil {
		return fmt.Errorf("migrate schema %s: %w", c.Schema, err)
	}
	return nil
}

func install(ctx context.Context, tx pgx.Tx, c SchemaConfig) error {
	script := installSQL(c)
	var exists bool
	if err := tx.QueryRow(ctx, "-- holdfast.schema_exists\nselect to_regnamespace($1::text) is not null", `"`+c.Schema+`"`).Scan(&exists); err != nil {
		return fmt.Errorf("look for schema: %w", err)
	}
	if exists {
		// `create schema if not exists` asks for a right on the database even when the schema is there.
		script = strings.Replace(script, `create schema if not exists "`+c.Schema+`";`, "", 1)
	}
	if err := tx.Conn().PgConn().Exec(ctx, script).Close(); err != nil {
		return fmt.Errorf("create schema: %w", err)
	}
	return nil
}

// Check says what is missing for holdfast to work in this database, and how to fix it: all problems at once. Nil means
// that Migrate has nothing to do.
func Check(ctx context.Context, pool *pgxpool.Pool, c SchemaConfig) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("schema config: %w", err)
	}
	c = c.withDefaults()
	var problems []error
	if err := checkServer(ctx, pool); err != nil {
		problems = append(problems, err)
	}
	version, lanes, err := installed(ctx, pool, c.Schema)
	switch {
	case err != nil:
		problems = append(problems, err)
	default:
		if version < SchemaVersion {
			problems = append(problems, fmt.Errorf("schema %s is at version %d, this build needs %d: run holdfast migrate", c.Schema, version, SchemaVersion))
		}
		if version > SchemaVersion {
			problems = append(problems, fmt.Errorf("schema %s is at version %d, this build knows %d: use a newer build", c.Schema, version, SchemaVersion))
		}
		if c.Lanes != 0 && c.Lanes != lanes {
			problems = append(problems, fmt.Errorf("lanes is %d: it must be 0, or that of schema %s, which was created with %d", c.Lanes, c.Schema, lanes))
		}
		if err := complete(ctx, pool, c.Schema); err != nil {
			problems = append(problems, err)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("check schema %s: %w", c.Schema, err)
	}
	return nil
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// checkServer refuses servers on which the log cannot keep its promises.
func checkServer(ctx context.Context, db querier) error {
	var version int
	var encoding string
	var standby bool
	err := db.QueryRow(ctx, "-- holdfast.server\nselect current_setting('server_version_num')::int, current_setting('server_encoding'), pg_is_in_recovery()").
		Scan(&version, &encoding, &standby)
	if err != nil {
		return fmt.Errorf("ask the server: %w", err)
	}
	var problems []error
	if version < MinPostgres {
		problems = append(problems, fmt.Errorf("server_version_num is %d: holdfast needs PostgreSQL %d or newer", version, MinPostgres/10000))
	}
	if encoding != "UTF8" {
		problems = append(problems, fmt.Errorf("server_encoding is %s: holdfast needs a database created with encoding UTF8", encoding))
	}
	if standby {
		problems = append(problems, errors.New("the server is a standby: connect to the primary"))
	}
	return errors.Join(problems...)
}

// installed reads what Migrate made. The error wraps ErrSchemaMissing when it made nothing.
func installed(ctx context.Context, db querier, schema string) (version, lanes int, err error) {
	var there bool
	err = db.QueryRow(ctx, "-- holdfast.installed\nselect to_regclass($1::text) is not null", `"`+schema+`".installation`).Scan(&there)
	if err != nil {
		return 0, 0, fmt.Errorf("look for schema: %w", err)
	}
	if !there {
		return 0, 0, fmt.Errorf("%w: there is no %s.installation in this database: run holdfast migrate, or call holdfast.Migrate", ErrSchemaMissing, schema)
	}
	err = db.QueryRow(ctx, sqlschema.In(schema, "-- holdfast.version\nselect version, lanes from holdfast.installation")).Scan(&version, &lanes)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		return 0, 0, fmt.Errorf("read version: %s: grant usage on schema %s and select on its tables to this role (docs/operations.md): %w", pgErr.Message, schema, err)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read version: %w", err)
	}
	return version, lanes, nil
}

// complete returns an error that names what schema.sql creates and the schema lacks.
func complete(ctx context.Context, db querier, schema string) error {
	missing, err := missingObjects(ctx, db, schema)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("schema %s lacks %s: a build before the first release made it, or something dropped them after the migration; "+
			"create a schema anew, or restore what was dropped from holdfast migrate --print", schema, strings.Join(missing, ", "))
	}
	return err
}

var definitions = regexp.MustCompile(`(?m)^create (?:unlogged )?(?:unique )?(table|view|sequence|index|function) (?:holdfast\.)?(\w+)`)

// missingObjects compares the catalog with what schema.sql creates, by name.
func missingObjects(ctx context.Context, db querier, schema string) ([]string, error) {
	rows, err := db.Query(ctx, `-- holdfast.objects
select c.relname from pg_class c where c.relnamespace = to_regnamespace($1)
union all select p.proname || '()' from pg_proc p where p.pronamespace = to_regnamespace($1)`, `"`+schema+`"`)
	if err != nil {
		return nil, fmt.Errorf("list objects: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list objects: %w", err)
	}
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[name] = true
	}
	var missing []string
	for _, d := range definitions.FindAllStringSubmatch(schemaSQL, -1) {
		kind, name := d[1], d[2]
		if kind == "function" {
			name += "()"
		}
		if !there[name] {
			missing = append(missing, kind+" "+name)
		}
	}
	return missing, nil
}
