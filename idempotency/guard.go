package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/quiet"
)

// Guard makes routes idempotent. Many goroutines and many processes may use it at once.
type Guard struct {
	pool    *pgxpool.Pool // nil after NewEphemeral
	store   store.Store   // for routes in lease mode
	c       Config
	sql     statements
	random  func() float64
	waiters waiters
	keys    keyCounts

	mu     sync.Mutex
	routes []*route
}

// New makes a Guard on a pool that connects to the primary. On a replica that lags, a repeat would run again. The error
// lists every problem of the configuration. Call Run on at least one node. Each guarded request that runs holds one
// connection, so size the pool for them.
func New(pool *pgxpool.Pool, c Config) (*Guard, error) {
	if pool == nil {
		return nil, errors.New("idempotency config: pool is nil: it must be connected to the primary")
	}
	g, err := newGuard(c)
	if err != nil {
		return nil, fmt.Errorf("idempotency config: %w", err)
	}
	g.pool = pool
	g.store = g.pg()
	return g, nil
}

func newGuard(c Config) (*Guard, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Guard{c: c, sql: newStatements(c.Schema), random: mathrand.Float64}, nil
}

// Middleware guards next with the settings of Config.
func (g *Guard) Middleware(next http.Handler) http.Handler { return g.Route(Route{})(next) }

// Route makes the middleware for routes whose settings differ from Config. Call it when you set up the routes: like
// http.ServeMux.Handle it panics when o is wrong, and the panic lists every problem. Put it inside the middleware that
// authenticates, limits and compresses. Put it outside anything with a time limit of its own (http.TimeoutHandler).
func (g *Guard) Route(o Route) func(http.Handler) http.Handler {
	o = o.of(g.c)
	err := o.validate(g.c)
	if g.pool == nil {
		o.Lease = cmp.Or(o.Lease, defaultLease)
		if o.Complete != nil {
			err = errors.Join(err, errors.New("complete is set: it must be nil with NewEphemeral: only Postgres stores requests, so make the guard with New"))
		}
	}
	if err != nil {
		panic(fmt.Errorf("idempotent route %q: %w", o.Operation, err))
	}
	return func(next http.Handler) http.Handler {
		rt := &route{g: g, o: o, next: next, seen: map[string]bool{}}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, other := range g.routes {
			if o.Complete != nil && other.o.Complete != nil && other.o.Operation == o.Operation {
				panic(fmt.Errorf("idempotent route %q: complete is set on two routes: it must be set on one route of an operation, which runs the operation's requests again", o.Operation))
			}
		}
		g.routes = append(g.routes, rt)
		return rt
	}
}

// RouteInfo describes one idempotent route, for lists and runbooks.
type RouteInfo struct {
	Operations []string // Route.Operation; else the patterns, and paths without a pattern, of requests so far: keep it from strangers if paths have tokens
	Methods    []string
	Required   bool // requests must have a key
	Scope      Scope
	TTL        time.Duration
	Lease      time.Duration // 0 in transaction mode
}

// MarshalJSON writes durations as time.Duration.String does: "24h0m0s".
func (i RouteInfo) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Operations []string `json:"operations"`
		Methods    []string `json:"methods"`
		Required   bool     `json:"required"`
		Scope      Scope    `json:"scope"`
		TTL        string   `json:"ttl"`
		Lease      string   `json:"lease,omitempty"`
	}{i.Operations, i.Methods, i.Required, i.Scope, i.TTL.String(), leaseText(i.Lease)})
}

func leaseText(lease time.Duration) string {
	if lease == 0 {
		return ""
	}
	return lease.String()
}

// Routes lists the guarded routes in the order in which they were set up.
func (g *Guard) Routes() []RouteInfo {
	g.mu.Lock()
	routes := slices.Clone(g.routes)
	g.mu.Unlock()
	infos := make([]RouteInfo, len(routes))
	for i, rt := range routes {
		infos[i] = RouteInfo{
			Operations: rt.operations(),
			Methods:    slices.Clone(rt.o.Methods),
			Required:   !rt.o.Optional,
			Scope:      rt.o.Scope,
			TTL:        rt.o.TTL,
			Lease:      rt.o.Lease,
		}
	}
	return infos
}

// route is one guarded handler.
type route struct {
	g    *Guard
	o    Route
	next http.Handler

	// repeats is how many more requests are looked up before their transaction begins: repeats often come in groups.
	repeats atomic.Int32

	unkept  quiet.Limiter // of requests that are not stored
	failing quiet.Limiter // of handlers that answer 5xx

	mu   sync.Mutex
	seen map[string]bool // the operations
}

// lookFirst is how many requests after a repeat are looked up before their transaction begins. The lookup costs a new
// request one round trip. Without it, a repeat begins a transaction only to find its answer there.
const lookFirst = 16

var errGuardedTwice = errors.New("the request is guarded twice: guard its route with one middleware only")

// maxSeen bounds the list of operations where no router names them.
const maxSeen = 1000

// see notes an operation that a router names, or whose handler was done with a request. Paths that nobody serves are none.
func (rt *route) see(name string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if len(rt.seen) < maxSeen {
		rt.seen[name] = true
	}
}

func (rt *route) operations() []string {
	if rt.o.Operation != "" {
		return []string{rt.o.Operation}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var names []string
	for name := range rt.seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (rt *route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// net/http takes methods in any case, and a handler without a method in its pattern runs for "post" as well.
	if !slices.ContainsFunc(rt.o.Methods, func(m string) bool { return strings.EqualFold(m, r.Method) }) {
		rt.next.ServeHTTP(w, r)
		return
	}
	req, ended := &request{Request: r, begun: time.Now()}, func() {}
	defer func() { ended() }()
	defer rt.notify(req, Outcome{Result: Forgotten}) // if a function of the route panics
	req.info.Operation, req.route = rt.operation(r)
	r, ended = rt.requested(r, req.route, false)
	req.Request = r
	p := rt.read(w, req)
	if outer := handlingOf(r.Context()); p == nil && outer != nil && outer.rt.g == rt.g && outer.info.Key != "" && outer.lock == req.lock {
		req.err = errGuardedTwice // The inner one would wait for the outer one.
		p = &handlerFault
	}
	switch {
	case p == nil:
	case p.code == codeStoreUnavailable:
		rt.refuse(w, req, *p, Unavailable)
		return
	case p.status >= http.StatusInternalServerError: // The service is at fault, not the client.
		rt.refuse(w, req, *p, Forgotten)
		return
	default:
		rt.refuse(w, req, *p, Refused)
		return
	}
	if !req.until.IsZero() {
		ctx, cancel := context.WithDeadline(r.Context(), req.until)
		defer cancel()
		req.Request = r.WithContext(ctx)
	}
	switch {
	case req.info.Key != "":
		rt.serve(w, req)
	case rt.o.Lease > 0:
		rt.withoutKey(w, req)
	default:
		rt.run(w, req)
	}
}

// serve answers a request that has a key, with the stored answer or by running the handler.
func (rt *route) serve(w http.ResponseWriter, req *request) {
	answer := rt.await
	if rt.o.Wait == 0 {
		answer = func(w http.ResponseWriter, req *request) bool { return rt.look(w, req, true) }
	}
	if !answer(w, req) { // Another request with this key is running.
		rt.inUse(w, req)
	}
}

// inTransaction answers a request on a route without a lease. It returns false if another request has the key. That may
// be a request on a node where the route has a lease; this one never runs at the same time or afterwards.
func (rt *route) inTransaction(w http.ResponseWriter, req *request) (answered bool) {
	if rt.repeats.Load() > 0 {
		if f := rt.known(w, req); f != foundNothing {
			return f != foundPending
		}
	}
	if rt.run(w, req) {
		return true
	}
	f := rt.known(w, req) // The other request may have ended in the meantime.
	return f != foundNothing && f != foundPending
}

// known answers a request if its key's row determines the answer. It does not answer on foundNothing and foundPending.
func (rt *route) known(w http.ResponseWriter, req *request) found {
	s, err := rt.g.lookup(req.Context(), rt.g.pool, req.key())
	if err != nil {
		rt.unavailable(w, req, err)
		return foundUnusable
	}
	return rt.answerBy(w, req, s)
}

// answerBy answers from a row, unless that is foundNothing or foundPending.
func (rt *route) answerBy(w http.ResponseWriter, req *request, s *stored) found {
	req.adopt(s)
	f := foundOf(s, req.fingerprint)
	switch f {
	case foundAnswer:
		rt.replay(w, req, s)
	case foundOther:
		req.differs = differing(s.Fingerprint, req.fingerprint[1:])
		p := payloadMismatch
		p.status = rt.o.MismatchStatus
		rt.refuse(w, req, p, Conflict)
	case foundUnusable:
		rt.unusable(w, req, fmt.Errorf("state %q, status %d, fingerprint version %d", s.State, s.Answer.Status, s.Version))
	case foundNothing:
		req.expired = s != nil
	case foundPending:
		req.taken = true
	}
	if f == foundAnswer || f == foundOther && s.State != statePending {
		req.final = s
	}
	return f
}

// spread is the delay before the n-th try of a statement: 20 ms at first, up to 250 ms, half of it random.
func spread(n int, random float64) time.Duration {
	most := min(20*time.Millisecond<<min(n-1, 10), 250*time.Millisecond)
	return most/2 + time.Duration(random*float64(most/2))
}
