// Package manual is what every change by a person has in common, of dead letters and of events that wait: it is one short guarded
// transaction, it names who made it and why, and its error says what to do.
package manual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/cutoff"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Schema checks the configuration of whatever makes such changes, and returns the name of its schema: all problems in one error.
func Schema(pool *pgxpool.Pool, schema string) (string, error) {
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: it must be connected to the primary"))
	}
	if err := sqlschema.Validate(schema); err != nil {
		problems = append(problems, err)
	}
	return cmp.Or(schema, sqlschema.Default), errors.Join(problems...)
}

// beginGuarded begins every transaction. If this process freezes inside it, or is cut off, Postgres ends it, and neither a letter nor
// a key's queue stays locked. It says READ COMMITTED because the place in the queue is computed by a statement that
// must see everything committed before its lock was granted.
var beginGuarded = "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; set local lock_timeout = '5s'; set local statement_timeout = '30s'; " +
	cutoff.SetLocal(10*time.Second)

// beginLook begins a transaction that only reads, by the filter of a person: each statement is planned for the values that it has.
var beginLook = beginGuarded + "; set transaction read only; set local plan_cache_mode = 'force_custom_plan'"

// Look runs one transaction that only reads, again if another one was in its way: see Transact.
func Look(ctx context.Context, pool plain.Pool, do func(tx pgx.Tx) error) error {
	return transact(ctx, pool, beginLook, do)
}

// Transact runs one transaction, again if another one was in its way: do may be called up to five times, and what it sets outside is
// right only if it is set anew each time.
func Transact(ctx context.Context, pool plain.Pool, do func(tx pgx.Tx) error) error {
	return transact(ctx, pool, beginGuarded, do)
}

func transact(ctx context.Context, pool plain.Pool, begin string, do func(tx pgx.Tx) error) error {
	const tries = 5
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: begin}, do)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "40001") && try < tries {
			continue // A deadlock or serialization failure: nothing was changed, and the other transaction succeeded.
		}
		return err
	}
}

// Rest waits for d, or until ctx is done.
func Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// LockQueue locks the queue of a key in a consumer until the transaction ends. Events without a key are in none.
func LockQueue(ctx context.Context, tx pgx.Tx, schema, consumer, topic, key string) error {
	if key == "" {
		return nil
	}
	if _, err := tx.Exec(ctx, lockQueue, int32(lane.KeyClass), lane.Number(schema, consumer, topic, key)); err != nil {
		return fmt.Errorf("lock the key's queue: %w", err)
	}
	return nil
}

// Signature checks who makes a change, and why.
func Signature(by, reason string) error {
	if strings.TrimSpace(by) == "" {
		return errors.New("by is empty: it must name who does this; it is kept with what was done")
	}
	for _, text := range []struct{ field, value string }{{"by", by}, {"reason", reason}} {
		if len(text.value) > 2000 {
			return fmt.Errorf("%s is %d bytes long: it must be at most 2000", text.field, len(text.value))
		}
		if !utf8.ValidString(text.value) || strings.IndexByte(text.value, 0) >= 0 {
			return fmt.Errorf("%s is %.40q: it must be UTF-8 without NUL", text.field, text.value)
		}
	}
	return nil
}

// Explain adds a remedy to errors that an operator can fix.
func Explain(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "55P03" { // lock_not_available
		return fmt.Errorf("locked by another session for 5 s, try again: %w", err)
	}
	return sqlschema.Explain(err, "docs/operations.md lists what to grant to an operator")
}
