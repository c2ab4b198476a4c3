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
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/retry"
)

// cardError is an error of a type of its own.
type cardError struct{ number string }

func (e *cardError) Error() string { return "card " + e.number + " was declined" }

func TestTheLogSaysWhyAHandlerFailedWithoutItsWords(t *testing.T) {
	t.Parallel()
	unique := &pgconn.PgError{Severity: "ERROR", Code: "23505", Message: "Key (card)=(4111) already exists", ConstraintName: "card_key", TableName: "card"}
	missing := &pgconn.PgError{Severity: "ERROR", Code: "42P01", Message: `relation "tax" does not exist`}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"plain", errors.New("no such customer: Ann"), ""},
		{"wrapped", fmt.Errorf("bill Ann: %w", errors.New("card 4111 was declined")), ""},
		{"a type of its own", fmt.Errorf("bill Ann: %w", &cardError{"4111"}), "*inbox.cardError"},
		{"of Postgres, about values", fmt.Errorf("insert Ann: %w", unique), "SQLSTATE 23505, table card, constraint card_key"},
		{"of Postgres", fmt.Errorf("insert Ann: %w", missing), `ERROR: relation "tax" does not exist (SQLSTATE 42P01)`},
		{"of the network", fmt.Errorf("ask for Ann: %w", refused), "dial tcp: connection refused"},
		{"a time-out", fmt.Errorf("ask for Ann: %w", context.DeadlineExceeded), "context deadline exceeded"},
		{"a panic", &panicError{message: "Ann", stack: "at ann.go"}, "panic"},
		{"permanent", retry.Permanent(&cardError{"4111"}), "*inbox.cardError"},
	} {
		env := &env{settings: settings{c: Config{}.withDefaults()}}
		if got := env.cause(&handlerError{err: c.err}); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestARedactFuncDecidesWhatIsLoggedOfAnError(t *testing.T) {
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
		got := env.cause(&handlerError{err: errors.New(c.text)})
		if got != c.want || len(got) > maxLogged || !utf8.ValidString(got) {
			t.Errorf("%.20q: %q, want %q", c.text, got, c.want)
		}
	}
	env.c.RedactErrorFunc = ErrorKind
	if got, want := env.cause(&handlerError{err: errors.New(`charge 4111111111: "Ann Lee" has no card=77`)}), "charge #: # has no card=#"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	env.c.RedactErrorFunc = func(error) string { return "" }
	if attrs := env.reason(&handlerError{err: errors.New("secret")}); attrs != nil {
		t.Errorf("attributes %v", attrs)
	}
}

func TestAFailureIsLoggedWithItsReason(t *testing.T) {
	b := setup(t)
	for _, row := range []struct {
		name   string
		redact func(error) string
		want   string
	}{
		{"by default", nil, ""},
		{"with a function", error.Error, `error="no tax rate for Narnia"`},
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
