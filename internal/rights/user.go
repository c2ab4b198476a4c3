package rights

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// User is the database user of a session, beside its grants.
type User struct {
	Name        string // as it logged in
	Superuser   bool
	Owner       string   // the schema's owner, if the user is a member of it
	BypassRLS   bool     // the current role sees all rows, whatever policies say
	RowSecurity bool     // somebody is bound to a consumer
	Bound       bool     // this user is
	Consumers   []string // to which; "" stands for relays
}

// Whether row security is on shows the table letter, because the first binding turns it on for all tables together.
const userSQL = `-- rights.user
select s.rolname::text, s.rolsuper, coalesce((select o.rolname::text from pg_roles o where o.oid = n.nspowner and pg_has_role(s.oid, o.oid, 'member')), ''),
       (select c.rolbypassrls or c.rolsuper from pg_roles c where c.rolname = current_user), coalesce(l.relrowsecurity, false),
       holdfast.own_consumers() is not null, coalesce(holdfast.own_consumers(), '{}')
  from pg_roles s
  join pg_namespace n on n.nspname = $1::text
  left join pg_class l on l.relnamespace = n.oid and l.relname = 'letter'
 where s.rolname = session_user`

// UserOf reads who a session is. It needs usage of the schema and nothing else.
func UserOf(ctx context.Context, db Querier, schema string) (u User, err error) {
	rows, err := db.Query(ctx, sqlschema.In(schema, userSQL), schema)
	if err == nil {
		u, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[User])
	}
	if err != nil {
		return u, fmt.Errorf("look whom the database's user is bound to: %w", err)
	}
	return u, nil
}

// lacksConsumer says what a user lacks who is bound to other consumers than this one, "" if nothing.
func (u User) lacksConsumer(consumer string) string {
	if !u.Bound || slices.Contains(u.Consumers, consumer) {
		return ""
	}
	bound := slices.DeleteFunc(slices.Clone(u.Consumers), func(c string) bool { return c == "" })
	return fmt.Sprintf("a row of consumer_binding for consumer %s (user %s is bound to %s)", consumer, u.Name, strings.Join(bound, ", "))
}
