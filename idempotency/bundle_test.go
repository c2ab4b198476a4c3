package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestMain(m *testing.M) {
	if os.Getenv(endingTarget) != "" {
		runEnding()
	}
	os.Exit(pgtest.Main(m))
}

// bundle is what a test has: its own database, a guard, and a service with POST /charges, which writes one row and one
// event, and answers with the row.
type bundle struct {
	*testing.T
	db     *pgtest.DB   // by the test's door: see door_test.go
	server *pgtest.DB   // the same database, without anything between
	runs   atomic.Int64 // of the handler

	mu       sync.Mutex
	observed []Outcome
}

// shop is the schema and the tables of the handlers.
var shop = pgtest.Model{Fill: func(ctx context.Context, pool *pgxpool.Pool) error {
	if err := holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{}); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `create table charge (id bigint generated always as identity, amount text, reference text unique);
		create table payment (charge bigint unique, provider text)`)
	return err
}}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	server := shop.New(t)
	db := server
	if mode, pooled := doorOf(t); pooled {
		db = throughBouncer(t, server, mode)
	}
	return &bundle{T: t, db: db, server: server}
}

// config takes the principal from a header, as only a test may.
func (b *bundle) config(change ...func(*Config)) Config {
	c := Config{
		Principal:      func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		AcquireTimeout: time.Minute, // so that no request is turned away because a machine is busy
		Logger:         slog.New(slog.DiscardHandler),
		Observer: Observer{OnOutcome: func(_ context.Context, o Outcome) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.observed = append(b.observed, o)
		}},
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func (b *bundle) results() []Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	results := make([]Result, len(b.observed))
	for i, o := range b.observed {
		results[i] = o.Result
	}
	return results
}

func (b *bundle) guardOn(pool *pgxpool.Pool, change ...func(*Config)) *Guard {
	b.Helper()
	g, err := New(pool, b.config(change...))
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func (b *bundle) guard(change ...func(*Config)) *Guard { return b.guardOn(b.db.Pool, change...) }

// charge is the handler: a row, an event, and 201 with the row.
func (b *bundle) charge(w http.ResponseWriter, r *http.Request) {
	b.runs.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	id, err := insertCharge(r.Context(), string(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Location", fmt.Sprintf("/charges/%d", id))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "{\"id\": %d}\n", id)
}

func insertCharge(ctx context.Context, amount string) (id int64, err error) {
	tx := Tx(ctx)
	if err := tx.QueryRow(ctx, "insert into charge (amount) values ($1) returning id", amount).Scan(&id); err != nil {
		return 0, err
	}
	return id, outbox.Write(ctx, tx, holdfast.Event{Type: "charge.created", Topic: "charges", Key: fmt.Sprint(id), Source: "shop"})
}

// service is POST /charges and the like, guarded.
func (b *bundle) service(g *Guard, handler http.HandlerFunc, route ...Route) http.Handler {
	middleware := g.Middleware
	if len(route) > 0 {
		middleware = g.Route(route[0])
	}
	mux := http.NewServeMux()
	guarded := middleware(handler)
	mux.Handle("/charges", guarded)
	mux.Handle("/orders/{id}", guarded)
	return mux
}

type sent struct {
	method, host, path, account, key string
	body                             string
	header                           http.Header
	ctx                              context.Context
}

// send sends POST /charges {"amount": 10} of account a, or what is said otherwise.
func (b *bundle) send(h http.Handler, s sent) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequestWithContext(cmp.Or(s.ctx, b.Context()), cmp.Or(s.method, http.MethodPost), cmp.Or(s.path, "/charges"), strings.NewReader(cmp.Or(s.body, `{"amount": 10}`)))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Account", cmp.Or(s.account, "a"))
	r.Host = cmp.Or(s.host, r.Host)
	if s.key != "" {
		r.Header.Set("Idempotency-Key", s.key)
	}
	for name, values := range s.header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// is checks an answer's status and, where it is a problem, its code.
func (b *bundle) is(w *httptest.ResponseRecorder, status int, code string) {
	b.Helper()
	if w.Code != status || code != "" && !strings.Contains(w.Body.String(), `"`+code+`"`) {
		b.Fatalf("got %d %s, want %d %s", w.Code, w.Body, status, code)
	}
}

// same checks that two answers are the same to their client: status, body, and the headers that mean something.
func (b *bundle) same(first, second *httptest.ResponseRecorder) {
	b.Helper()
	if first.Code != second.Code || !bytes.Equal(first.Body.Bytes(), second.Body.Bytes()) {
		b.Fatalf("got %d %q, then %d %q", first.Code, first.Body, second.Code, second.Body)
	}
	for _, name := range replayHeaders {
		if fmt.Sprint(first.Header()[name]) != fmt.Sprint(second.Header()[name]) {
			b.Fatalf("%s was %q, then %q", name, first.Header()[name], second.Header()[name])
		}
	}
}

// kept checks how many charges, events and keys there are.
func (b *bundle) kept(charges, events, keys int64) {
	b.Helper()
	c, e, k := pgtest.Count(b, b.db, "select count(*) from charge"), pgtest.Count(b, b.db, "select count(*) from holdfast.event"),
		pgtest.Count(b, b.db, "select count(*) from holdfast.idempotency")
	if c != charges || e != events || k != keys {
		b.Fatalf("there are %d charges, %d events, %d keys; want %d, %d, %d", c, e, k, charges, events, keys)
	}
}

func readAll(t *testing.T, res *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// pool is another pool to the test's database.
func (b *bundle) pool(connections int32) *pgxpool.Pool {
	b.Helper()
	return b.db.PoolOf(b, connections)
}

func (b *bundle) poolOf(config *pgxpool.Config) *pgxpool.Pool {
	b.Helper()
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

// traced is a pool whose statements a tracer sees first.
func (b *bundle) traced(tracer pgx.QueryTracer) *pgxpool.Pool {
	b.Helper()
	config := b.db.Config().Copy()
	config.ConnConfig.Tracer = tracer
	return b.poolOf(config)
}

// problemOf is an answer's problem.
func problemOf(t *testing.T, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	return p
}

// through gives a request that a test made itself to h.
func (b *bundle) through(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
