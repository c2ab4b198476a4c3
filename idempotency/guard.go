package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	maxPrincipal = 512
	maxOperation = 256
)

// Guard makes routes idempotent. It may be used by many goroutines, and many processes, at once.
type Guard struct {
	pool   *pgxpool.Pool // nil: NewEphemeral
	store  Store         // of routes in lease mode
	c      Config
	q      queries
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
	return &Guard{c: c, q: newQueries(c.Schema), random: mathrand.Float64}, nil
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
		o.Lease = or(o.Lease, DefaultLease)
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

var errPrincipal = fmt.Errorf("it must be UTF-8 without NUL, of 1 to %d bytes", maxPrincipal)

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

// operation names what the request asks for. Route is the same where a route or a router names it, else "".
func (rt *route) operation(r *http.Request) (name, route string) {
	if rt.o.Operation != "" {
		return rt.o.Operation, rt.o.Operation
	}
	pattern := ""
	if rt.g.c.OperationFunc != nil {
		pattern = rt.g.c.OperationFunc(r)
	} else if !mounts(r.Pattern) {
		pattern = r.Pattern
	}
	name = operationName(r.Method, cmp.Or(pattern, r.URL.EscapedPath()))
	rt.mu.Lock()
	if len(rt.seen) < maxSeen {
		rt.seen[name] = true
	}
	rt.mu.Unlock()
	if pattern != "" {
		route = name
	}
	return name, route
}

// mounts says that a router's pattern covers whatever stands below a path, maybe another router's routes: "/v1/*" of chi,
// "/v1/" and "/v1/{rest...}" of net/http. It names no operation then.
func mounts(pattern string) bool {
	return strings.HasSuffix(pattern, "*") || strings.HasSuffix(pattern, "/") || strings.HasSuffix(pattern, "...}")
}

func operationName(method, pattern string) string {
	name := pattern
	if !strings.HasPrefix(name, method+" ") {
		name = method + " " + name
	}
	if len(name) > maxOperation { // Cut, it would be another path's too.
		name = method + " sha256:" + Deterministic(name)
	}
	return name
}

// request is a guarded request that has been read.
type request struct {
	*http.Request
	info        Info
	scope       string // of the key, as the table has it
	operation   string // likewise
	fingerprint []byte
	body        []byte
	lock        int64
	begun       time.Time
	until       time.Time // by when the client wants an answer; zero: it did not say
	expired     bool      // its key had an answer that has expired
	completed   bool      // nobody waits for its answer: Run runs it
	route       string    // operation where a route or a router names it
	told        bool      // what became of it
	err         error     // of ours, that led to its answer; for the log
}

// key is its key as a Store has it.
func (req *request) key() StoreKey {
	return StoreKey{Scope: req.scope, Operation: req.operation, Key: req.info.Key}
}

// whole is a copy of the request with its body in front of it, for whoever reads or changes it.
func (req *request) whole(ctx context.Context) *http.Request {
	r := req.Request.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(req.body))
	return r
}

// keyHash names the key in logs.
func (req *request) keyHash() string { return hashName(req.lock) }

func hashName(lock int64) string { return fmt.Sprintf("%016x", uint64(lock)) }

func (rt *route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(rt.o.Methods, r.Method) {
		rt.next.ServeHTTP(w, r)
		return
	}
	req := &request{Request: r, begun: time.Now()}
	defer rt.tell(req, Outcome{Result: Forgotten}) // where a function of the route panics
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

// read reads all that decides what a request is. Not nil: it is refused.
func (rt *route) read(w http.ResponseWriter, req *request) *problem {
	g, r := rt.g, req.Request
	refuse := func(p problem) *problem { return &p }
	var key string
	var err error
	if rt.o.KeyFunc == nil {
		key, err = headerKey(r.Header, g.c.Headers, g.c.Strict)
		switch {
		case errors.Is(err, errKeyMissing) && !rt.o.Optional:
			return refuse(keyMissing)
		case err != nil && !errors.Is(err, errKeyMissing):
			return refuse(keyInvalid.with(err.Error()))
		}
	}
	principal, perr := g.c.Principal(r)
	if perr != nil || (principal == "" && !rt.o.Anonymous) || len(principal) > maxPrincipal || strings.ContainsRune(principal, 0) || !utf8.ValidString(principal) {
		req.err = fmt.Errorf("principal of %d bytes: %w", len(principal), cmp.Or(perr, errPrincipal))
		return refuse(principalUnknown)
	}
	req.info.Principal = principal
	body := r.Body
	if body == nil { // a request that no server has read
		body = http.NoBody
	}
	if req.body, err = io.ReadAll(http.MaxBytesReader(w, body, rt.o.MaxRequest)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return refuse(requestTooLarge.with(fmt.Sprintf("Its body must have at most %d bytes.", rt.o.MaxRequest)))
		}
		return refuse(requestUnread)
	}
	if len(req.body) == 0 {
		if req.body, err = parsedBefore(r); err != nil && rt.o.Fingerprint == nil {
			req.err = err
			return refuse(handlerFault)
		}
	}
	if rt.o.KeyFunc != nil {
		if key, err = rt.o.KeyFunc(req.whole(r.Context()), req.body); err == nil && key != "" {
			err = checkKey(key)
		} else if err == nil && !rt.o.Optional {
			err = invalidKey("it cannot be made from this request")
		}
		if err != nil {
			return refuse(keyInvalid.with(err.Error()))
		}
	}
	if key != "" && rt.o.KeyFormat != nil {
		if err := rt.o.KeyFormat(key); err != nil {
			return refuse(keyInvalid.with(err.Error()))
		}
	}
	req.info.Key = key
	if budget, ok := budgetOf(r.Header.Get("X-Request-Timeout")); ok {
		req.until = req.begun.Add(budget)
	}
	s := subjectOf(r, req.info.Operation, req.body)
	s.ignore = rt.o.IgnoreFields
	switch rt.o.Scope {
	case ScopeGlobal:
		req.scope, s.principal = "global", principal
	case ScopeOperation:
		req.scope, req.operation, s.principal = "operation", req.info.Operation, principal
	default:
		req.scope, req.operation = "principal:"+principal, req.info.Operation
	}
	if rt.o.Fingerprint != nil {
		if s.body, err = rt.o.Fingerprint(req.whole(r.Context()), req.body); err != nil {
			return refuse(requestUnfit.with(err.Error()))
		}
		s.mediaType += ";selected"
	}
	req.fingerprint = s.fingerprint()
	req.lock = lockNumber(g.c.Schema, req.scope, req.operation, key)
	return nil
}

// budgetOf reads X-Request-Timeout: how long the client will wait, in seconds ("1.5") or with a unit ("1500ms").
func budgetOf(value string) (time.Duration, bool) {
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		if seconds > 0 && seconds <= 86_400 {
			return time.Duration(seconds * float64(time.Second)), true
		}
		return 0, false // NaN too
	}
	d, err := time.ParseDuration(value)
	return d, err == nil && d > 0
}

// serve answers a request with a key: with what is stored, or by running the handler.
func (rt *route) serve(w http.ResponseWriter, req *request) {
	patience := req.begun.Add(rt.o.Wait)
	answer := rt.inTransaction
	if rt.o.Lease > 0 {
		answer = rt.underLease
	}
	for try := 1; ; try++ {
		if answer(w, req) {
			return
		}
		// Another request with the key runs.
		if !time.Now().Before(patience) || !pause(req.Context(), min(spread(try, rt.g.random()), time.Until(patience))) {
			break
		}
	}
	if rt.o.Lease == 0 && req.Context().Err() == nil { // It may have ended meanwhile.
		if f := rt.known(w, req); f != foundNothing && f != foundPending {
			return
		}
	}
	if rt.o.StatusURL != nil {
		p := accepted
		p.location = rt.o.StatusURL(req.Request, req.info.Key)
		rt.refuse(w, req, p, InProgress)
		return
	}
	rt.refuse(w, req, inProgress, InProgress)
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
	f := judge(s, req.fingerprint)
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
