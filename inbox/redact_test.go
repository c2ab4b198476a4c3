package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
)

// cardError is an error of a type of its own.
type cardError struct{ number string }

func (e *cardError) Error() string { return "card " + e.number + " was declined" }

// reasoningError is an error of a handler whose method has the name of one of ours.
type reasoningError struct{ text string }

func (e *reasoningError) Error() string  { return e.text }
func (e *reasoningError) Reason() string { return "for " + e.text }

func TestRedact_TheLogSaysWhyAHandlerFailed(t *testing.T) {
	t.Parallel()
	unique := &pgconn.PgError{Severity: "ERROR", Code: "23505", Message: "Key (card)=(4111) already exists", ConstraintName: "card_key", TableName: "card"}
	missing := &pgconn.PgError{Severity: "ERROR", Code: "42P01", Message: `relation "tax" does not exist`}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	e := event("1", "k-17")
	e.Payload, e.Headers = []byte(`{"customer": {"name": "Ann Lee", "note": "caf\u00e9 \"du Nord\""}, "card": 4111111111111111, "tags": ["express"], "qty": 2}`), map[string]string{"token": "s3cr3t"}
	for _, c := range []struct {
		name           string
		err            error
		want, withheld string
	}{
		{"plain", errors.New("tax service says no"), "tax service says no", ""},
		{"with a name", errors.New("no such customer: Ann Lee"), "no such customer: #", ""},
		{"with numbers and names of fields", fmt.Errorf("card %d of customer declined", 4111111111111111), "card # of customer declined", ""},
		{"that quotes the payload", fmt.Errorf("bad order %s", e.Payload), `bad order {"customer": {"name": "#", "note": "#"}, "card": #, "tags": ["#"], "qty": 2}`, ""},
		{"that quotes a header and the key", errors.New("s3cr3t refused k-17"), "# refused #", ""},
		{"wrapped", fmt.Errorf("bill Ann Lee: %w", &cardError{"4111111111111111"}), "bill #: card # was declined", "*inbox.cardError"},
		{"of Postgres, about values", fmt.Errorf("insert: %w", unique), "insert: SQLSTATE 23505, table card, constraint card_key", "SQLSTATE 23505, table card, constraint card_key"},
		{"of Postgres", fmt.Errorf("insert: %w", missing), `insert: ERROR: relation "tax" does not exist (SQLSTATE 42P01)`, `ERROR: relation "tax" does not exist (SQLSTATE 42P01)`},
		{"of the network", fmt.Errorf("ask for Ann Lee: %w", refused), "ask for #: dial tcp: connection refused", "dial tcp: connection refused"},
		{"a time-out", fmt.Errorf("ask: %w", context.DeadlineExceeded), "ask: context deadline exceeded", "context deadline exceeded"},
		{"permanent", retry.Permanent(errors.New("tax service says no")), "tax service says no", ""},
		{"with a reason of its own", retry.Permanent(&reasoningError{"Ann Lee"}), "#", "*inbox.reasoningError"},
		{"ours", failure.Ours("a middleware did it"), "a middleware did it", "a middleware did it"},
		{"ours about another", failure.OursOf(errors.New("bill Ann Lee"), "the handler was cancelled after 1s"), "the handler was cancelled after 1s: bill #", "the handler was cancelled after 1s"},
		{"ours about Postgres", failure.OursOf(fmt.Errorf("insert: %w", unique), "it cannot be settled"), "it cannot be settled: insert: SQLSTATE 23505, table card, constraint card_key", "it cannot be settled: SQLSTATE 23505, table card, constraint card_key"},
		{"ours, wrapped by a handler", fmt.Errorf("commit for Ann Lee: %w", failure.ErrNotTheHandlers), "commit for #: " + failure.ErrNotTheHandlers.Error(), failure.ErrNotTheHandlers.Error()},
		{"of a key that was erased", retry.Permanent(failure.OursOf(fmt.Errorf("vault: %w", holdfast.ErrKeyErased), "decrypt the payload (key k1)")), "decrypt the payload (key k1): vault: the key was erased", "decrypt the payload (key k1): the key was erased"},
	} {
		env := &env{settings: settings{c: Config{}.withDefaults()}}
		if got := env.cause(&failure.HandlerError{Err: c.err}, e); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		env.c.RedactErrorFunc = WithholdError
		if got := env.cause(&failure.HandlerError{Err: c.err}, e); got != c.withheld {
			t.Errorf("%s, withheld: %q, want %q", c.name, got, c.withheld)
		}
	}
}

// Only the handler has seen the payload in the clear, so nobody can say what of its error is the payload's.
func TestRedact_NothingIsLoggedOfWhatAHandlerSaysOfAnEncryptedPayload(t *testing.T) {
	t.Parallel()
	env := &env{settings: settings{c: Config{}.withDefaults()}}
	e := event("1", "k")
	e.Headers = map[string]string{wire.HeaderEncryption: "aes-256-gcm k1"}
	if got, want := env.cause(&failure.HandlerError{Err: failure.OursOf(errors.New("bill Ann Lee"), "the handler was cancelled after 1s")}, e), "the handler was cancelled after 1s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What is ours and the place of a panic are in the log whatever is withheld, and in the reason of the letter.
func TestRedact_OurWordsAndThePlaceOfAPanicAreAlwaysSaid(t *testing.T) {
	for name, redact := range map[string]func(error) string{
		"by default": nil, "withheld": WithholdError, "nothing at all": func(error) string { return "" }, "everything": error.Error,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var log logtest.Log
			in := b.inbox(func(c *Config) {
				c.RedactErrorFunc, c.Retry.Attempts, c.ImmediateRetries, c.Logger = redact, 2, 1, slog.New(slog.NewTextHandler(&log, nil))
			})
			in.Handle("commits", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error { return tx.Commit(ctx) })
			in.Handle("fails", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
				_, _ = tx.Exec(ctx, "select 1/0")
				return nil
			})
			in.Handle("panics", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
				var of *holdfast.Event
				of.ID = e.Key
				return nil
			})
			for eventType, want := range map[string]string{
				"commits": "return nil to commit, an error to roll back",
				"fails":   "a statement failed, but the handler returned nil",
				"panics":  "inbox.TestRedact_OurWordsAndThePlaceOfAPanicAreAlwaysSaid.",
			} {
				b.receive(in, typed(eventType, eventType, eventType), Dead)
				if text := log.Take(); !strings.Contains(text, want) || eventType == "panics" && !strings.Contains(text, "panic=runtime.") {
					t.Errorf("%s: want %q in the log, which has\n%s", eventType, want, text)
				}
				var reason string
				if err := b.db.QueryRow(t.Context(), "select reason from holdfast.letter where event_id = $1", eventType).Scan(&reason); err != nil || !strings.Contains(reason, want) {
					t.Errorf("%s: want %q in the reason %q, %v", eventType, want, reason, err)
				}
			}
		})
	}
}

func TestRedact_TheReasonOfALetterIsTheLogsWithoutItsEvent(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"by default", func(*Config) {}, "it failed 2 times: no rate for #"},
		{"withheld", func(c *Config) { c.RedactErrorFunc = WithholdError }, "it failed 2 times"},
		{"redacted", func(c *Config) { c.RedactErrorFunc = func(error) string { return "rates" } }, "it failed 2 times: rates"},
		{"published without texts", func(c *Config) { c.DeadLetterTopic, c.LetterPayload = "*.dlq", -1 }, "it failed 2 times"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(c.change, func(c *Config) { c.Retry.Attempts, c.ImmediateRetries = 2, 1 })
			in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
				return fmt.Errorf("no rate for %s", e.Payload)
			})
			b.receive(in, event("1", "k"), Dead)
			b.store(in, event("2", "k"))
			pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 1")
			stop := b.run(in.Run)
			b.awaitOutcome("2", Dead)
			stop()
			for _, id := range []string{"1", "2"} {
				var reason, text string
				if err := b.db.QueryRow(t.Context(), "select reason, errors[cardinality(errors)] from holdfast.letter where event_id = $1", id).Scan(&reason, &text); err != nil || reason != c.want {
					t.Errorf("%s: the reason is %q, want %q, %v", id, reason, c.want, err)
				}
				if !strings.Contains(text, "payload of "+id) {
					t.Errorf("%s: the letter does not have the whole text: %q", id, text)
				}
			}
		})
	}
}

func TestRedact_ARedactFuncDecidesWhatIsLoggedOfAnError(t *testing.T) {
	t.Parallel()
	env := &env{settings: settings{c: Config{RedactErrorFunc: error.Error}.withDefaults()}}
	for _, c := range []struct{ text, want string }{
		{"no such customer", "no such customer"},
		{"one\ntwo", "one"},
		{"\r\n first \x1b[2J line\x00\r\nsecond", "first  [2J line"},
		{"", ""},
		{"\xff bytes", "bytes"},
		{strings.Repeat("x", 200), strings.Repeat("x", 200)},
		{strings.Repeat("x", 201), strings.Repeat("x", 197) + "…"},
		{strings.Repeat("é", 101), strings.Repeat("é", 98) + "…"},
	} {
		got := env.cause(&failure.HandlerError{Err: errors.New(c.text)}, event("1", "k"))
		if got != c.want || len(got) > maxLogged || !utf8.ValidString(got) {
			t.Errorf("%.20q: %q, want %q", c.text, got, c.want)
		}
	}
	env.c.RedactErrorFunc = ErrorKind
	if got, want := env.cause(&failure.HandlerError{Err: errors.New(`charge 4111111111: "Ann Lee" has no card=77`)}, event("1", "k")), "charge #: # has no card=#"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	env.c.RedactErrorFunc = func(error) string { return "" }
	if attrs := env.reason(&failure.HandlerError{Err: errors.New("secret")}, event("1", "k")); attrs != nil {
		t.Errorf("attributes %v", attrs)
	}
}

func TestRedact_AFailureIsLoggedWithItsReason(t *testing.T) {
	b := setup(t)
	for _, row := range []struct {
		name   string
		redact func(error) string
		want   string
	}{
		{"by default", nil, `error="no tax rate for Narnia"`},
		{"with a function", error.Error, `error="no tax rate for Narnia"`},
		{"withheld", WithholdError, ""},
	} {
		var log logtest.Log
		in := b.inbox(func(c *Config) {
			c.RedactErrorFunc, c.Consumer, c.Retry.Attempts = row.redact, "billing "+row.name, 2
			c.ImmediateRetries = 1
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
			return errors.New("no tax rate for Narnia\nand a second line")
		})
		b.receive(in, event(row.name, "k"), Dead)
		text := log.String()
		for _, message := range []string{"handler failed, will retry", "event given up"} {
			if !strings.Contains(text, message) {
				t.Errorf("%s: no line %q in %s", row.name, message, text)
			}
		}
		if row.want == "" && strings.Contains(text, "Narnia") || row.want != "" && strings.Count(text, row.want) != 2 || strings.Contains(text, "second line") {
			t.Errorf("%s: the log has\n%s", row.name, text)
		}
	}
}
