package holdfast

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// catalogText is what readCatalog reads of a new installation, a line each. A test keeps it up to date.
//
//go:embed migrations/catalog.txt
var catalogText string

// Check says what is missing or changed so that holdfast cannot work in this database, and how to fix it: all problems at
// once. It compares tables, columns, types, collations, constraints, indexes, views and functions with those that Migrate
// makes. What you may tune or add is not compared: storage parameters, how columns are compressed and stored, privileges, further
// tables, indexes and triggers.
// Nil means that Migrate has nothing to do.
//
// A schema that is newer than the build is fine if the build may run on it; then its objects are not compared.
func Check(ctx context.Context, pool *pgxpool.Pool, c SchemaConfig) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("schema config: %w", err)
	}
	c = c.withDefaults()
	var problems []error
	// The transaction is for plainCatalog: it changes settings until the end.
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := checkServer(ctx, tx); err != nil {
			problems = append(problems, err)
		}
		there, lanes, err := installed(ctx, tx, c.Schema)
		if err != nil {
			problems = append(problems, err)
			return nil
		}
		if err := there.Problem(c.Schema); err != nil {
			problems = append(problems, err)
		}
		if c.Lanes != 0 && c.Lanes != lanes {
			problems = append(problems, fmt.Errorf("lanes is %d: it must be 0, or that of schema %s, which was created with %d", c.Lanes, c.Schema, lanes))
		}
		if there.Version == SchemaVersion {
			limit, err := installedMaxPayload(ctx, tx, c.Schema)
			if err != nil {
				return err
			}
			if c.MaxPayload != 0 && c.MaxPayload != limit {
				problems = append(problems, fmt.Errorf("max payload is %d: it must be 0, or that of schema %s, which is %d: run holdfast migrate --max-payload", c.MaxPayload, c.Schema, limit))
			}
			if err := complete(ctx, tx, c.Schema, lanes); err != nil {
				problems = append(problems, err)
				return nil
			}
			if err := bindings(ctx, tx, c.Schema); err != nil {
				problems = append(problems, err)
			}
			if err := misdirected(ctx, tx, c.Schema); err != nil {
				problems = append(problems, err)
			}
		}
		return nil
	})
	if err != nil && len(problems) == 0 { // After an error of a statement it would be that of the commit.
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("check schema %s: %w", c.Schema, err)
	}
	return nil
}

// checkServer refuses servers on which the log cannot keep its promises.
func checkServer(ctx context.Context, tx pgx.Tx) error {
	var version int
	var encoding string
	var standby bool
	if err := tx.QueryRow(ctx, askServer).Scan(&version, &encoding, &standby); err != nil {
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
func installed(ctx context.Context, tx pgx.Tx, schema string) (there sqlschema.Installed, lanes int, err error) {
	if there, err = sqlschema.Read(ctx, tx, schema); err == nil {
		if err = tx.QueryRow(ctx, sqlschema.In(schema, readLanes)).Scan(&lanes); err != nil {
			err = fmt.Errorf("read lanes: %w", err)
		}
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		err = fmt.Errorf("%w: grant usage on schema %s and select on its tables to this role (docs/operations.md)", err, schema)
	}
	return there, lanes, err
}

// complete returns an error that names what the schema lacks or has otherwise than schema.sql makes it. It changes settings
// of the transaction, so it comes last.
func complete(ctx context.Context, tx pgx.Tx, schema string, lanes int) error {
	found, err := catalogOf(ctx, tx, schema, lanes)
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	lacks, differs := compare(parseCatalog(catalogText), found)
	var problems []error
	if len(lacks) > 0 {
		problems = append(problems, fmt.Errorf("schema %s lacks %s: an unreleased build made it, or something dropped them after the migration; "+
			"create a schema anew, or restore what was dropped from holdfast migrate --print", schema, strings.Join(lacks, ", ")))
	}
	if len(differs) > 0 {
		problems = append(problems, fmt.Errorf("schema %s is not what version %d is: %s: an unreleased build made it, or something changed it after the migration; "+
			"create a schema anew, or change it back to what holdfast migrate --print shows", schema, SchemaVersion, strings.Join(differs, "; ")))
	}
	return errors.Join(problems...)
}

// misdirected returns an error if writers do not write to the current segment: relays would never rotate, and the segment that is
// written to would not be emptied while it is busy. A copy of the rows into a new schema can do that, if triggers were off.
func misdirected(ctx context.Context, tx pgx.Tx, schema string) error {
	var readable, wrong bool
	err := tx.QueryRow(ctx, sqlschema.In(schema, mayReadSegments)).Scan(&readable)
	if err == nil && readable {
		err = tx.QueryRow(ctx, sqlschema.In(schema, readMisdirected)).Scan(&wrong)
	}
	if err != nil {
		return fmt.Errorf("read the current segment: %w", err)
	}
	if wrong {
		return errors.New("writers write to another segment than the current one: update segments set current = current, as the schema's owner")
	}
	return nil
}

// bindings returns an error if users are bound so that the bindings do not hold.
func bindings(ctx context.Context, tx pgx.Tx, schema string) error {
	var on, off, strangers []string
	var unchecked bool
	if err := tx.QueryRow(ctx, readRowSecurity, quoted(schema)).Scan(&on, &off); err != nil {
		return fmt.Errorf("read row security: %w", err)
	}
	var readable bool
	if err := tx.QueryRow(ctx, sqlschema.In(schema, mayReadBindings)).Scan(&readable); err != nil {
		return fmt.Errorf("read bindings: %w", err)
	}
	if readable {
		rows, err := tx.Query(ctx, sqlschema.In(schema, readStrangers))
		if err == nil {
			strangers, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err == nil {
			err = tx.QueryRow(ctx, sqlschema.In(schema, readUnchecked)).Scan(&unchecked)
		}
		if err != nil {
			return fmt.Errorf("read bindings: %w", err)
		}
	}
	var problems []error
	if len(on) > 0 && len(off) > 0 {
		problems = append(problems, fmt.Errorf("row security is on for %s and off for %s: a binding of a consumer turns all on: turn those on, or off, as the schema's owner",
			strings.Join(on, ", "), strings.Join(off, ", ")))
	}
	if unchecked {
		problems = append(problems, errors.New("producers are bound, and the function producers_bound says that none is: update a row of producer_binding as the schema's owner"))
	}
	if len(strangers) > 0 {
		problems = append(problems, fmt.Errorf("bindings name roles that do not exist, so they hold for nobody: %s: correct the rows of consumer_binding and producer_binding", strings.Join(shorten(strangers), ", ")))
	}
	return errors.Join(problems...)
}

// catalogOf reads the schema's objects, each in one form for all texts that mean the same to Postgres. It changes settings until the transaction ends.
func catalogOf(ctx context.Context, tx pgx.Tx, schema string, lanes int) ([]object, error) {
	if _, err := tx.Exec(ctx, plainCatalog, quoted(schema)); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, readCatalog, quoted(schema), lanes)
	if err != nil {
		return nil, err
	}
	objects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[object])
	for i := range objects {
		objects[i].Is = ungrouped(objects[i].Is)
	}
	return objects, err
}

// SchemaHashes identify a schema by its tables, columns, types, constraints, indexes, views and functions, as Check compares them:
// installed is what is there, and built what this build makes. They are equal for every schema name, number of lanes and limit of
// payloads, and change with any drift. Check says what differs. The error wraps ErrSchemaMissing if there is no schema.
func SchemaHashes(ctx context.Context, pool *pgxpool.Pool, c SchemaConfig) (installedHash, builtHash string, err error) {
	if err := c.validate(); err != nil {
		return "", "", fmt.Errorf("schema config: %w", err)
	}
	c = c.withDefaults()
	wanted := parseCatalog(catalogText)
	var found []object
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, lanes, err := installed(ctx, tx, c.Schema)
		if err == nil {
			found, err = catalogOf(ctx, tx, c.Schema, lanes)
		}
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("hash schema %s: %w", c.Schema, err)
	}
	return hashOf(found, wanted), hashOf(wanted, wanted), nil
}

// hashOf is the hash of the objects that compare looks at: those that are wanted, and columns and constraints of wanted tables.
func hashOf(objects, wanted []object) string {
	known := map[string]bool{}
	for _, o := range wanted {
		known[o.Name] = true
	}
	hash := sha256.New()
	for _, o := range objects {
		m := part.FindStringSubmatch(o.Name)
		if tunable.MatchString(o.Name) || !known[o.Name] && (m == nil || !known["table "+m[1]] && !known["view "+m[1]]) {
			continue
		}
		fmt.Fprintf(hash, "%s: %s\n", o.Name, o.Is)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// object is one of the schema's objects.
type object struct {
	Name string // "column inbox.topic"
	Is   string // "text collate "C" not null"
}

func parseCatalog(text string) []object {
	var all []object
	for line := range strings.Lines(text) {
		name, is, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		all = append(all, object{name, is})
	}
	return all
}

var (
	// tunable are objects that a database's owner may change: storage parameters and replica identities, and what every
	// role may do.
	tunable = regexp.MustCompile(`^(storage|public to) `)

	// part and indexed name the table of an object: in its name, or for an index in what it is. A part that someone added
	// can make our statements fail.
	part    = regexp.MustCompile(`^(?:column|constraint) (\w+)\.`)
	indexed = regexp.MustCompile(`^on (\w+)`)
)

// compare says what of the wanted objects is not there, and what is otherwise. Parts of a missing table are not listed.
func compare(wanted, found []object) (lacks, differs []string) {
	is, known := map[string]string{}, map[string]bool{}
	for _, o := range found {
		is[o.Name] = o.Is
	}
	missing := map[string]bool{}
	for _, o := range wanted {
		known[o.Name] = true
		kind, name, _ := strings.Cut(o.Name, " ")
		if _, there := is[o.Name]; !there && (kind == "table" || kind == "view") {
			missing[name] = true
		}
	}
	for _, o := range wanted {
		if m := part.FindStringSubmatch(o.Name); m != nil && missing[m[1]] {
			continue
		}
		if m := indexed.FindStringSubmatch(o.Is); m != nil && missing[m[1]] {
			continue
		}
		got, there := is[o.Name]
		switch {
		case tunable.MatchString(o.Name):
		case !there:
			lacks = append(lacks, o.Name)
		case got != o.Is:
			differs = append(differs, fmt.Sprintf("%s is %q, it must be %q", o.Name, got, o.Is))
		}
	}
	for _, o := range found {
		if m := part.FindStringSubmatch(o.Name); m != nil && !known[o.Name] && (known["table "+m[1]] || known["view "+m[1]]) {
			differs = append(differs, fmt.Sprintf("%s is %q, it must not be there", o.Name, o.Is))
		}
	}
	return shorten(lacks), shorten(differs)
}

// shorten keeps an error readable.
func shorten(list []string) []string {
	const most = 20
	if len(list) > most {
		return append(list[:most:most], fmt.Sprintf("and %d more", len(list)-most))
	}
	return list
}
