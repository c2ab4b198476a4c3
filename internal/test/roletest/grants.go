package roletest

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Grants are those of roles.sql, for each of its roles.
var Grants = func() map[string][]string {
	script, err := holdfast.RolesSQL(holdfast.SchemaConfig{}, "")
	if err != nil {
		panic(err)
	}
	all := map[string][]string{"reader": {"pg_read_all_stats"}}
	for _, statement := range regexp.MustCompile(`(?m)^grant ([^;]*) to ([a-z_, ]*);$`).FindAllStringSubmatch(script, -1) {
		for role := range strings.SplitSeq(statement[2], ", ") {
			who := strings.TrimPrefix(role, "holdfast_")
			all[who] = append(all[who], strings.ReplaceAll(statement[1], `"holdfast"`, "holdfast"))
		}
	}
	return all
}()

// As connects with a role that has the grants of who and nothing else.
func As(t testing.TB, db *pgtest.DB, who string) *pgxpool.Pool {
	t.Helper()
	return With(t, db, who, Grants[who])
}

// With connects with a role that has these grants and nothing else.
func With(t testing.TB, db *pgtest.DB, who string, grants []string) *pgxpool.Pool {
	t.Helper()
	role := Granted(t, db, who, grants)
	return db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
}

// Granted makes a role that has these grants and nothing else, and returns its name. It is dropped when the test ends.
func Granted(t testing.TB, db *pgtest.DB, who string, grants []string) string {
	t.Helper()
	role := fmt.Sprintf("%s_%d", who, time.Now().UnixNano())
	pgtest.Exec(t, db.Pool, "create role "+role)
	t.Cleanup(func() {
		db.Exec(context.Background(), "drop owned by "+role)
		db.Exec(context.Background(), "drop role "+role)
	})
	for _, grant := range grants {
		pgtest.Exec(t, db.Pool, "grant "+grant+" to "+role)
	}
	return role
}
