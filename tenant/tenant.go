package tenant

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/rights"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Config configures a Tenants. The zero Config works.
type Config struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string

	// Header is the name of the header that says whose an event is. Defaults to "tenant".
	Header string

	// Separator ends the tenant's name at the beginning of a key, a source, an event id of the inbox or a watermark's entity. At
	// most 16 bytes. Defaults to "/".
	Separator string
}

// Tenants exports and erases by tenant. Many goroutines may use it at once.
//
// Its database role must own the schema, or have all rights to its tables: no role of roles.sql may read payloads of the log.
type Tenants struct {
	pool    plain.Pool
	c       Config
	sql     *sqlschema.Statements
	letters *dlq.DLQ
}

// New returns a Tenants. The error lists every problem of the configuration. New does not use the database.
func New(pool *pgxpool.Pool, c Config) (*Tenants, error) {
	if c.Schema == "" {
		c.Schema = sqlschema.Default
	}
	if c.Header == "" {
		c.Header = "tenant"
	}
	if c.Separator == "" {
		c.Separator = "/"
	}
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: it must be connected to the primary"))
	}
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if err := checkText("header", c.Header, 255); err != nil {
		problems = append(problems, err)
	}
	if err := checkText("separator", c.Separator, 16); err != nil {
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("tenant config: %w", err)
	}
	letters, err := dlq.New(pool, dlq.Config{Schema: c.Schema})
	if err != nil {
		return nil, fmt.Errorf("tenant config: %w", err)
	}
	return &Tenants{pool: plain.Of(pool), c: c, sql: sqlschema.For(c.Schema), letters: letters}, nil
}

// Place is a table, and what it has of a tenant.
type Place struct {
	Name string // the table's

	// Found is how many rows were found. An event whose payload, headers and errors are erased is not counted by Erase, and is by
	// Export.
	Found int64

	// Erased is how many rows were emptied or deleted.
	Erased int64

	// Remains is how many rows are left with something to erase, and Why says what keeps them.
	Remains int64
	Why     string

	// Unattributed is how many rows have something, and do not say whose they are.
	Unattributed int64
}

// Report is what was done for a tenant.
type Report struct {
	Tenant string
	DryRun bool    // nothing was changed
	Places []Place // every table that may have something of a tenant, in the order of an event's way

	// Beyond is what no statement of holdfast reaches, a sentence each.
	Beyond []string
}

// Remains is how many rows are left with something to erase.
func (r Report) Remains() (rows int64) {
	for _, p := range r.Places {
		rows += p.Remains
	}
	return rows
}

// who are the arguments that every statement has: $1 to $4.
func (t *Tenants) who(name string) []any {
	return []any{name, t.c.Separator, t.c.Header, "tenant:" + url.QueryEscape(name) + "/"}
}

func (t *Tenants) checkName(name string) error {
	if err := checkText("tenant", name, 255); err != nil {
		return err
	}
	if strings.Contains(name, t.c.Separator) {
		return fmt.Errorf("tenant is %q: it must not contain the separator %q", name, t.c.Separator)
	}
	return nil
}

func checkText(field, value string, most int) error {
	switch {
	case value == "" || len(value) > most:
		return fmt.Errorf("%s has %d bytes: it must have 1 to %d", field, len(value), most)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("%s is %.60q: it must not contain NUL", field, value)
	}
	return nil
}

// mayWork says what keeps the session from seeing and changing all that there is of a tenant.
func (t *Tenants) mayWork(ctx context.Context, needs []rights.Right) error {
	lack, err := rights.Lack(ctx, t.pool, t.c.Schema, needs)
	if err != nil {
		return explain(err)
	}
	if len(lack) > 0 {
		return fmt.Errorf("%w: connect as the owner of schema %s (set role holdfast_owner): missing are %s", sqlschema.ErrNoRights, t.c.Schema, strings.Join(lack, ", "))
	}
	user, err := rights.UserOf(ctx, t.pool, t.c.Schema)
	if err != nil {
		return explain(err)
	}
	if user.Bound {
		return fmt.Errorf("%w: user %s is bound to consumers and sees the rows of no others: connect as the owner of schema %s", sqlschema.ErrNoRights, user.Name, t.c.Schema)
	}
	return nil
}

func explain(err error) error {
	return sqlschema.Explain(err, "connect as the owner of the schema")
}
