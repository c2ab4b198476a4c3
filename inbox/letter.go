package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

const (
	// maxErrorText is the most bytes that are kept of one error.
	maxErrorText = 2 << 10

	// maxErrors is how many errors are kept of one event, the last ones. The statements say it as 19.
	maxErrors = 20
)

// letter is what a dead letter says beside its event.
type letter struct {
	reason   string
	holds    bool
	attempts int
	errors   []string
	err      error         // the last, for the fingerprint
	age      time.Duration // since its first failure
	reopen   bool          // write it again where the event has a letter that was closed
	place    *int64        // of its event in the queue of its key; nil for one that never had one: it comes behind all that is there
}

// insertLetter writes a dead letter, and publishes it where that is asked for. The id is 0 where the event has the same
// letter already.
func (led *ledger) insertLetter(ctx context.Context, tx pgx.Tx, e holdfast.Event, hash []byte, partition *int32, offset *int64, l letter) (int64, error) {
	var id int64
	err := tx.QueryRow(ctx, led.sql.letter, led.c.Consumer, l.reason, fingerprint(e.Type, l), l.holds && e.Key != "", e.ID, e.Source, e.Type,
		e.Topic, e.Key, timeOrNil(e.Time), headersJSON(e.Headers), e.Payload, hash, partition, offset, int32(l.attempts),
		nonNil(l.errors), l.age.Microseconds(), l.reopen, l.place).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("insert letter: %w", err)
	}
	return id, led.publishLetter(ctx, tx, e, id)
}

// appendError adds an error's text, with all it wraps, to those of the tries before.
func appendError(texts []string, err error) []string {
	texts = append(texts, boundedError(err))
	return texts[max(len(texts)-maxErrors, 0):]
}

// boundedError is what is kept of an error: text that Postgres takes, and not too much of it.
func boundedError(err error) string {
	text := err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText-len("…")] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// classOf is what kind of failure err is, in a few words: for logs and fingerprints.
func classOf(err error) string {
	var pgErr *pgconn.PgError
	var panicked *panicError
	var h *handlerError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &panicked):
		return "panic"
	case errors.Is(err, errGoexit):
		return "goexit"
	case errors.As(err, &h) && h.timedOut:
		return "timeout"
	case errors.As(err, &pgErr):
		return "SQLSTATE " + pgErr.Code
	default:
		return string(retry.Classify(err))
	}
}

// fingerprint is equal for letters of one kind of failure: the type, the kind, and the first line of the error without
// its figures.
func fingerprint(eventType string, l letter) string {
	what := l.reason
	if l.err != nil {
		text, _, _ := strings.Cut(boundedError(l.err), "\n")
		what = classOf(l.err) + ": " + text
	}
	what = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, what)
	if l.err != nil { // The digits of a SQLSTATE are its meaning.
		if class := classOf(l.err); strings.HasPrefix(class, "SQLSTATE") {
			what = class
		}
	}
	for len(what) > 200 || !utf8.ValidString(what) {
		what = what[:min(len(what)-1, 200)]
	}
	return eventType + " " + what
}
