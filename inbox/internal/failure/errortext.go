package failure

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/retry"
)

// This file shortens errors to what a row or a log line holds.

// MaxErrors is how many errors are kept of one event: the last ones. The SQL function last_errors says it too.
const MaxErrors = 20

// BoundedError is an error's text, shortened, and without what Postgres refuses.
func BoundedError(err error) string {
	text := err.Error()
	if len(text) > MaxErrorText {
		text = text[:MaxErrorText-len("…")] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// ClassOf names the kind of failure in a few words, for logs and fingerprints.
func ClassOf(err error) string {
	var pgErr *pgconn.PgError
	var panicked *PanicError
	var h *HandlerError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &panicked):
		return "panic"
	case errors.Is(err, ErrGoexit):
		return "goexit"
	case errors.As(err, &h) && h.TimedOut:
		return "timeout"
	case errors.As(err, &pgErr):
		return "SQLSTATE " + pgErr.Code
	default:
		return string(retry.Classify(err))
	}
}

// AppendError adds an error's text, with all that it wraps, to those of earlier attempts.
func AppendError(texts []string, err error) []string {
	texts = append(texts, BoundedError(err))
	return texts[max(len(texts)-MaxErrors, 0):]
}
