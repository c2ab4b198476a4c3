package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// target is a service that faults strike, and what must be there in the end.
type target struct {
	name    string // by which the process of a fault finds it
	points  []point
	service func(t testing.TB, pool *pgxpool.Pool, f *faulty) http.Handler // POST /charges on the pool of a fault
	there   func(n int64)                                                  // checks that there are n effects, each with all that belongs to it
}

// in is the bundle of a subtest that shares its test's database. Those that do run one after another.
func (b *bundle) in(t *testing.T) *bundle { return &bundle{T: t, db: b.db, server: b.server} }

// effects is how many there are by now: of the rows of a table that had the same database before.
func (b *bundle) effects() int64 {
	b.Helper()
	return pgtest.Count(b, b.db, "select count(*) from charge")
}

// strike sends one request with a fault in it to the database of dsn, and then asks until there is an answer. Its
// principal is the test, so that a database serves many.
func (b *bundle) strike(s target, dsn string, p point, what fault) (w *httptest.ResponseRecorder) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	before := b.effects()
	f := &faulty{t: b, point: p, fault: what, admin: b.server.Pool, cancel: cancel}
	h := s.service(b, faultyPool(b, dsn, f), f)
	b.is(b.send(h, sent{key: "warm", account: b.Name()}), 201, "")
	f.armed.Store(true)
	func() {
		defer func() {
			if p := recover(); p != nil && p != "planned" {
				panic(p)
			}
		}()
		w = b.send(h, sent{key: "k", account: b.Name(), ctx: ctx})
	}()
	if !f.struck.Load() {
		b.Fatal("the fault did not happen")
	}
	if w != nil && w.Code != 201 && w.Code != 503 && w.Code != 500 {
		b.Errorf("the first try got %d %s", w.Code, w.Body)
	}
	f.armed.Store(false)
	f.deaf.Store(false)
	b.settle(s, w, before)
	return w
}

// settle asks until there is an answer, and then again: it is the one that the first try got, if that got any, and
// everything is there once, beside what was there before.
func (b *bundle) settle(s target, first *httptest.ResponseRecorder, before int64) {
	b.Helper()
	h := s.service(b, b.pool(4), &faulty{})
	again := sent{key: "k", account: b.Name()}
	var answer *httptest.ResponseRecorder
	wait.Until(b, "a retry has an answer", func() bool {
		answer = b.send(h, again)
		return answer.Code == http.StatusCreated
	})
	b.same(answer, b.send(h, again))
	if first != nil && first.Code == http.StatusCreated {
		b.same(first, answer)
	}
	s.there(before + 2) // with the one that warmed the connection
}

// What a process that ends itself is told, each by a variable of its environment.
const (
	endingTarget   = "HOLDFAST_IDEMPOTENCY_CHILD" // and the point, by its number
	endingDSN      = "HOLDFAST_IDEMPOTENCY_CHILD_DSN"
	endingProvider = "HOLDFAST_IDEMPOTENCY_CHILD_PROVIDER"
	endingAccount  = "HOLDFAST_IDEMPOTENCY_CHILD_ACCOUNT"
)

// ended is the exit code of a process that ended itself where it should.
const ended = 7

// endAt lets a process end at a point of a request with the key k.
func (b *bundle) endAt(s target, point int, env ...string) {
	b.Helper()
	child := exec.CommandContext(b.Context(), os.Args[0])
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", endingTarget, s.name, point), endingDSN+"="+b.db.DSN, endingAccount+"="+b.Name())
	child.Env = append(child.Env, env...)
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != ended {
		b.Fatalf("the process ended otherwise: %v %.300s", err, out)
	}
}

// runEnding is the process that ends itself.
func runEnding() {
	var name string
	var n int
	if _, err := fmt.Sscan(os.Getenv(endingTarget), &name, &n); err != nil {
		panic(err)
	}
	b := &till{bundle: &bundle{}, provider: &provider{Server: &httptest.Server{URL: os.Getenv(endingProvider)}}}
	s := b.charging()
	if name != s.name {
		s = b.selling(func(o *Route) { o.Operation, o.Complete = sellOperation, asItIs })
	}
	f := &faulty{point: s.points[n], fault: fault{"the process ends", func(*faulty) { os.Exit(ended) }}}
	t := &childT{}
	h := s.service(t, faultyPool(t, os.Getenv(endingDSN), f), f)
	for i, key := range []string{"warm", "k"} {
		f.armed.Store(i == 1)
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(`{"amount": 10}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Account", os.Getenv(endingAccount))
		r.Header.Set("Idempotency-Key", key)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	os.Exit(1) // It should not have come this far.
}

// childT is what there is of a test in the process that ends itself.
type childT struct{ testing.TB }

func (*childT) Helper()           {}
func (*childT) Cleanup(func())    {}
func (*childT) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
