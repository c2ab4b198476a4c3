package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file publishes dead letters, where Config.DeadLetterTopic asks for it: through the log of the same database, in the
// transaction that writes the letter. The SQL function publish_letter makes the event of the letter's row.

// defaultLetterPayload is the largest payload that is published with a letter where Config.LetterPayload says nothing:
// what a topic takes by default (1 MiB), less room for the record itself and for wire.MaxLetterHeaders.
const defaultLetterPayload = 1<<20 - 16<<10 - wire.MaxLetterHeaders

// publishLetter publishes what was just written. A letter that cannot be published is a letter nevertheless.
func (led *ledger) publishLetter(ctx context.Context, tx pgx.Tx, e holdfast.Event, id int64) error {
	b := &pgx.Batch{}
	led.queueLetter(b, e, id)
	if b.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("publish letter: %w", err)
	}
	return nil
}

// queueLetter is publishLetter as a part of a batch. Nothing is queued where nothing is to be published: it is off, the
// event was of a topic of letters, or (id 0) there was no new letter.
func (led *ledger) queueLetter(b *pgx.Batch, e holdfast.Event, id int64) {
	topic := wire.LetterTopic(led.c.DeadLetterTopic, e.Topic)
	if topic == "" || id == 0 {
		return
	}
	b.Queue(led.sql.publishLetter, id, topic, int32(max(led.c.LetterPayload, -1))).QueryRow(func(row pgx.Row) error {
		var refused *string
		if err := row.Scan(&refused); err != nil {
			return err
		}
		if refused != nil {
			led.c.Logger.Warn("letter is not published", append(led.attrs(e), "letter", id, "error", *refused)...)
		}
		return nil
	})
}
