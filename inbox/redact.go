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

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file says in one line why a handler failed, for the log and for the reason of a dead letter.

// maxLogged is the most bytes of a handler's error that a log line or a reason has.
const maxLogged = 200

// ErrorKind is for Config.RedactErrorFunc: the words of the first line of err's text. What stands in quotes or after an equals sign is
// left out, and so is every word with a digit or an @, or of more than 40 bytes. Plain words stay, also if they are a payload's, or
// somebody's name: use it if your handlers put neither into their errors.
func ErrorKind(err error) string { return private.Kind(private.Text(err)) }

// WithholdError is for Config.RedactErrorFunc: nothing that a handler said. It returns what holdfast itself, Postgres, the network or a
// time-out says of err without values, or else the type of the innermost error; "" for an error that is only a text.
func WithholdError(err error) string {
	var server *pgconn.PgError
	var dns *net.DNSError
	var network *net.OpError
	var payload *failure.PayloadError
	var text string
	switch broken := foreign.Broken(err); {
	case broken != "":
		text = broken
	case errors.As(err, &payload):
		text = payload.Reason()
	case errors.As(err, new(*failure.PanicError)):
		text = "panic"
	case errors.As(err, &server):
		text = private.Text(server)
	case errors.As(err, &network):
		text = network.Error()
	case errors.As(err, &dns):
		text = dns.Error()
	case errors.Is(err, context.DeadlineExceeded):
		text = context.DeadlineExceeded.Error()
	case errors.Is(err, context.Canceled):
		text = context.Canceled.Error()
	default:
		switch kind := fmt.Sprintf("%T", foreign.Innermost(err)); kind {
		case "*errors.errorString", "*errors.joinError", "*fmt.wrapError", "*fmt.wrapErrors", "*failure.HandlerError", "*failure.sentence", "<nil>":
		default:
			text = kind
		}
	}
	return failure.Joined(failure.OurWords(err), text)
}

// cause is why a handler failed for an event, in one line of at most maxLogged bytes; "" if nothing may be said. Config.RedactErrorFunc
// decides about what the handler said. Our own words are said always.
func (env *env) cause(err error, e holdfast.Event) string { return oneLine(env.whole(err, e)) }

// whole is cause without its limits of lines and bytes. Where values are taken out of it, it must be whole: a cut would come after more or
// fewer words as values are long.
func (env *env) whole(err error, e holdfast.Event) string {
	err = handlersError(err)
	redact := env.c.RedactErrorFunc
	if redact == nil {
		return textFor(err, e)
	}
	said, ok := foreign.Try(func() string { return redact(err) })
	switch {
	case !ok:
		return "RedactErrorFunc panicked"
	case strings.TrimSpace(said) == "":
		return failure.OurWords(err)
	}
	return said
}

// textFor is the text of an error without what it shares with the event. Of an encrypted payload only the handler knows the plain
// text, so nothing is said that is not ours.
func textFor(err error, e holdfast.Event) string {
	if _, sealed := wire.Sealed(e); sealed || err == nil || foreign.Broken(err) != "" || errors.As(err, new(*failure.PayloadError)) {
		return WithholdError(err)
	}
	text := private.Text(err)
	var panicked *failure.PanicError
	if errors.As(err, &panicked) {
		text = panicked.Logged
	}
	values := []string{e.Key}
	for _, value := range e.Headers {
		values = append(values, value)
	}
	return private.WithoutEvent(text, e.Payload, values...)
}

// reason is cause as attributes of a line, and where a panic came from.
func (env *env) reason(err error, e holdfast.Event) (attrs []any) {
	var panicked *failure.PanicError
	if errors.As(err, &panicked) {
		attrs = append(attrs, "panic", panicked.Kind, "at", panicked.At)
	}
	if text := env.cause(err, e); text != "" {
		attrs = append(attrs, "error", text)
	}
	return attrs
}

// because is a reason to give an event up, with the cause. It is published with the letter.
func (env *env) because(reason string, err error, e holdfast.Event) string {
	if env.c.withholds() {
		return reason
	}
	text := env.cause(err, e)
	var panicked *failure.PanicError
	if errors.As(err, &panicked) {
		text = failure.Joined("panic at "+panicked.At, text)
	}
	if strings.Contains(reason, text) { // as that of a payload that cannot be decoded
		return reason
	}
	return failure.Joined(reason, text)
}

// loggedError is an error's text for a line or a state of health that is about no single event: what a handler said in it is left out.
func loggedError(err error) string {
	var h *failure.HandlerError
	if errors.As(err, &h) {
		return or(oneLine(WithholdError(h.Err)), failure.ClassOf(err)) + ", in a handler"
	}
	return failure.BoundedError(private.Error(err))
}

// handlersError is what the handler returned, if err is of a handler.
func handlersError(err error) error {
	var h *failure.HandlerError
	if errors.As(err, &h) {
		return h.Err
	}
	return err
}

// firstLine is the first line of a text that says something, of characters that can be printed.
func firstLine(text string) string {
	text = strings.TrimLeftFunc(text, unicode.IsSpace)
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text))
}

// oneLine is the first line of a text without characters that cannot be printed, cut off after maxLogged bytes.
func oneLine(text string) string {
	if text = firstLine(text); len(text) <= maxLogged {
		return text
	}
	cut := maxLogged - len("…")
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
