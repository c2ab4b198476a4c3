package main

import (
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

type rolesCmd struct {
	Print  bool   `help:"Print the SQL and do nothing. It needs no database."`
	Prefix string `help:"Begins the roles' names, which are those of the whole server." default:"holdfast"`
}

// Help is shown by kong below the list of flags.
func (rolesCmd) Help() string {
	return "Creates the roles PREFIX_owner, _producer, _relay, _consumer, _web, _operator and _reader, grants each what its part needs, and gives the schema to the owner. " +
		"None can log in: grant them to the users of your services. Run it after migrate, and again after every upgrade.\n\nExample:\n\n    holdfast roles --prefix shop"
}

func (c rolesCmd) Run(p *program.Program) error {
	script, err := holdfast.RolesSQL(holdfast.SchemaConfig{Schema: p.Database.Schema}, c.Prefix)
	if err != nil {
		return program.UsageError{Err: err}
	}
	if c.Print {
		_, err := fmt.Fprint(p.Out, script)
		return err
	}
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := pool.Acquire(p.Ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(p.Ctx, script).ReadAll(); err != nil {
		return fmt.Errorf("create the roles: %w", sqlschema.Explain(err, "connect as a superuser, or as the owner of the schema who may create roles"))
	}
	fmt.Fprintf(p.Out, "roles %s_owner, _producer, _relay, _consumer, _web, _operator and _reader have what they need of schema %s\n", c.Prefix, p.Database.Schema)
	return nil
}
