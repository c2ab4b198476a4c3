package idempotency

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// provider is a payment provider that charges once for each key, as they do.
type provider struct {
	*httptest.Server
	mu      sync.Mutex
	charges map[string]string // by key
	calls   int
}

func newProvider(t testing.TB) *provider {
	p := &provider{charges: map[string]string{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.calls++
		key := r.Header.Get("Idempotency-Key")
		if p.charges[key] == "" {
			p.charges[key] = fmt.Sprintf("ch_%d", len(p.charges)+1)
		}
		fmt.Fprint(w, p.charges[key])
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) charged() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.charges)
}

// pay asks the provider at an address for a charge.
func pay(ctx context.Context, address, key string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// till is a bundle with POST /charges under a lease: a step that writes a charge and its event, the provider's call, a
// step that notes the payment, and 201 with both.
type till struct {
	*bundle
	provider *provider
	at       func(place string, r *http.Request) error // called at each place of the handler; nil: nothing
}

func openTill(t *testing.T) *till {
	t.Helper()
	return &till{bundle: setup(t), provider: newProvider(t)}
}

const aLease = time.Second // the shortest there is

// sell is the service of a guard, in lease mode or as route says.
func (ti *till) sell(g *Guard, route ...Route) http.Handler {
	o := Route{Lease: aLease}
	if len(route) > 0 {
		o = route[0]
	}
	return ti.service(g, func(w http.ResponseWriter, r *http.Request) {
		ti.runs.Add(1)
		at := func(place string) error {
			if ti.at == nil {
				return nil
			}
			return ti.at(place, r)
		}
		sellCharge(w, r, ti.provider.URL, at)
	}, o)
}

// sellCharge is the handler. An error of at fails it there.
func sellCharge(w http.ResponseWriter, r *http.Request, provider string, at func(place string) error) {
	id, charge, err := sale(r, provider, at)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Location", fmt.Sprintf("/charges/%d", id))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "{\"id\": %d, \"charge\": %q}\n", id, charge)
}

func sale(r *http.Request, provider string, at func(place string) error) (id int64, charge string, err error) {
	ctx := r.Context()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, "", err
	}
	if err := at("begin"); err != nil {
		return 0, "", err
	}
	id, err = Step(ctx, "order", func(ctx context.Context, tx pgx.Tx) (id int64, err error) {
		if err = tx.QueryRow(ctx, "insert into charge (amount) values ($1) returning id", string(body)).Scan(&id); err != nil {
			return 0, err
		}
		if err := at("in order"); err != nil {
			return 0, err
		}
		return id, outbox.Write(ctx, tx, holdfast.Event{Type: "charge.created", Topic: "charges", Key: fmt.Sprint(id), Source: "shop"})
	})
	if err != nil {
		return 0, "", err
	}
	if err := at("before the call"); err != nil {
		return 0, "", err
	}
	if charge, err = pay(ctx, provider, DownstreamKey(ctx, "charge")); err != nil {
		return 0, "", err
	}
	if err := at("after the call"); err != nil {
		return 0, "", err
	}
	_, err = Step(ctx, "paid", func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		_, err := tx.Exec(ctx, "insert into payment (charge, provider) values ($1, $2)", id, charge)
		return struct{}{}, err
	})
	if err != nil {
		return 0, "", err
	}
	return id, charge, at("end")
}

// sold checks that there are n sales, everything of each once, and nothing half done.
func (ti *till) sold(n int64) {
	ti.Helper()
	ti.kept(n, n, n)
	payments := pgtest.Count(ti, ti.db, "select count(*) from payment p join charge c on c.id = p.charge")
	if payments != n || int64(ti.provider.charged()) != n {
		ti.Fatalf("there are %d payments, and the provider charged %d times, want %d", payments, ti.provider.charged(), n)
	}
	steps, requests := pgtest.Count(ti, ti.db, "select count(*) from holdfast.idempotency_step"), pgtest.Count(ti, ti.db, "select count(*) from holdfast.idempotency_request")
	pending := pgtest.Count(ti, ti.db, "select count(*) from holdfast.idempotency where state = 'pending'")
	if steps+requests+pending != 0 {
		ti.Fatalf("%d steps, %d requests and %d pending keys are left", steps, requests, pending)
	}
}

// lapse makes every lease run out.
func (b *bundle) lapse() {
	b.Helper()
	pgtest.Exec(b, b.db, "update holdfast.idempotency set lease_until = clock_timestamp() where lease_until is not null")
}

// abandon begins a request that ends at a place of the handler, without an answer.
func (ti *till) abandon(g *Guard, place string, s sent, route ...Route) {
	ti.Helper()
	ti.at = func(at string, r *http.Request) error {
		if at == place {
			panic("planned")
		}
		return nil
	}
	func() {
		defer func() {
			if p := recover(); p != "planned" {
				ti.Fatalf("it did not end at %s: %v", place, p)
			}
		}()
		ti.send(ti.sell(g, route...), s)
	}()
	ti.at = nil
}

// frozen is a store whose leases are not renewed, as when the process is frozen.
type frozen struct{ store.Store }

func (frozen) Renew(context.Context, store.Key, int64, time.Duration) (bool, error) { return true, nil }

// atOnce sends so many requests with the key k.
func (b *bundle) atOnce(h http.Handler, requests int) []*httptest.ResponseRecorder {
	answers := make([]*httptest.ResponseRecorder, requests)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = b.send(h, sent{key: "k"}) })
	}
	wg.Wait()
	return answers
}

func statusesOf(answers []*httptest.ResponseRecorder) string {
	var b strings.Builder
	for _, w := range answers {
		fmt.Fprintf(&b, "%d ", w.Code)
	}
	return b.String()
}
