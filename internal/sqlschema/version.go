package sqlschema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Version is holdfast.SchemaVersion: the version of schema.sql. It is declared here so that every package can compare it.
const Version = 2

// MinPostgres is the oldest PostgreSQL that holdfast works with, as server_version_num.
const MinPostgres = 150000

// ErrVersion is holdfast.ErrSchemaVersion. It is declared here so that every package can wrap it.
var ErrVersion = errors.New("the schema does not fit this build")

// Installed is what a database says about its schema.
type Installed struct {
	Version int

	// CompatibleFrom is the oldest build that may run on the schema, by the version of the schema that it was made for.
	CompatibleFrom int
}

// Problem says why a build of Version must not run on the schema, and what to do. It is nil if the build may run.
func (i Installed) Problem(schema string) error {
	switch {
	case i.Version < Version:
		return fmt.Errorf("%w: schema %s is at version %d, this build needs %d: run holdfast migrate", ErrVersion, schema, i.Version, Version)
	case i.CompatibleFrom > Version:
		return fmt.Errorf("%w: schema %s is at version %d, for builds that know version %d or a newer one; this build knows %d: use a newer build",
			ErrVersion, schema, i.Version, i.CompatibleFrom, Version)
	}
	return nil
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Read reads what is installed. The error wraps ErrMissing if that is nothing. No statement of it fails for an older
// schema, so it may be called in a transaction.
func Read(ctx context.Context, db querier, schema string) (Installed, error) {
	if schema == "" {
		schema = Default
	}
	var there, compatible bool
	if err := db.QueryRow(ctx, findVersion, `"`+schema+`".installation`).Scan(&there, &compatible); err != nil {
		return Installed{}, fmt.Errorf("look for schema: %w", err)
	}
	switch {
	case !there:
		return Installed{}, fmt.Errorf("%w: there is no %s.installation in this database: run holdfast migrate, or call holdfast.Migrate", ErrMissing, schema)
	case !compatible:
		return Installed{Version: 1, CompatibleFrom: 1}, nil
	}
	var i Installed
	if err := db.QueryRow(ctx, In(schema, readVersion)).Scan(&i.Version, &i.CompatibleFrom); err != nil {
		return Installed{}, fmt.Errorf("read version: %w", err)
	}
	return i, nil
}

// Fits returns nil if this build may run on the schema. Otherwise the error wraps ErrMissing or ErrVersion and says what to
// do, or it is the database's.
func Fits(ctx context.Context, db querier, schema string) error {
	i, err := Read(ctx, db, schema)
	if err != nil {
		return err
	}
	if schema == "" {
		schema = Default
	}
	return i.Problem(schema)
}
