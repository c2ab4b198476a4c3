package inbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// This file tells the other nodes which types this node handles, and asks which types they handle.

type rowsQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// declared returns those of the types that a node of the consumer handles: one that runs, or ran within believeFor.
func (dec *declarations) declared(ctx context.Context, db rowsQuerier, types []string) (map[string]bool, error) {
	rows, err := db.Query(ctx, dec.sql.declared, dec.c.Consumer, types, believeFor.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("look for declared types: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for declared types: %w", err)
	}
	declared := make(map[string]bool, len(names))
	for _, name := range names {
		declared[name] = true
	}
	return declared, nil
}

// declarations are the types that nodes say they handle.
type declarations struct {
	*env
	registry *registry
}

// declare tells the other nodes which types this node handles.
func (dec *declarations) declare(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// A stop gives a statement that writes a second more: the server might carry it out after the node has said that it stops.
	stopping := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.Patience)
	defer cancel()
	defer context.AfterFunc(stopping, func() { time.AfterFunc(time.Second, cancel) })()
	if _, err := dec.pool.Exec(ctx, dec.sql.declare, dec.c.Consumer, dec.registry.types, dec.node, declareFor.Microseconds(), dec.needs()); err != nil {
		return err
	}
	_, err := dec.pool.Exec(ctx, dec.sql.undeclare, dec.c.Consumer)
	return err
}

// needs is what each type needs, as Postgres writes an array. Names need no quotes (checkNeed).
func (dec *declarations) needs() []string {
	arrays := make([]string, len(dec.registry.types))
	for i, t := range dec.registry.types {
		arrays[i] = "{" + strings.Join(dec.kinds[t].needs, ",") + "}"
	}
	return arrays
}

// fit says why this build must not run on the schema.
func (dec *declarations) fit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	return sqlschema.Fits(ctx, dec.pool, dec.c.Schema)
}

// stop tells people that this node stops. A database that does not answer at once need not know: after a while nothing was heard of the node.
func (dec *declarations) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = dec.pool.Exec(ctx, dec.sql.stop, dec.c.Consumer, dec.node)
}

// declareLoop declares the types again and again, once the schema fits.
func (dec *declarations) declareLoop(ctx context.Context) error {
	told := false
	defer func() {
		if told {
			dec.stop(ctx)
		}
	}()
	for fits := false; ; {
		wait := declareEvery
		var err error
		if !fits {
			err = dec.fit(ctx)
			fits = err == nil
		}
		if fits {
			err = dec.declare(ctx)
		}
		if err != nil && ctx.Err() == nil {
			if fix := dec.miswired(ctx, err); fix != nil {
				return fix
			}
			dec.transient(err)
			wait = time.Second
		}
		if err == nil || ctx.Err() == nil {
			told = err == nil // a database that is away would only delay the stop
		}
		if err == nil {
			dec.vitals.reached()
		}
		if loop.Sleep(ctx, time.Duration((0.75+0.5*dec.random())*float64(wait))) != nil {
			return nil
		}
	}
}
