// Package catalog says of what objects a schema consists: as a new installation has them, and as a database has them.
package catalog

import (
	"cmp"
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

// Text is what readCatalog reads of a new installation, a line each. A test keeps it up to date.
//
//go:embed catalog.txt
var Text string

// Object is one of the schema's objects.
type Object struct {
	Name string // "column inbox.topic"
	Is   string // "text collate "C" not null"
}

// wanted are the objects of a new installation.
func wanted() []Object {
	var all []Object
	for line := range strings.Lines(Text) {
		name, is, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		all = append(all, Object{name, is})
	}
	return all
}

// Installed reads what holdfast.Migrate made. The error wraps sqlschema.ErrMissing when it made nothing.
func Installed(ctx context.Context, tx pgx.Tx, schema string) (there sqlschema.Installed, lanes int, err error) {
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

// Of reads the schema's objects, each in one form for all texts that mean the same to Postgres. It changes settings until the transaction ends.
func Of(ctx context.Context, tx pgx.Tx, schema string, lanes int) ([]Object, error) {
	quoted := `"` + schema + `"`
	if _, err := tx.Exec(ctx, plainCatalog, quoted); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, readCatalog, quoted, lanes)
	if err != nil {
		return nil, err
	}
	objects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Object])
	for i := range objects {
		objects[i].Is = ungrouped(objects[i].Is)
	}
	return objects, err
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

// Compare says what of a new installation is not among the objects, and what is otherwise. Parts of a missing table are not listed.
func Compare(found []Object) (lacks, differs []string) {
	wanted := wanted()
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
	return lacks, differs
}

// Hashes identify a schema by its tables, columns, types, constraints, indexes, views and functions, as holdfast.Check compares them:
// there is what is there, and built what this build makes. They are equal for every schema name, number of lanes and limit of payloads,
// and change with any drift. holdfast.Check says what differs. The error wraps sqlschema.ErrMissing if there is no schema.
func Hashes(ctx context.Context, pool *pgxpool.Pool, schema string) (there, built string, err error) {
	if err := sqlschema.Validate(schema); err != nil {
		return "", "", err
	}
	schema = cmp.Or(schema, sqlschema.Default)
	var found []Object
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, lanes, err := Installed(ctx, tx, schema)
		if err == nil {
			found, err = Of(ctx, tx, schema, lanes)
		}
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("hash schema %s: %w", schema, err)
	}
	wanted := wanted()
	return hashOf(found, wanted), hashOf(wanted, wanted), nil
}

// hashOf is the hash of the objects that Compare looks at: those that are wanted, and columns and constraints of wanted tables.
func hashOf(objects, wanted []Object) string {
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
