package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/idempotency"
)

const (
	requestOverhead = "HTTP requests with an idempotency key against without"
	requestByHand   = "HTTP requests with a key against a hand-written table of keys"
	requestReplays  = "HTTP replays against requests with a key"
	requestRepeats  = "HTTP, effects of 10,000 concurrent requests with one key"
	requestClients  = 16
	orderPlaced     = `{"status": "placed"}`
	requestBody     = `{"customer": 4711, "items": [{"sku": "teapot", "count": 1}]}`
)

var requestFigures = []string{requestOverhead, requestByHand, requestReplays, requestRepeats, costRequest}

// shop answers requests: plain commits an order as any handler would, guarded writes it through the middleware, and byHand keeps
// the keys in a table of its own.
type shop struct {
	plain, guarded, byHand http.Handler
}

func newShop(pool *pgxpool.Pool) (*shop, error) {
	guard, err := idempotency.New(pool, idempotency.Config{
		Principal: func(*http.Request) (string, error) { return "bench", nil },
		Wait:      time.Minute,                                    // a client that repeats a request wants its answer, not a 409
		Logger:    slog.New(slog.NewJSONHandler(io.Discard, nil)), // replays are logged, and that is part of their cost
	})
	if err != nil {
		return nil, err
	}
	placed := func(w http.ResponseWriter, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(orderPlaced))
	}
	insert := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, businessInsert, 4711, requestBody)
		return err
	}
	return &shop{
		plain: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			placed(w, pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error { return insert(r.Context(), tx) }))
		}),
		guarded: guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			placed(w, insert(r.Context(), idempotency.Tx(r.Context())))
		})),
		byHand: handwrittenOrders(pool, insert),
	}, nil
}

// post sends one request into a handler, without a network, whose cost is no part of the comparison.
func post(ctx context.Context, h http.Handler, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(requestBody))
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// measureRequests lets 16 clients post orders, in turns to a plain handler, to one with a hand-written table of keys, and through
// the middleware, with new keys and with those that were answered already.
func measureRequests(ctx context.Context, e *env, r *report) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	pool, err := e.pool(ctx, database, requestClients)
	if err != nil {
		return err
	}
	defer pool.Close()
	for _, schema := range []string{businessSchema, handwrittenKeys} {
		if _, err := pool.Exec(ctx, schema); err != nil {
			return fmt.Errorf("create the tables of orders and keys: %w", err)
		}
	}
	s, err := newShop(pool)
	if err != nil {
		return err
	}
	answered := make([]string, 1000)
	for i := range answered {
		answered[i] = uuid.NewString()
		if w := post(ctx, s.guarded, answered[i]); w.Code != http.StatusCreated {
			return fmt.Errorf("place an order: %d %s", w.Code, w.Body)
		}
	}
	type way struct {
		h      http.Handler
		key    func(n int) string
		status string // what Idempotency-Status must say
		samples
	}
	plain := &way{h: s.plain, key: func(int) string { return "" }}
	created := &way{
		h:      s.guarded,
		key:    func(int) string { return uuid.NewString() },
		status: "stored",
	}
	byHand := &way{h: s.byHand, key: func(int) string { return uuid.NewString() }, status: "stored"}
	replayed := &way{
		h:      s.guarded,
		key:    func(n int) string { return answered[n%len(answered)] },
		status: "replayed",
	}
	ways := []*way{plain, created, byHand, replayed}
	for round := range 2*e.rounds + 1 { // the first one warms up
		slices.Reverse(ways)
		for _, way := range ways {
			before := e.spent()
			speed, err := requestsFor(ctx, e.producer, func(n int) error {
				w := post(ctx, way.h, way.key(n))
				if got := w.Header().Get("Idempotency-Status"); w.Code != http.StatusCreated || got != way.status {
					return fmt.Errorf("a request was answered %d, %q, want 201, %q: %s", w.Code, got, way.status, w.Body)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if round > 0 {
				self, postgres := e.spent().since(before, int(speed*e.producer.Seconds()))
				way.add(speed, self, postgres)
			}
		}
		if round > 0 {
			r.progress("requests %d/%d: without a key %s, with one %s, by hand %s, replays %s a second", round, 2*e.rounds,
				number(plain.speed[round-1]), number(created.speed[round-1]), number(byHand.speed[round-1]), number(replayed.speed[round-1]))
		}
	}
	r.info("HTTP requests without a key, a transaction of one insert", median(plain.speed), "requests/s")
	r.info("HTTP requests with a key", median(created.speed), "requests/s")
	r.info("HTTP requests with a key, hand-written", median(byHand.speed), "requests/s")
	r.info("HTTP replays", median(replayed.speed), "requests/s")
	if e.master != 0 {
		r.info("HTTP requests without a key: CPU time of Postgres", median(plain.postgres), "µs a request")
		r.info("HTTP requests with a key: CPU time of Postgres", median(created.postgres), "µs a request")
		r.info("HTTP requests with a key, hand-written: CPU time of Postgres", median(byHand.postgres), "µs a request")
		r.info("HTTP requests with a key: CPU time of the process", median(created.self), "µs a request")
	}
	r.cost(costRequest, created.samples, byHand.samples)
	r.ratio(requestOverhead, created.speed, plain.speed, "requests/s", noGoal)
	r.ratio(requestByHand, created.speed, byHand.speed, "requests/s", atLeast(1))
	r.ratio(requestReplays, replayed.speed, created.speed, "requests/s", atLeast(3))
	return measureRepeats(ctx, pool, s, r)
}

// requestsFor returns the requests a second of 16 clients.
func requestsFor(ctx context.Context, span time.Duration, do func(n int) error) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sent atomic.Int64
	began := time.Now()
	var group sync.WaitGroup
	for range requestClients {
		group.Go(func() {
			for time.Since(began) < span && ctx.Err() == nil {
				if err := do(int(sent.Add(1))); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	group.Wait()
	return float64(sent.Load()) / time.Since(began).Seconds(), context.Cause(ctx)
}

// measureRepeats sends one request 10,000 times at once: one takes effect, and all get its answer.
func measureRepeats(ctx context.Context, pool *pgxpool.Pool, s *shop, r *report) error {
	const repeats = 10_000
	var before, after int64
	if err := pool.QueryRow(ctx, "select count(*) from orders").Scan(&before); err != nil {
		return fmt.Errorf("count orders: %w", err)
	}
	key := uuid.NewString()
	var answers [2]atomic.Int64 // the first one's, and replays of it
	var other atomic.Pointer[string]
	begin := make(chan struct{})
	var group sync.WaitGroup
	for range repeats {
		group.Go(func() {
			<-begin
			w := post(ctx, s.guarded, key)
			switch status := w.Header().Get("Idempotency-Status"); {
			case w.Code == http.StatusCreated && status == "stored":
				answers[0].Add(1)
			case w.Code == http.StatusCreated && status == "replayed":
				answers[1].Add(1)
			default:
				said := fmt.Sprint(w.Code, " ", w.Body)
				other.Store(&said)
			}
		})
	}
	began := time.Now()
	close(begin)
	group.Wait()
	took := time.Since(began)
	if err := pool.QueryRow(ctx, "select count(*) from orders").Scan(&after); err != nil {
		return fmt.Errorf("count orders: %w", err)
	}
	if said := other.Load(); said != nil {
		r.note("Of %d concurrent requests with one key %d got another answer than the order's, such as %s", repeats, repeats-answers[0].Load()-answers[1].Load(), *said)
	}
	r.goal(requestRepeats, float64(after-before), "", exactly(1))
	r.info("HTTP, 10,000 concurrent requests with one key: answers stored and replayed", float64(answers[0].Load()+answers[1].Load()), "")
	r.info("HTTP, 10,000 concurrent requests with one key: until the last answer", took.Seconds(), "s")
	return nil
}
