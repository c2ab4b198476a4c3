package holdfast

import (
	"context"
	"errors"
	"strings"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Codec turns values into payloads and back, for outbox.Typed, inbox.On and inbox.OnBatch. JSON is one; contrib/schemaregistry has
// others. Many goroutines call it at once.
type Codec interface {
	// Encode returns e with the payload of v, and with the headers that say how to read it: at least "content-type". It must not
	// change the map e.Headers.
	Encode(ctx context.Context, e Event, v any) (Event, error)

	// Decode reads e.Payload, which is not nil, into v, a pointer. An error means that the payload never will be what is wanted, and
	// makes the event a dead letter at once. If it is a *PayloadError, that is the letter's reason. An error whose method RetryClass
	// says a class that is Retryable, or that retry.After marks, is a failure like others: the event is tried again.
	Decode(ctx context.Context, e Event, v any) error
}

// HeaderContentType names the header that says what a payload is, such as "application/json". It is the attribute datacontenttype of
// CloudEvents.
const HeaderContentType = "content-type"

// HeaderDataSchema names the header that says which schema a payload has, by a URI. It is the attribute dataschema of CloudEvents: a relay
// publishes it as ce_dataschema.
const HeaderDataSchema = "dataschema"

// PayloadError says why a payload is not what was wanted.
type PayloadError struct {
	// Field is where, in the names of the program's own types: "lines[2].qty". Keys of a map are "*". "" is the whole payload.
	Field string

	// Problem is what is wrong there, without a value of the payload: "a string where an int is wanted".
	Problem string

	// Err says more, and may quote the payload: it is written to the dead letter, and not to the log. It may be nil.
	Err error
}

// maxReason is the most bytes of a reason.
const maxReason = 300

// Reason is the error without Err: at most 300 bytes, and nothing of the payload.
func (e *PayloadError) Reason() string {
	var b strings.Builder
	b.WriteString("payload: ")
	if e.Field != "" {
		b.WriteString(`field "` + e.Field + `": `)
	}
	b.WriteString(e.Problem)
	if text := strings.ToValidUTF8(b.String(), "\uFFFD"); len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(b.String()[:maxReason-len("…")], "") + "…"
}

func (e *PayloadError) Error() string {
	if e.Err == nil {
		return e.Reason()
	}
	return e.Reason() + ": " + foreign.Text(e.Err)
}

func (e *PayloadError) Unwrap() error { return e.Err }

// errTombstone is the problem of encoding a value that has no payload.
var errTombstone = errors.New("a nil value is a tombstone, which has no payload: leave Payload nil")
