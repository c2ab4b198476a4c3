package inbox

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
)

// This file tells what no waiting mends: a database that is not made ready for this consumer.

var errNoRights = errors.New("the consumer's role lacks rights")

// miswired is an error of a node's first statement, with what an operator has to do about it; nil where it is the
// database's trouble, which is waited for.
func miswired(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return nil
	}
	switch pgErr.Code {
	case "3F000", "42P01", "42883": // invalid_schema_name, undefined_table, undefined_function
		return fmt.Errorf("%w: run holdfast migrate, or call holdfast.Migrate: %w", holdfast.ErrSchemaMissing, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w: docs/operations.md lists what to grant: %w", errNoRights, err)
	}
	return nil
}
