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

// written is how many events got a row: those that may be handled, or have the result that was given, and those that wait for others of
// their key. Of the rest there was one, or their partition is another's.
type written struct{ handled, stored int }

// queueRecord records events with a result; with "" as handled, or as stored if something of their key is before them. If there is a fence, the
// transaction has it, and the events are of its partition.
func (led *ledger) queueRecord(b *pgx.Batch, ds []*delivery, attempts int, result string, f *position.Fence) {
	var given, topic *string
	var partition *int32
	var epoch *int64
	if result != "" {
		given = &result
	}
	if f != nil {
		number := int32(f.Partition)
		topic, partition, epoch = &f.Topic, &number, &f.Epoch
	}
	mayBePaused := ds[0].from == nil || !led.pauses.noKey()
	if len(ds) == 1 {
		d, record := ds[0], led.sql.record
		if !mayBePaused {
			record = led.sql.recordUnpaused
		}
		b.Queue(record, led.c.Consumer, d.e.Topic, d.partition(), d.e.Source, d.e.ID, d.e.Key, d.offset(), d.hash, int32(attempts), given, epoch, topic, partition)
		return
	}
	n := len(ds)
	topics, partitions, sources, ids, keys := make([]string, n), make([]int32, n), make([]string, n), make([]string, n), make([]string, n)
	offsets, hashes := make([]int64, n), make([][]byte, n)
	for i, d := range ds {
		topics[i], partitions[i], sources[i], ids[i], keys[i] = d.e.Topic, int32(d.from.fence.Partition), d.e.Source, d.e.ID, d.e.Key
		offsets[i], hashes[i] = d.from.offset, d.hash
	}
	b.Queue(led.sql.recordMany, led.c.Consumer, topics, partitions, sources, ids, keys, offsets, hashes, int32(attempts), given, epoch, topic, partition, mayBePaused)
}

// readRecord reads the answer to queueRecord.
func readRecord(br pgx.BatchResults) (w written, err error) {
	rows, err := br.Query()
	if err != nil {
		return w, fmt.Errorf("insert inbox rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var result string
		if err := rows.Scan(&result); err != nil {
			return w, fmt.Errorf("read the result of an inbox row: %w", err)
		}
		if result == "stored" {
			w.stored++
		} else {
			w.handled++
		}
	}
	if err := rows.Err(); err != nil {
		return w, fmt.Errorf("insert inbox rows: %w", err)
	}
	return w, nil
}

// insert records events in an open transaction, which takes the fence for it if there is one.
func (led *ledger) insert(ctx context.Context, tx pgx.Tx, ds []*delivery, attempts int, result string, f *position.Fence) (w written, err error) {
	b := &pgx.Batch{}
	if f != nil {
		b.Queue(led.positions.SQL.FenceShared, position.FenceClass, f.Number)
	}
	led.queueRecord(b, ds, attempts, result, f)
	br := tx.SendBatch(ctx, b)
	if f != nil {
		if _, err = br.Exec(); err != nil {
			err = fmt.Errorf("insert inbox rows: take fence: %w", err)
		}
	}
	if err == nil {
		w, err = readRecord(br)
	}
	if closing := br.Close(); err == nil {
		err = closing
	}
	return w, err
}

// record records an event that was not handled, under the fence. It returns false when there is a row already.
func (led *ledger) record(ctx context.Context, tx pgx.Tx, d *delivery, result string, attempts int) (bool, error) {
	w, err := led.insert(ctx, tx, []*delivery{d}, attempts, result, d.fence())
	if err != nil || w != (written{}) {
		return err == nil, err
	}
	return false, led.check(ctx, tx, d)
}

// check looks why an event got no row. It returns failure.ErrFenced if its partition is another's; else there is a row.
func (led *ledger) check(ctx context.Context, tx pgx.Tx, d *delivery) error {
	if d.from == nil {
		return nil
	}
	return led.positions.Check(ctx, tx, d.from.fence)
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
		d.after = func() { led.notifyDead(l.observed(d.context(), d.e, id), stateNone) }
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
	d.after = func() { led.notifyDead(l.observed(d.context(), d.e, id), stateNone) }
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
