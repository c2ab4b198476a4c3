package dlq

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/manual"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// address identifies the queue of a letter's key.
type address struct{ origin, consumer, topic, key string }

// address reads the address of a letter.
func (d *DLQ) address(ctx context.Context, id int64) (a address, err error) {
	err = d.pool.QueryRow(ctx, d.sql.address, id).Scan(&a.origin, &a.consumer, &a.topic, &a.key)
	if errors.Is(err, pgx.ErrNoRows) {
		return a, notFound(id)
	}
	if err != nil {
		return a, fmt.Errorf("read letter %d: %w", id, manual.Explain(err))
	}
	return a, nil
}

// change runs one transaction on one letter. It locks the queue of the letter's key, then the letter itself, in the
// same order as everywhere. do gets the letter's current state.
func (d *DLQ) change(ctx context.Context, id int64, a address, do func(tx pgx.Tx, state string) error) error {
	err := manual.Transact(ctx, d.pool, func(tx pgx.Tx) error {
		if a.origin == OriginInbox {
			if err := manual.LockQueue(ctx, tx, d.schema, a.consumer, a.topic, a.key); err != nil {
				return err
			}
		}
		var state string
		if err := tx.QueryRow(ctx, d.sql.take, id).Scan(&state); errors.Is(err, pgx.ErrNoRows) {
			return ErrNotFound
		} else if err != nil {
			return fmt.Errorf("lock the letter: %w", err)
		}
		if err := do(tx, state); err != nil {
			return err
		}
		failpoint.Hit(failpoint.DLQChanging)
		return nil
	})
	if err != nil {
		return fmt.Errorf("letter %d: %w", id, manual.Explain(err))
	}
	failpoint.Hit(failpoint.DLQChanged)
	return nil
}

// run makes changes in one round trip. A statement that touches no row is an error, unless its step allows it.
func run(ctx context.Context, tx pgx.Tx, steps ...step) error {
	batch := &pgx.Batch{}
	for _, s := range steps {
		batch.Queue(s.sql, s.args...)
	}
	results := tx.SendBatch(ctx, batch)
	for _, s := range steps {
		tag, err := results.Exec()
		if err == nil && s.none != nil && tag.RowsAffected() == 0 {
			err = s.none
		}
		if err != nil {
			_ = results.Close()
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return results.Close()
}

// step is one statement of a change.
type step struct {
	what string
	sql  string
	args []any
	none error // the error if the statement touches no row; nil if that is fine
}

var errGone = errors.New("the row no longer exists")

// Edit replaces the payload of an open letter; nil makes it a tombstone. The letter's version increases by one, and the
// previous payload is kept with the action (Actions). The letter stays open: Replay sends the new payload.
//
// A letter of the relay gets a new event id, because consumers may have seen the old one. A letter of an inbox keeps
// its id, and its inbox row takes the new payload's hash. A payload that the letter has, or has had before, has the hash that it had: recorded steps of its
// handler (inbox.Step) still count. by is required; both by and reason are kept.
//
// The error wraps ErrNotFound, ErrNotOpen if the letter is in another state, or ErrEncrypted if the letter's payload is encrypted: a
// new one would be in the clear, and no consumer could read it. It can be made a tombstone.
func (d *DLQ) Edit(ctx context.Context, id int64, payload []byte, by, reason string) error {
	if err := manual.Signature(by, reason); err != nil {
		return fmt.Errorf("edit letter %d: %w", id, err)
	}
	a, err := d.address(ctx, id)
	if err != nil {
		return fmt.Errorf("edit %w", err)
	}
	if payload != nil {
		if err := d.inTheClear(ctx, id); err != nil {
			return fmt.Errorf("edit %w", err)
		}
	}
	sum := sha256.Sum256(payload)
	err = d.change(ctx, id, a, func(tx pgx.Tx, state string) error {
		if state == StateReplaying {
			return fmt.Errorf("%w: it is being replayed: edit it if that fails", ErrNotOpen)
		}
		if state != StateOpen {
			return fmt.Errorf("%w: it is %s", ErrNotOpen, state)
		}
		steps, hash := []step{{"keep the payload", d.sql.keepVersion, []any{id, by, reason}, errGone}}, sum[:]
		if a.origin == OriginInbox {
			if err := tx.QueryRow(ctx, d.sql.editHash, id, payload, sum[:]).Scan(&hash); err != nil {
				return fmt.Errorf("look whether it had the payload before: %w", err)
			}
			steps = append(steps, step{
				what: "change the inbox row",
				sql:  d.sql.editResult,
				args: []any{id, hash},
			})
		}
		steps = append(steps, step{"replace the payload", d.sql.edit, []any{id, payload, hash}, errGone})
		return run(ctx, tx, steps...)
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.ConstraintName == "letter_event" {
		return fmt.Errorf("edit letter %d: the event has another letter with this payload: replay or discard that one", id)
	}
	if err != nil {
		return fmt.Errorf("edit %w", err)
	}
	return nil
}

// ErrEncrypted says that a letter's payload is encrypted (outbox.Config.Encryptor), so that it cannot be edited.
var ErrEncrypted = errors.New("its payload is encrypted: discard it and let its producer write the event again, or make it a tombstone")

// inTheClear returns ErrEncrypted for a letter whose payload is encrypted. Its headers never change.
func (d *DLQ) inTheClear(ctx context.Context, id int64) error {
	l, err := d.get(ctx, id)
	if err != nil {
		return err
	}
	if l.Event.Headers[wire.HeaderEncryption] != "" {
		return fmt.Errorf("letter %d: %w", id, ErrEncrypted)
	}
	return nil
}
