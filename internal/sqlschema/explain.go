package sqlschema

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrMissing is holdfast.ErrSchemaMissing. It is declared here so that every package can wrap it.
var ErrMissing = errors.New("schema is missing")

// lacking is the error of a statement that names a part of the schema that is not there: the schema is older than the build, or
// something dropped the part. It is ErrVersion and ErrMissing.
type lacking struct{ err error }

func (l lacking) Error() string {
	return fmt.Sprintf("%v: it lacks something that this build needs: run holdfast migrate, or call holdfast.Migrate: %v", ErrVersion, l.err)
}
func (l lacking) Unwrap() error        { return l.err }
func (l lacking) Is(target error) bool { return target == ErrVersion || target == ErrMissing }

// ErrNoRights is wrapped by Explain if the database's role may not run a statement.
var ErrNoRights = errors.New("the database role lacks a right")

// Explain adds to an error what an operator has to do about it: install the schema, or grant rights. grant says what to
// grant, or where to find that; a hint of the server, which our functions give, is better. The result wraps ErrMissing, ErrVersion or
// ErrNoRights. Any other error is returned as it is. The error may come from any driver that tells the SQLSTATE as pgx does.
func Explain(err error, grant string) error {
	var failed interface{ SQLState() string }
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.SQLState() {
	case "3F000", "42P01": // invalid_schema_name, undefined_table
		return fmt.Errorf("%w: run holdfast migrate, or call holdfast.Migrate: %w", ErrMissing, err)
	case "42703", "42883": // undefined_column, undefined_function
		return lacking{err}
	case "42501": // insufficient_privilege
		if hint := hintOf(err); hint != "" {
			grant = hint
		}
		return fmt.Errorf("%w: %s: %w", ErrNoRights, grant, err)
	}
	return err
}

// hintOf is the server's hint in an error of pgx or of lib/pq, whose fields have the letters of the protocol.
func hintOf(err error) string {
	var ofPgx *pgconn.PgError
	if errors.As(err, &ofPgx) {
		return ofPgx.Hint
	}
	var ofPq interface{ Get(field byte) string }
	if errors.As(err, &ofPq) {
		return ofPq.Get('H')
	}
	return ""
}
