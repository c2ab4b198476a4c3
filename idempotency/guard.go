package idempotency

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Guard makes routes idempotent. It may be used by many goroutines, and many processes, at once.
type Guard struct {
	pool   *pgxpool.Pool // nil: NewEphemeral
	store  Store         // of routes in lease mode
	c      Config
	sql    statements
	random func() float64

	mu     sync.Mutex
	routes []*route
}

// New makes a Guard on a pool to the primary: a replica that lags would let a repeat run. It reports every problem of
// the configuration at once. Have Run run on some node, and make room in the pool: each guarded request that runs holds
// one connection.
func New(pool *pgxpool.Pool, c Config) (*Guard, error) {
	if pool == nil {
		return nil, errors.New("configure idempotency: pool is nil")
	}
	g, err := newGuard(c)
	if err != nil {
		return nil, fmt.Errorf("configure idempotency: %w", err)
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

// Middleware guards next by what Config says.
func (g *Guard) Middleware(next http.Handler) http.Handler { return g.Route(Route{})(next) }

// Route makes the middleware of routes that differ from what Config says. Like http.ServeMux.Handle it panics when o is
// wrong, with every problem: it is called when the routes are set up. Put it inside of what authenticates, limits and
// compresses, and outside of anything with a time limit of its own (http.TimeoutHandler).
func (g *Guard) Route(o Route) func(http.Handler) http.Handler {
	o = o.of(g.c)
	err := o.validate(g.c)
	if g.pool == nil {
		o.Lease = or(o.Lease, defaultLease)
		if o.Complete != nil {
			err = errors.Join(err, errors.New("complete is set: requests are kept in Postgres alone, make the guard with New"))
		}
	}
	if err != nil {
		panic(fmt.Errorf("configure idempotent route %q: %w", o.Operation, err))
	}
	return func(next http.Handler) http.Handler {
		rt := &route{g: g, o: o, next: next, seen: map[string]bool{}}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, other := range g.routes {
			if o.Complete != nil && other.o.Complete != nil && other.o.Operation == o.Operation {
				panic(fmt.Errorf("configure idempotent route %q: complete is set for two routes of this operation: it would not be known which one runs a request again", o.Operation))
			}
		}
		g.routes = append(g.routes, rt)
		return rt
	}
}

// RouteInfo is one idempotent route, for lists and runbooks.
type RouteInfo struct {
	Operations []string // Route.Operation, or the patterns that were met so far
	Methods    []string
	Required   bool // a key
	Scope      Scope
	TTL        time.Duration
	Lease      time.Duration // 0 in transaction mode
}

// Routes lists the routes that are guarded, in the order in which they were set up.
func (g *Guard) Routes() []RouteInfo {
	g.mu.Lock()
	routes := slices.Clone(g.routes)
	g.mu.Unlock()
	infos := make([]RouteInfo, len(routes))
	for i, rt := range routes {
		infos[i] = RouteInfo{Operations: rt.operations(), Methods: slices.Clone(rt.o.Methods), Required: !rt.o.Optional, Scope: rt.o.Scope, TTL: rt.o.TTL, Lease: rt.o.Lease}
	}
	return infos
}

// route is one guarded handler.
type route struct {
	g    *Guard
	o    Route
	next http.Handler

	// repeats is how many requests are looked up before they begin: a repeat seldom comes alone.
	repeats atomic.Int32

	mu   sync.Mutex
	seen map[string]bool // operations
}

// lookFirst is for how many requests after a repeat a look comes before the transaction. The look costs a new request a
// round trip, and its absence costs a repeat the transaction that it then finds its answer in.
const lookFirst = 16

var errGuardedTwice = errors.New("the request is guarded twice: put its route behind one middleware of the guard")

// maxSeen bounds the list of operations, where no router names them.
const maxSeen = 1000

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
	if !slices.Contains(rt.o.Methods, r.Method) {
		rt.next.ServeHTTP(w, r)
		return
	}
	req := &request{Request: r, begun: time.Now()}
	defer rt.notify(req, Outcome{Result: Forgotten}) // where a function of the route panics
	req.info.Operation, req.route = rt.operation(r)
	p := rt.read(w, req)
	if outer := handlingOf(r.Context()); p == nil && outer != nil && outer.rt.g == rt.g && outer.info.Key != "" && outer.lock == req.lock {
		req.err = errGuardedTwice // It would wait for itself.
		p = &handlerFault
	}
	switch {
	case p == nil:
	case p.status >= http.StatusInternalServerError: // It is the service that is wrong.
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

// serve answers a request with a key: with what is stored, or by running the handler.
func (rt *route) serve(w http.ResponseWriter, req *request) {
	deadline := req.begun.Add(rt.o.Wait)
	answer := rt.inTransaction
	if rt.o.Lease > 0 {
		answer = rt.underLease
	}
	for try := 1; ; try++ {
		if answer(w, req) {
			return
		}
		// Another request with the key runs.
		if !time.Now().Before(deadline) || !pause(req.Context(), min(spread(try, rt.g.random()), time.Until(deadline))) {
			break
		}
	}
	if rt.o.Lease == 0 && req.Context().Err() == nil { // It may have ended meanwhile.
		if f := rt.known(w, req); f != foundNothing && f != foundPending {
			return
		}
	}
	rt.inUse(w, req)
}

// inTransaction answers a request on a route without a lease. False: another request has the key, maybe one on a node
// on which the route has a lease; such a request is never run beside it, nor after it.
func (rt *route) inTransaction(w http.ResponseWriter, req *request) (answered bool) {
	look := rt.repeats.Load() > 0
	if look {
		if f := rt.known(w, req); f != foundNothing {
			return f != foundPending
		}
	}
	if rt.run(w, req) {
		return true
	}
	if look {
		return false
	}
	f := rt.known(w, req)
	return f != foundNothing && f != foundPending
}

// known answers a request whose key's row says how. foundNothing and foundPending: it does not.
func (rt *route) known(w http.ResponseWriter, req *request) found {
	s, err := rt.g.lookup(req.Context(), rt.g.pool, req.key())
	if err != nil {
		rt.unavailable(w, req, err)
		return foundUnusable
	}
	return rt.answerBy(w, req, s)
}

// answerBy answers by a row, unless that is foundNothing or foundPending.
func (rt *route) answerBy(w http.ResponseWriter, req *request, s *stored) found {
	f := foundOf(s, req.fingerprint)
	switch f {
	case foundAnswer:
		rt.replay(w, req, s)
	case foundOther:
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
	return f
}

// spread is how long the n-th look at a key in use is put off: 20 ms at first, up to 250 ms, half of it by chance.
func spread(n int, random float64) time.Duration {
	most := min(20*time.Millisecond<<min(n-1, 10), 250*time.Millisecond)
	return most/2 + time.Duration(random*float64(most/2))
}

// pause waits. False: the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
