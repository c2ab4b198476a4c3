package inbox

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/retry"
)

// This file cuts errors to what a row or a log line keeps of them.

const (
	// maxErrorText is the most bytes that are kept of one error.
	maxErrorText = 2 << 10

	// maxErrors is how many errors are kept of one event, the last ones. The statements say it as 19.
	maxErrors = 20
)

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

// appendError adds an error's text, with all it wraps, to those of the tries before.
func appendError(texts []string, err error) []string {
	texts = append(texts, boundedError(err))
	return texts[max(len(texts)-maxErrors, 0):]
}
