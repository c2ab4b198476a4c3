package stories

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Promise is one that an example keeps. Exceptions is a query that counts where it did not; SCHEMA in it is that of
// holdfast's tables.
type Promise struct{ Text, Exceptions string }

// Database is one that can be asked: a pool or a transaction.
type Database interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check says of each promise whether it held. Its error names those that did not.
func (s *Story) Check(ctx context.Context, db Database, promises []Promise) error {
	var broken []error
	for _, p := range promises {
		query := strings.ReplaceAll(p.Exceptions, "SCHEMA", pgx.Identifier{s.Schema}.Sanitize())
		var exceptions int
		if err := db.QueryRow(ctx, query).Scan(&exceptions); err != nil {
			return err
		}
		if exceptions == 0 {
			s.Say("    ok      %s", p.Text)
			continue
		}
		s.Say("    BROKEN  %s: %d exceptions", p.Text, exceptions)
		broken = append(broken, Broken("%s: %d exceptions", p.Text, exceptions))
	}
	return errors.Join(broken...)
}

// Broken is the error of a promise that did not hold.
func Broken(format string, args ...any) error {
	return fmt.Errorf("a promise did not hold: "+format, args...)
}
