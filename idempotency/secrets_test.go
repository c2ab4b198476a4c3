package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A path that no router names may have a token in it: "/reset/9f8e…".
func TestSecrets_APathThatNobodyNamesIsLoggedByItsHash(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	log := &logtest.Log{}
	g := b.guard(func(c *Config) {
		c.OperationFunc = func(*http.Request) string { return "" }
		c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	h := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated) }))
	b.is(b.send(h, sent{key: "k", path: "/reset/CANARY-9f8e?code=CANARY"}), 201, "")
	text := log.Take()
	if strings.Contains(text, "CANARY") {
		t.Errorf("the log says %s", text)
	}
	var operation string
	// As docs/operations/idempotency.md finds the row of a line.
	if err := b.db.QueryRow(t.Context(), "select left(encode(sha256(convert_to(operation, 'UTF8')), 'hex'), 16) from holdfast.idempotency").Scan(&operation); err != nil {
		t.Fatal(err)
	}
	if lines := logtest.Lines[map[string]any](t, text); len(lines) != 1 || lines[0]["operation"] != "POST sha256:"+operation {
		t.Errorf("got %v, want the operation POST sha256:%s", lines, operation)
	}
}

func TestSecrets_APanicOfACompletedRequestIsLoggedByItsType(t *testing.T) {
	for name, c := range map[string]struct {
		complete func(r *http.Request, _ Info) *http.Request
		want     string
	}{
		"of the handler":       {asItIs, `"panic":"*errors.errorString"`},
		"of Route.Complete":    {func(*http.Request, Info) *http.Request { panic("no CANARY") }, "Route.Complete panicked: a string at github.com/holdfast-go/holdfast/idempotency.TestSecrets_APanicOfACompletedRequest"},
		"of the runtime there": {func(*http.Request, Info) *http.Request { var r *http.Request; return r.WithContext(r.Context()) }, "Route.Complete panicked: a runtime.errorString at "},
	} {
		t.Run(name, func(t *testing.T) {
			b := openTill(t)
			log := &logtest.Log{}
			g := b.guard(soon(10), func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
			b.abandonAt(g, "after the call", completed(func(o *Route) { o.Complete = c.complete }))
			b.at = func(string, *http.Request) error { panic(errors.New("no CANARY")) }
			b.lapse()
			pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()")
			if _, err := g.CompleteOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if text := log.Take(); strings.Contains(text, "CANARY") || !strings.Contains(text, c.want) {
				t.Errorf("the log says %s, want %s", text, c.want)
			}
		})
	}
}

// A query may have a credential in it. And without one of its parameters the request would be another one.
func TestSecrets_ARequestIsOnlyStoredIfItsQueryIsNamed(t *testing.T) {
	for query, stored := range map[string]int64{"": 1, "?": 1, "?currency=EUR": 1, "?currency=EUR&currency=CHF&lang=de": 1, "?currency=EUR&access_token=CANARY": 0, "?CANARY": 0, "?currency=%zz": 1, "?%zz=1": 0} {
		t.Run(query, func(t *testing.T) {
			b := openTill(t)
			log := &logtest.Log{}
			g := b.guard(func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
			b.abandon(g, "before the call", sent{key: "k", path: "/charges" + query}, completed(func(o *Route) { o.CompleteQuery = []string{"currency", "lang"} }))
			if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request"); n != stored {
				t.Errorf("%d requests are stored, want %d", n, stored)
			}
			if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'pending'"); n != 1 {
				t.Errorf("%d keys are pending, want 1", n)
			}
			text := log.Take()
			if strings.Contains(text, "CANARY") || strings.Contains(text, "request not stored") != (stored == 0) {
				t.Errorf("the log says %s", text)
			}
			if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request r where r::text like '%CANARY%'"); n != 0 {
				t.Error("the canary is stored")
			}
		})
	}
}

func TestSecrets_ARouteNamesItsParameters(t *testing.T) {
	for _, name := range []string{"access_token", "Signature", ""} {
		err := completed(func(o *Route) { o.CompleteQuery = []string{name} }).of(Config{}.withDefaults()).validate(Config{}.withDefaults())
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("complete query is %q: it must be", name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
