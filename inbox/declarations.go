package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	return dec.declareOn(ctx, dec.pool)
}

// executor is a pool or a connection.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func (dec *declarations) declareOn(ctx context.Context, db executor) error {
	if _, err := db.Exec(ctx, dec.sql.declare, dec.c.Consumer, dec.registry.types, dec.node, declareFor.Microseconds()); err != nil {
		return err
	}
	_, err := db.Exec(ctx, dec.sql.undeclare, dec.c.Consumer)
	return err
}

// declareAnew declares the types on a connection that no handler has used.
func (dec *declarations) declareAnew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	config := dec.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			return err
		}
	}
	return dec.declareOn(ctx, conn)
}

// fit says why this build must not run on the schema.
func (dec *declarations) fit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	return sqlschema.Fits(ctx, dec.pool, dec.c.Schema)
}

// declareLoop declares the types again and again, once the schema fits.
func (dec *declarations) declareLoop(ctx context.Context) error {
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
			fix := miswired(err)
			if errors.Is(fix, sqlschema.ErrNoRights) {
				// A handler may have left a connection of the pool without our rights (set role), and then a new one has them.
				fix = miswired(dec.declareAnew(ctx))
			}
			if fix != nil {
				return fix
			}
			dec.transient(err)
			wait = time.Second
		}
		if pause(ctx, time.Duration((0.75+0.5*dec.random())*float64(wait))) != nil {
			return nil
		}
	}
}
