package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file writes dead letters. If Config.DeadLetterTopic asks for it, it also publishes them: through the log of the same
// database, in the transaction that writes the letter. The SQL function publish_letter makes an event of the letter's row.

// letter is what a dead letter holds beside its event.
type letter struct {
	reason   string
	holds    bool
	attempts int
	errors   []string
	err      error         // the last one, for the fingerprint
	age      time.Duration // since the first failure
	reopen   bool          // open the event's letter again if it was closed
	place    *int64        // the event's place in the queue of its key; nil, for one that had none, stands for the end of the queue
}

// observed is what an Observer gets of a letter.
func (l letter) observed(ctx context.Context, e holdfast.Event, id int64) DeadLettered {
	return DeadLettered{
		Context:  ctx,
		Event:    e,
		Letter:   id,
		Reason:   l.reason,
		Attempts: l.attempts,
		Err:      l.err,
	}
}

// letters writes dead letters, and publishes them if Config.DeadLetterTopic asks for it.
type letters struct{ *env }

// insert writes a dead letter, and publishes it if the configuration asks for it. The id is 0 when the event has the same letter
// already.
func (ls *letters) insert(ctx context.Context, tx pgx.Tx, e holdfast.Event, hash []byte, partition *int32, offset *int64, l letter) (int64, error) {
	var id int64
	l = ls.withheld(l)
	err := tx.QueryRow(ctx, ls.sql.letter, ls.c.Consumer, l.reason, ls.fingerprint(e, l), l.holds && e.Key != "", e.ID, e.Source, e.Type,
		e.Topic, e.Key, timeOrNil(e.Time), headersJSON(e.Headers), e.Payload, hash, partition, offset, int32(l.attempts),
		nonNil(l.errors), l.age.Microseconds(), l.reopen, l.place).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("insert letter: %w", err)
	}
	return id, ls.publish(ctx, tx, e, id)
}

// withheld is a letter whose errors do not leave the database, if the configuration leaves payloads out as well. publish_letter
// publishes the first line of the last error: it becomes the class of the error, and the text follows, for those who read the
// letter's row.
func (ls *letters) withheld(l letter) letter {
	if !ls.c.withholds() || l.err == nil || len(l.errors) == 0 {
		return l
	}
	l.errors = slices.Clone(l.errors)
	last := &l.errors[len(l.errors)-1]
	*last = failure.ClassOf(l.err) + "\n" + *last
	return l
}

// fingerprint is equal for letters of one kind of failure: the event's type, the class, and the words of the error that are no values:
// of what a letter's reason may say those that the event does not have. Of an error of Postgres the SQLSTATE says enough.
func (env *env) fingerprint(e holdfast.Event, l letter) string {
	what := private.Kind(l.reason)
	if l.err != nil {
		what = failure.ClassOf(l.err)
		if !strings.HasPrefix(what, "SQLSTATE") {
			what += ": " + private.Kind(firstLine(env.whole(l.err, e)))
		}
	}
	for len(what) > 200 || !utf8.ValidString(what) {
		what = what[:min(len(what)-1, 200)]
	}
	return e.Type + " " + what
}

// publish publishes a letter that was just written. If it cannot be published, it stays a letter.
func (ls *letters) publish(ctx context.Context, tx pgx.Tx, e holdfast.Event, id int64) error {
	b := &pgx.Batch{}
	ls.queue(b, e, id)
	if b.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("publish letter: %w", err)
	}
	return nil
}

// queue adds publish to a batch. It adds nothing when publishing is off, when the event came from a topic of dead letters, or
// when there is no new letter (id 0).
func (ls *letters) queue(b *pgx.Batch, e holdfast.Event, id int64) {
	topic := wire.LetterTopic(ls.c.DeadLetterTopic, e.Topic)
	if topic == "" || id == 0 {
		return
	}
	b.Queue(ls.sql.publishLetter, id, topic, int32(max(ls.c.LetterPayload, -1))).QueryRow(func(row pgx.Row) error {
		var refused *string
		if err := row.Scan(&refused); err != nil {
			return err
		}
		if refused != nil {
			ls.c.Logger.Warn("dead letter not published", append(ls.attrs(e), "letter", id, "error", *refused)...)
		}
		return nil
	})
}
