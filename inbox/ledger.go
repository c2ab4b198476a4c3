package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// This file writes the inbox row of an event, and reads the row of an event that came before.

// ledger is the events' rows in the table inbox, with their dead letters.
type ledger struct {
	*env
	positions *position.Table
	starts    *starts
	letters   *letters
	pauses    *pauses
}

// record writes the row of an event that was not handled, under the fence. It returns false when there is a row already.
func (led *ledger) record(ctx context.Context, tx pgx.Tx, d *delivery, result string, attempts int) (bool, error) {
	b := &pgx.Batch{}
	if d.from != nil {
		led.positions.Queue(d.from.fence, b)
	}
	b.Queue(led.sql.record, led.c.Consumer, d.e.Source, d.e.ID, d.e.Topic, d.partition(), d.offset(), d.hash, result, int32(attempts))
	br := tx.SendBatch(ctx, b)
	var err error
	if d.from != nil {
		err = led.positions.Read(br)
	}
	var inserted int64
	if err == nil {
		tag, exec := br.Exec()
		inserted, err = tag.RowsAffected(), exec
	}
	if closing := br.Close(); err == nil && closing != nil {
		err = closing
	}
	if err != nil {
		return false, fmt.Errorf("insert inbox row: %w", err)
	}
	return inserted == 1, nil
}

// deadLetter dead-letters an event that is being taken in. It returns as.
func (led *ledger) deadLetter(ctx context.Context, tx pgx.Tx, d *delivery, l letter, as Outcome) (Outcome, error) {
	inserted, err := led.record(ctx, tx, d, "dead", l.attempts)
	if err != nil {
		return "", err
	}
	if !inserted {
		return led.known(ctx, tx, d)
	}
	id, err := led.letters.insert(ctx, tx, d.e, d.hash, d.partition(), d.offset(), l)
	if err != nil {
		return "", err
	}
	failpoint.Hit(failpoint.InboxDeadLettering)
	if as == Dead {
		d.after = func() { led.notifyDead(l.observed(d.context(), d.e, id), StateNone) }
	}
	return as, led.starts.forget(ctx, tx, d)
}

// letterAlone dead-letters an event without an inbox row, under the fence.
func (led *ledger) letterAlone(ctx context.Context, tx pgx.Tx, d *delivery, l letter) (Outcome, error) {
	if d.from != nil {
		b := &pgx.Batch{}
		led.positions.Queue(d.from.fence, b)
		br := tx.SendBatch(ctx, b)
		err := led.positions.Read(br)
		if closing := br.Close(); err == nil {
			err = closing
		}
		if err != nil {
			return "", err
		}
	}
	id, err := led.letters.insert(ctx, tx, d.e, d.hash, d.partition(), d.offset(), l)
	if err != nil {
		return "", err
	}
	d.after = func() { led.notifyDead(l.observed(d.context(), d.e, id), StateNone) }
	return Dead, led.starts.forget(ctx, tx, d)
}

// known is the outcome for an event whose id came before.
func (led *ledger) known(ctx context.Context, tx pgx.Tx, d *delivery) (Outcome, error) {
	var hash []byte
	var result string
	if err := tx.QueryRow(ctx, led.sql.known, led.c.Consumer, d.e.Source, d.e.ID).Scan((*plain.Bytes)(&hash), &result); err != nil {
		return "", fmt.Errorf("read inbox row: %w", err)
	}
	if !d.is(hash) {
		var edited bool
		hashes := [][]byte{d.hash, d.payloadHash()}
		if err := tx.QueryRow(ctx, led.sql.edited, led.c.Consumer, d.e.Source, d.e.ID, hashes).Scan(&edited); err != nil {
			return "", fmt.Errorf("look for the payload before an edit: %w", err)
		}
		if edited { // A person edited the payload. The sender cannot know that.
			return Duplicate, nil
		}
		l := letter{reason: "conflict: its id is known with another payload", errors: []string{"another payload came first under this id"}}
		if _, err := led.letters.insert(ctx, tx, d.e, d.hash, d.partition(), d.offset(), l); err != nil {
			return "", err
		}
		return Conflict, nil
	}
	if d.inDoubt { // The COMMIT that got no answer was carried out.
		switch result {
		case "handled":
			return Handled, nil
		case "stored":
			return Stored, nil
		case "dead":
			return Dead, nil
		}
	}
	return Duplicate, led.starts.forget(ctx, tx, d)
}
