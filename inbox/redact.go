package inbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/private"
)

// This file says in a few words why a handler failed, for the log. What a handler puts into an error may be its event's data.

// maxLogged is the most bytes of a handler's error that a log line has.
const maxLogged = 200

// ErrorKind is for Config.RedactErrorFunc: the words of the first line of err's text. What stands in quotes or after an equals sign is
// left out, and so is every word with a digit or an @, or of more than 40 bytes. Plain words stay, also if they are a payload's, or
// somebody's name: use it if your handlers put neither into their errors.
func ErrorKind(err error) string { return private.Kind(private.Text(err)) }

// cause is why a handler failed, in one line of at most maxLogged bytes; "" if nothing may be said.
func (env *env) cause(err error) string {
	if redact := env.c.RedactErrorFunc; redact != nil {
		said, ok := foreign.Try(func() string { return redact(handlersError(err)) })
		if !ok {
			said = "RedactErrorFunc panicked"
		}
		return oneLine(said)
	}
	return oneLine(ownCause(err))
}

// reason is cause as attributes of a line.
func (env *env) reason(err error) []any {
	if text := env.cause(err); text != "" {
		return []any{"error", text}
	}
	return nil
}

// handlersError is what the handler returned, if err is of a handler.
func handlersError(err error) error {
	var h *handlerError
	if errors.As(err, &h) {
		return h.err
	}
	return err
}

// ownCause is what can be said of an error without a word of who made it: what Postgres says of its own names, what the network
// says, that a time was over, and else the type of the innermost error, unless every error that is only a text has that.
func ownCause(err error) string {
	var server *pgconn.PgError
	var dns *net.DNSError
	var network *net.OpError
	var payload interface{ reason() string }
	switch broken := foreign.Broken(err); {
	case broken != "":
		return broken
	case errors.As(err, &payload):
		return payload.reason()
	case errors.As(err, new(*panicError)):
		return "panic"
	case errors.As(err, &server):
		return private.Text(server)
	case errors.As(err, &network):
		return network.Error()
	case errors.As(err, &dns):
		return dns.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded.Error()
	case errors.Is(err, context.Canceled):
		return context.Canceled.Error()
	}
	switch kind := fmt.Sprintf("%T", foreign.Innermost(err)); kind {
	case "*errors.errorString", "*errors.joinError", "*fmt.wrapError", "*fmt.wrapErrors", "*inbox.handlerError", "<nil>":
		return ""
	default:
		return kind
	}
}

// oneLine is the first line of a text without control characters, cut off after maxLogged bytes.
func oneLine(text string) string {
	text = strings.TrimLeftFunc(text, unicode.IsSpace)
	text, _, _ = strings.Cut(text, "\n")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if text = strings.TrimSpace(text); len(text) <= maxLogged {
		return text
	}
	cut := maxLogged - len("…")
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
