package holdfast

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

//go:embed roles.sql
var rolesSQL string

// defaultRolePrefix begins the names of the roles if no other prefix is given: holdfast_producer and so on.
const defaultRolePrefix = "holdfast"

var (
	roleName   = regexp.MustCompile(`\bholdfast_(owner|producer|relay|consumer|web|operator|reader)\b`)
	rolePrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,49}$`)
)

// RolesSQL returns the script that creates the roles of an installation and grants each what its part needs: owner, producer,
// relay, consumer, web, operator and reader, none of which can log in. Run it after Migrate, and again after every upgrade. It
// gives the schema's objects to the owner. prefix begins the roles' names, which are those of the whole server; "" means
// "holdfast". docs/operations.md says which role is for whom.
func RolesSQL(c SchemaConfig, prefix string) (string, error) {
	if prefix == "" {
		prefix = defaultRolePrefix
	}
	err := c.validate()
	if !rolePrefix.MatchString(prefix) || strings.HasPrefix(prefix, "pg_") {
		err = fmt.Errorf("prefix is %q: it must match %s and not begin with pg_", prefix, rolePrefix)
	}
	if err != nil {
		return "", fmt.Errorf("roles: %w", err)
	}
	schema := c.withDefaults().Schema
	script := strings.NewReplacer("on schema holdfast ", `on schema "`+schema+`" `, "'holdfast'::regnamespace", "'"+schema+"'::regnamespace").Replace(rolesSQL)
	return roleName.ReplaceAllString(sqlschema.In(schema, script), prefix+"_$1"), nil
}
