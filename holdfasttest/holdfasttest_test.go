package holdfasttest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

func TestHoldfastTest_AHandlerRunsInTheTestsTransactionAndNothingIsLeftBehind(t *testing.T) {
	pool := setup(t)
	in := newBilling(t, pool)
	t.Run("a test", func(t *testing.T) {
		tx := holdfasttest.Begin(t, pool)
		outcome, err := holdfasttest.Handle(t, tx, in, placed("alice", `{"cents": 1200}`))
		if outcome != inbox.Handled || err != nil {
			t.Fatalf("got %q, %v", outcome, err)
		}
		if n := pgtest.Count(t, tx, "select count(*) from invoices where customer = 'alice' and cents = 1200"); n != 1 {
			t.Errorf("the test sees %d invoices, want 1", n)
		}
		holdfasttest.RequireWritten(t, tx, holdfast.Event{Type: "invoice.sent", Key: "alice"})
		if n := pgtest.Count(t, pool, "select count(*) from invoices"); n != 0 {
			t.Errorf("others see %d invoices, want none", n)
		}
	})
	if n := pgtest.Count(t, pool, "select (select count(*) from invoices) + (select count(*) from holdfast.inbox) + (select count(*) from holdfast.event)"); n != 0 {
		t.Errorf("%d rows are left behind", n)
	}
}

func TestHoldfastTest_ATestMayCommitWhatAHandlerDid(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	in := newBilling(t, pool)
	tx := holdfasttest.Begin(t, pool)
	e := placed("alice", `{"cents": 1}`)
	e.ID = "1"
	if outcome, err := holdfasttest.Handle(t, tx, in, e); outcome != inbox.Handled || err != nil {
		t.Fatal(outcome, err)
	}
	if outcome, err := holdfasttest.Handle(t, tx, in, e); outcome != inbox.Duplicate || err != nil {
		t.Errorf("the same event again: %q, %v, want a duplicate", outcome, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if outcome, err := in.Receive(t.Context(), e); outcome != inbox.Duplicate || err != nil {
		t.Errorf("after the commit: %q, %v, want a duplicate", outcome, err)
	}
	if n := pgtest.Count(t, pool, "select count(*) from invoices"); n != 1 {
		t.Errorf("%d invoices, want 1", n)
	}
}

func TestHoldfastTest_TheErrorOfAHandlerComesAsItIsAndTheTransactionGoesOn(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	for _, c := range []struct {
		name  string
		event holdfast.Event
		in    *inbox.Inbox
		want  inbox.Outcome
		is    func(error) bool
	}{
		{"one that is tried again", placed("", `{"cents": 1}`), newBilling(t, pool), inbox.Retrying, func(err error) bool { return err == errNoCustomer }},
		{"one that is permanent", placed("k", `not JSON`), newBilling(t, pool), inbox.Dead, func(err error) bool { return strings.Contains(err.Error(), "invalid character") }},
		{"one at the only attempt", placed("", `{}`), newBilling(t, pool, func(c *inbox.Config) { c.Retry = retry.Policy{Attempts: 1} }),
			inbox.Dead, func(err error) bool { return err == errNoCustomer }},
	} {
		tx := holdfasttest.Begin(t, pool)
		outcome, err := holdfasttest.Handle(t, tx, c.in, c.event)
		if outcome != c.want || err == nil || !c.is(err) {
			t.Errorf("%s: got %q, %v, want %q", c.name, outcome, err, c.want)
		}
		if n := pgtest.Count(t, tx, "select (select count(*) from invoices) + (select count(*) from holdfast.inbox) + (select count(*) from holdfast.stored) + (select count(*) from holdfast.letter)"); n != 0 {
			t.Errorf("%s: the failed handler left %d rows in the transaction", c.name, n)
		}
		if outcome, err := holdfasttest.Handle(t, tx, c.in, placed("bob", `{}`)); outcome != inbox.Handled || err != nil {
			t.Errorf("%s: the next event in the same transaction: %q, %v", c.name, outcome, err)
		}
	}
}

func TestHoldfastTest_PanicsAndHandlersThatDoNotEndAreErrors(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	release := make(chan struct{})
	defer close(release)
	for kind, c := range map[string]struct {
		timeout, grace time.Duration // short is only what runs out
		handler        inbox.Handler
		want           string
	}{
		"panics": {time.Minute, time.Minute, func(context.Context, pgx.Tx, holdfast.Event) error { panic("of all things") }, "panic: of all things"},
		"waits": {20 * time.Millisecond, time.Minute, func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error { <-ctx.Done(); return ctx.Err() },
			"cancelled after 20ms: context deadline exceeded"},
		"hangs": {20 * time.Millisecond, 20 * time.Millisecond, func(context.Context, pgx.Tx, holdfast.Event) error { <-release; return nil }, "did not return within 20ms"},
	} {
		in := newBilling(t, pool, func(config *inbox.Config) { config.Timeout, config.Grace = c.timeout, c.grace })
		in.Handle(kind, c.handler)
		tx := holdfasttest.Begin(t, pool)
		outcome, err := holdfasttest.Handle(t, tx, in, holdfast.Event{Type: kind})
		if outcome != inbox.Retrying || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q, %v, want it to say %q", kind, outcome, err, c.want)
		}
	}
}

func TestHoldfastTest_AnEventIsGivenWhatItLacksAndKeepsWhatItHas(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	in := newBilling(t, pool)
	var got holdfast.Event
	in.Handle("look", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { got = e; return nil })
	tx := holdfasttest.Begin(t, pool)
	if _, err := holdfasttest.Handle(t, tx, in, holdfast.Event{Type: "look"}); err != nil {
		t.Fatal(err)
	}
	if got.ID == "" || got.Topic == "" || time.Since(got.Time) > time.Minute {
		t.Errorf("the handler was given %+v", got)
	}
	want := holdfast.Event{ID: "i", Type: "look", Topic: "o", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if _, err := holdfasttest.Handle(t, tx, in, want); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the handler was given %+v, want %+v", got, want)
	}
}

func TestHoldfastTest_HandleFailsTheTestWhereNoHandlerCouldRun(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	pool := setup(t)
	in := newBilling(t, pool)
	in.Handle("ends", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error { return tx.Commit(ctx) })
	handle := func(e holdfast.Event) func(testing.TB) {
		return func(t testing.TB) { _, _ = holdfasttest.Handle(t, holdfasttest.Begin(t, pool), in, e) }
	}
	wantFailure(t, handle(holdfast.Event{Type: "order.plcaed"}), `Type "order.plcaed"`, "no handler", `["ends" "order.placed"]`)
	wantFailure(t, handle(holdfast.Event{Type: "order.placed", Key: "\xff"}), "key", "UTF-8")
	if _, err := holdfasttest.Handle(t, holdfasttest.Begin(t, pool), in, holdfast.Event{Type: "ends"}); err == nil || !strings.Contains(err.Error(), "holdfast ends the handler's transaction itself") {
		t.Errorf("a handler that committed was told %v", err)
	}
	wantFailure(t, func(v testing.TB) {
		tx := holdfasttest.Begin(v, pool)
		pgtest.Exec(t, tx, "drop schema holdfast cascade")
		_, _ = holdfasttest.Handle(v, tx, in, placed("k", "{}"))
	}, "42P01")
}

func TestHoldfastTest_ADatabaseIsFreshMigratedAndGoneAfterItsTest(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	server := pgtest.New(t)
	var names []string
	t.Run("a test", func(t *testing.T) {
		for range 2 {
			pool := holdfasttest.Database(t, server.DSN)
			if err := holdfast.Check(t.Context(), pool, holdfast.SchemaConfig{}); err != nil {
				t.Error(err)
			}
			if n := pgtest.Count(t, pool, "select count(*) from holdfast.event"); n != 0 {
				t.Errorf("it begins with %d events", n)
			}
			tx := holdfasttest.Begin(t, pool)
			write(t, tx, placed("k", "{}"))
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			names = append(names, pool.Config().ConnConfig.Database)
		}
	})
	if n := pgtest.Count(t, server, "select count(*) from pg_database where datname = any($1)", names); n != 0 || len(names) != 2 {
		t.Errorf("%d of the databases %q are left", n, names)
	}
}

func TestHoldfastTest_DatabaseSaysWhatIsWrongWithTheAddressAndNotThePassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                                     "url is empty: it must be the address of a database server",
		"postgres://x:secret@127.0.0.1:notnum": "read url of the database server",
		"postgres://x:secret@127.0.0.1:1/x":    "create the test's database",
	} {
		v := ending.Of(t, func(t testing.TB) { holdfasttest.Database(t, url) })
		if !strings.Contains(v.Failed, want) || strings.Contains(v.Failed, "secret") {
			t.Errorf("%q: the test ends with %q, want %q", url, v.Failed, want)
		}
	}
}

func TestHoldfastTest_ATestsTransactionThatCannotBeginFailsTheTest(t *testing.T) {
	pool := setup(t)
	var noContext errorTB
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	noContext.ctx = ctx
	wantFailure(t, func(v testing.TB) {
		noContext.TB = v
		holdfasttest.Begin(&noContext, pool)
	}, "begin the test's transaction", context.Canceled.Error())
}

// errorTB has a context of its own.
type errorTB struct {
	testing.TB
	ctx context.Context
}

func (e *errorTB) Context() context.Context { return e.ctx }

func TestHoldfastTest_ItLinksNothingThatStartsServersAndNoAssertions(t *testing.T) {
	t.Parallel()
	const module = "github.com/holdfast-go/holdfast"
	deps := func(pkg string) map[string]bool {
		out, err := run(t, "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]bool{}
		for _, dep := range strings.Fields(out) {
			all[dep] = true
		}
		return all
	}
	anyway := deps(module + "/relay")
	maps.Copy(anyway, deps(module+"/inbox"))
	anyway[module+"/inbox/sourcetest"] = true
	for dep := range deps(module + "/holdfasttest") {
		if !anyway[dep] && dep != module+"/holdfasttest" {
			t.Errorf("it links %s, which neither inbox nor relay does", dep)
		}
	}
}

func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return string(out), err
}

func TestHoldfastTest_TheExampleHolds(t *testing.T) {
	t.Setenv("TEST_DATABASE_URL", pgtest.New(t).DSN)
	t.Run("one event", anOrderIsInvoiced)
	t.Run("all parts", aStoredOrderIsInvoiced)
}

func TestHoldfastTest_TheCodeOfThePackageCommentIsThatOfTheExample(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	comment, _, _ := strings.Cut(read("holdfasttest.go"), "package holdfasttest")
	example := map[string]bool{}
	for line := range strings.Lines(read("example_test.go")) {
		example[strings.Join(strings.Fields(line), " ")] = true
	}
	lines := 0
	for line := range strings.Lines(comment) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			if lines++; !example[strings.Join(strings.Fields(code), " ")] {
				t.Errorf("example_test.go does not have the line: %s", code)
			}
		}
	}
	if lines < 5 {
		t.Errorf("the package comment has %d lines of code", lines)
	}
}
