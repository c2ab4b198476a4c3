package idempotency

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/retry"
)

// R46.
func TestConfig_EveryProblemOfAConfigurationIsReportedAtOnce(t *testing.T) {
	b := setup(t)
	_, err := New(b.db.Pool, Config{
		Schema: "No", Headers: []string{"a b"}, TTL: time.Millisecond, MaxRetryWindow: time.Hour, MismatchStatus: 418, Wait: -1, Timeout: 2 * time.Hour,
		AcquireTimeout: -1, MaxRequest: -1, KeepExpired: -1, CleanupEvery: -1, CleanupBatch: -1,
		KeepUnfinished: -1, CompleteEvery: -1, Completers: -1, Completion: retry.Policy{Attempts: -2},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"schema is", "principal is nil", `header is "a b"`, "ttl is 1ms: it must", "max retry window, 1h", "mismatch status is 418", "wait is", "timeout is 2h",
		"acquire timeout is", "max request is -1", "keep expired is", "cleanup every is", "cleanup batch is",
		"keep unfinished is", "complete every is", "completers is", "completion attempts is -2"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not reported: %v", part, err)
		}
	}
	if _, err := New(nil, Config{}); err == nil {
		t.Error("no pool is no problem")
	}
}

// One form for every problem: field, value, rule.
func TestConfig_EveryProblemNamesFieldValueAndRule(t *testing.T) {
	form := regexp.MustCompile(`^(idempotency config: )?[a-z][a-z ]* is [^:]*: it must `)
	problems := func(err error) []string {
		if err == nil {
			t.Error("a bad configuration is accepted")
			return nil
		}
		return strings.Split(err.Error(), "\n")
	}
	_, noPool := New(nil, Config{})
	_, noStore := NewEphemeral(nil, Config{})
	_, all := newGuard(Config{
		Schema: "No", Headers: []string{"a b"}, TTL: time.Millisecond, MaxRetryWindow: time.Hour, MismatchStatus: 418, Wait: -1, Timeout: 2 * time.Hour,
		AcquireTimeout: -1, MaxRequest: -1, MaxResponse: -1, MaxAnswer: -2, MaxKeys: -1, KeepExpired: -1, CleanupEvery: -1, CleanupBatch: -1,
		KeepUnfinished: -1, CompleteEvery: -1, Completers: -1, Completion: retry.Policy{Attempts: -2, Base: -1, Cap: -1, Budget: -2},
	})
	route := Route{
		Complete: func(r *http.Request, _ Info) *http.Request { return r }, CompleteHeaders: []string{"cookie"}, Methods: []string{"GET", "post"},
		Scope: "mine", IgnoreFields: []string{"sent_at"}, ReplayHeaders: []string{"set-cookie"}, Isolation: pgx.ReadUncommitted,
	}
	c := Config{}.withDefaults()
	found := slices.Concat(problems(noPool), problems(noStore), problems(all), problems(route.of(c).validate(c)),
		problems(Route{Lease: time.Millisecond, Operation: strings.Repeat("o", maxOperation+1)}.of(c).validate(c)), problems(Route{Scope: ScopeOperation}.of(c).validate(c)))
	if len(found) < 34 {
		t.Errorf("%d problems: some configurations are accepted: %q", len(found), found)
	}
	for _, problem := range found {
		if !form.MatchString(problem) {
			t.Errorf("%q: want the form of %q", problem, "wait is -1s: it must be at least 0s")
		}
	}
}

// R46.
func TestConfig_ATTLBelowTheRetryWindowIsRefusedForARouteToo(t *testing.T) {
	b := setup(t)
	g := b.guard(func(c *Config) { c.MaxRetryWindow = 12 * time.Hour })
	for name, o := range map[string]Route{
		"ttl is 1h":     {TTL: time.Hour},
		"method is":     {Methods: []string{"GET"}},
		"operation is":  {Scope: ScopeOperation},
		"scope is":      {Scope: "mine"},
		"ignore field":  {IgnoreFields: []string{"sent_at"}},
		"replay header": {ReplayHeaders: []string{"set-cookie"}},
		"isolation is":  {Isolation: pgx.ReadUncommitted},

		"lease is 1ms":                  {Lease: time.Millisecond},
		"lease is 2h":                   {Lease: 2 * time.Hour},
		"lease is 0":                    {Complete: asItIs, Operation: "sell"},
		"with complete":                 {Complete: asItIs, Lease: time.Minute},
		`complete header is "cookie"`:   {Lease: time.Minute, CompleteHeaders: []string{"cookie"}},
		"complete is set on two routes": {Lease: time.Minute, Complete: asItIs, Operation: "twice"},
	} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !strings.Contains(err.Error(), name) {
					t.Errorf("%s: got %v", name, err)
				}
			}()
			for range 2 {
				g.Route(o)(http.NotFoundHandler())
			}
		}()
	}
}

// R36.
func TestConfig_TheIdempotentRoutesCanBeListed(t *testing.T) {
	b := setup(t)
	g := b.guard()
	mux := http.NewServeMux()
	mux.Handle("POST /charges", g.Middleware(http.HandlerFunc(b.charge)))
	mux.Handle("/refunds", g.Route(Route{Operation: "refund", Optional: true, TTL: time.Hour, Methods: []string{"POST", "DELETE"}, Lease: time.Minute})(http.HandlerFunc(b.charge)))
	b.is(b.send(mux, sent{key: "k"}), 201, "")
	routes := g.Routes()
	if len(routes) != 2 || len(routes[0].Operations) != 1 || routes[0].Operations[0] != "POST /charges" || !routes[0].Required || routes[0].TTL != defaultTTL ||
		routes[1].Operations[0] != "refund" || routes[1].Required || routes[1].TTL != time.Hour || len(routes[1].Methods) != 2 || routes[0].Lease != 0 || routes[1].Lease != time.Minute {
		t.Errorf("got %+v", routes)
	}
}

// C5, C6.
func TestConfig_DecisionsAboutAnswers(t *testing.T) {
	for _, c := range []struct {
		c    answerFacts
		want disposition
	}{
		{answerFacts{status: 200}, keepAll}, {answerFacts{status: 303}, keepAll}, {answerFacts{status: 201, doNotStore: true}, keepAll},
		{answerFacts{status: 402}, keepAnswer}, {answerFacts{status: 409}, keepNone}, {answerFacts{status: 409, commitOnError: true}, keepAll}, {answerFacts{status: 402, commitOnError: true}, keepAll},
		{answerFacts{status: 422, doNotStore: true}, keepNone}, {answerFacts{status: 422, doNotStore: true, commitOnError: true}, keepNone},
		{answerFacts{status: 401}, keepNone}, {answerFacts{status: 403}, keepNone}, {answerFacts{status: 408}, keepNone}, {answerFacts{status: 425}, keepNone},
		{answerFacts{status: 500}, keepNone}, {answerFacts{status: 503, commitOnError: true}, keepNone},
	} {
		if got := decide(c.c, storeStatus); got != c.want {
			t.Errorf("%+v: got %v, want %v", c.c, got, c.want)
		}
	}
	for status := 400; status < 500; status++ {
		if got, want := decide(answerFacts{status: status}, storeStatus) == keepAnswer, status == 402; got != want {
			t.Errorf("%d: kept is %v", status, got)
		}
	}
	for _, status := range []int{500, 501, 599} { // A route cannot keep what has failed: its effect is gone.
		if got := decide(answerFacts{status: status}, func(int) bool { return true }); got != keepNone {
			t.Errorf("%d on a route that stores everything: got %v, want %v", status, got, keepNone)
		}
	}
}

// R45.
func TestConfig_BudgetsOfClients(t *testing.T) {
	for value, want := range map[string]time.Duration{"2": 2 * time.Second, "0.2": 200 * time.Millisecond, "1500ms": 1500 * time.Millisecond, "": 0, "-1": 0, "0": 0, "soon": 0, "1e99": 0, "NaN": 0, "Inf": 0} {
		if got, ok := budgetOf(value); got != want || ok != (want > 0) {
			t.Errorf("%q: got %v, %v", value, got, ok)
		}
	}
}
