package inbox

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/retry"
)

// This file shortens errors to what a row or a log line holds.

// maxErrors is how many errors are kept of one event: the last ones. The SQL function last_errors says it too.
const maxErrors = 20

// boundedError is an error's text, shortened, and without what Postgres refuses.
func boundedError(err error) string {
	text := err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText-len("…")] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// classOf names the kind of failure in a few words, for logs and fingerprints.
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

// appendError adds an error's text, with all that it wraps, to those of earlier attempts.
func appendError(texts []string, err error) []string {
	texts = append(texts, boundedError(err))
	return texts[max(len(texts)-maxErrors, 0):]
}
