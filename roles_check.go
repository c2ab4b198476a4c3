package holdfast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/rights"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// CheckRights says what the pool's database user lacks for a part: "producer", "relay", "consumer", "web", "operator" or
// "reader", those of RolesSQL. The error names every missing right, and what to do. Call Check first.
//
// The warnings are about what nothing is refused for: a superuser or a member of the schema's owner, whom neither grants nor
// bindings stop; a role that row security does not hold for; a user who is bound to no consumer while others are. The part ""
// asks for no right and warns of a superuser only.
func CheckRights(ctx context.Context, pool *pgxpool.Pool, c SchemaConfig, part string) (warnings []string, err error) {
	err = c.validate()
	c = c.withDefaults()
	needs, known := rights.Of[part]
	if !known && part != "" {
		err = errors.Join(err, fmt.Errorf("part is %q: it must be one of %s", part, strings.Join(slices.Sorted(maps.Keys(rights.Of)), ", ")))
	}
	if err != nil {
		return nil, fmt.Errorf("check rights: %w", err)
	}
	var user rights.User
	var lack []string
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if lack, err = rights.Lack(ctx, tx, c.Schema, needs); err != nil || slices.Contains(lack, "usage on schema "+c.Schema) {
			return err
		}
		user, err = rights.UserOf(ctx, tx, c.Schema)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("check rights in schema %s: %w", c.Schema, sqlschema.Explain(err, "docs/operations.md says which roles there are"))
	}
	var problems []error
	if len(lack) > 0 {
		problems = append(problems, fmt.Errorf("%w: to be a %s it lacks %s: grant it %s_%[2]s, and run holdfast roles again after an upgrade (docs/operations.md)",
			sqlschema.ErrNoRights, part, strings.Join(lack, ", "), defaultRolePrefix))
	}
	if user.Bound && !user.RowSecurity {
		problems = append(problems, fmt.Errorf("user %s is bound to consumers, but row security is off: update a row of consumer_binding as the schema's owner, which turns it on", user.Name))
	}
	if err := errors.Join(problems...); err != nil {
		return warn(user, part), fmt.Errorf("check rights in schema %s: %w", c.Schema, err)
	}
	return warn(user, part), nil
}

// warn says what a user may do beyond its part.
func warn(u rights.User, part string) (warnings []string) {
	switch {
	case u.Superuser:
		return []string{fmt.Sprintf("user %s is a superuser: no grant, no binding and no row security stops it, nor code that it runs: let services log in as users with the roles of holdfast roles", u.Name)}
	case part == "":
		return nil
	case u.Owner != "":
		return []string{fmt.Sprintf("user %s is a member of %s, which owns the schema: it may do everything there, and no binding holds for it", u.Name, u.Owner)}
	}
	if u.BypassRLS && u.RowSecurity {
		warnings = append(warnings, fmt.Sprintf("user %s has a role with bypassrls: it sees and changes the rows of all consumers", u.Name))
	}
	if part == "consumer" && u.RowSecurity && !u.Bound {
		warnings = append(warnings, fmt.Sprintf("user %s is bound to no consumer, while others are: it sees and changes the rows of all consumers (table consumer_binding)", u.Name))
	}
	return warnings
}
