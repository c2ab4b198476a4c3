package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/catalog"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

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
		there, lanes, err := catalog.Installed(ctx, tx, c.Schema)
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
	if version < sqlschema.MinPostgres {
		problems = append(problems, fmt.Errorf("server_version_num is %d: holdfast needs PostgreSQL %d or newer", version, sqlschema.MinPostgres/10000))
	}
	if encoding != "UTF8" {
		problems = append(problems, fmt.Errorf("server_encoding is %s: holdfast needs a database created with encoding UTF8", encoding))
	}
	if standby {
		problems = append(problems, errors.New("the server is a standby: connect to the primary"))
	}
	return errors.Join(problems...)
}

// complete returns an error that names what the schema lacks or has otherwise than schema.sql makes it. It changes settings
// of the transaction, so it comes last.
func complete(ctx context.Context, tx pgx.Tx, schema string, lanes int) error {
	found, err := catalog.Of(ctx, tx, schema, lanes)
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	lacks, differs := catalog.Compare(found)
	var problems []error
	if len(lacks) > 0 {
		problems = append(problems, fmt.Errorf("schema %s lacks %s: an unreleased build made it, or something dropped them after the migration; "+
			"create the schema again, or restore what was dropped from holdfast migrate --print", schema, strings.Join(shorten(lacks), ", ")))
	}
	if len(differs) > 0 {
		problems = append(problems, fmt.Errorf("schema %s is not what version %d is: %s: an unreleased build made it, or something changed it after the migration; "+
			"create the schema again, or change it back to what holdfast migrate --print shows", schema, SchemaVersion, strings.Join(shorten(differs), "; ")))
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
		problems = append(problems, fmt.Errorf("bindings name roles that do not exist, so they have no effect: %s: correct the rows of consumer_binding and producer_binding", strings.Join(shorten(strangers), ", ")))
	}
	return errors.Join(problems...)
}

// shorten keeps an error readable.
func shorten(list []string) []string {
	const most = 20
	if len(list) > most {
		return append(list[:most:most], fmt.Sprintf("and %d more", len(list)-most))
	}
	return list
}
