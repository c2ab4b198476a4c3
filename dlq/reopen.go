package dlq

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/manual"
)

// This file makes handled events dead letters again, so that a repaired handler runs again over them.

// ErrNotHandled is wrapped by the error of Reopen for an event that its consumer has not handled: it waits, is a dead letter, was
// discarded, or its inbox row is not there, because it has not come yet or was handled longer ago than inbox.Config.Retention.
var ErrNotHandled = errors.New("the consumer has not handled the event")

// ErrDiffers is wrapped by the error of Reopen for an event whose type or payload is not that which its consumer has handled: another event
// with the same id, one that was edited as a dead letter, or one that was decrypted since.
var ErrDiffers = errors.New("the consumer has handled another event under this id")

// Reopen makes an open letter of an event that a consumer (its inbox.Config.Consumer) has handled or skipped, as part of tx, and returns
// the letter's id. Replay then runs the handler again, in the order of the letters' ids, never beside another event of that key that
// waits, and with the consumer's retries. That is the order in which the events were reopened, but an event that was a letter before keeps
// its old id. What fails again is an open letter again. Until it is replayed, the letter holds nothing back.
//
// Effects of the first run stay: the handler must correct them, or be safe to repeat. The event's payload comes from the caller, usually
// the topic's records (inbox.ConsumeUntil), and must be that which was handled. by is who reopens the event; reason says why, such as the
// number of the bug, and is the letter's reason. Both are required and kept with the action, signed by the database (Actions). If an
// event is reopened by two transactions at once, one does, and the other gets ErrNotHandled; so does every call until the letter was
// replayed.
//
// The error wraps ErrNotHandled or ErrDiffers if nothing was changed. tx is usable then. The user of tx needs the rights of an
// operator (docs/operations.md). Reopen may be called by many goroutines, each with a transaction of its own.
func (d *DLQ) Reopen(ctx context.Context, tx pgx.Tx, consumer string, e holdfast.Event, by, reason string) (letter int64, err error) {
	if tx == nil {
		return 0, fmt.Errorf("reopen event %.60q: tx is nil: it must be the transaction that takes back what the event did", e.ID)
	}
	if err := checkReopen(consumer, by, reason); err != nil {
		return 0, fmt.Errorf("reopen event %.60q: %w", e.ID, err)
	}
	var headers *string
	if len(e.Headers) > 0 {
		text, err := json.Marshal(e.Headers)
		if err != nil {
			return 0, fmt.Errorf("reopen event %.60q: headers: %w", e.ID, err)
		}
		headers = new(string)
		*headers = string(text)
	}
	var at *time.Time
	if !e.Time.IsZero() {
		at = &e.Time
	}
	typed, payload := eventHashes(e)
	var made *int64
	var result *string
	var same *bool
	err = tx.QueryRow(ctx, d.sql.reopen, consumer, e.Source, e.ID, e.Type, e.Topic, e.Key, at, headers, e.Payload, typed, payload,
		"reopened: "+strings.Join(strings.Fields(reason), " "), by, reason).Scan(&made, &result, &same)
	switch {
	case err != nil:
		err = manual.Explain(err)
	case made != nil:
		return *made, nil
	case result == nil:
		err = fmt.Errorf("%w: its inbox has no row of it", ErrNotHandled)
	case *result == "handled" || *result == "skipped":
		if err = ErrDiffers; *same {
			err = fmt.Errorf("%w: another transaction has just reopened it", ErrNotHandled)
		}
	default:
		err = fmt.Errorf("%w: its inbox says %s", ErrNotHandled, *result)
	}
	return 0, fmt.Errorf("reopen event %.60q of %s: %w", e.ID, consumer, err)
}

func checkReopen(consumer, by, reason string) error {
	problems := []error{manual.Signature(by, reason)}
	if consumer == "" {
		problems = append(problems, errors.New("consumer is empty: it must be the inbox.Config.Consumer whose handler is to run again"))
	}
	if strings.TrimSpace(reason) == "" {
		problems = append(problems, errors.New("reason is empty: it must say why a handler runs again; it is kept with the letter"))
	}
	return errors.Join(problems...)
}

// eventHashes are those that an inbox row may have: of type and payload, or, for what was edited as a letter, of the payload alone.
func eventHashes(e holdfast.Event) (typed, payload []byte) {
	both := sha256.New()
	both.Write([]byte(e.Type))
	both.Write([]byte{0})
	both.Write(e.Payload)
	alone := sha256.Sum256(e.Payload)
	return both.Sum(nil), alone[:]
}
