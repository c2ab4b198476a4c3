package idempotency

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/idempotency/internal/kept"
	"github.com/holdfast-go/holdfast/idempotency/store"
)

// Route holds the settings of one route. A zero field takes the setting of Config.
type Route struct {
	// Lease chooses lease mode, for handlers that call other systems, such as a payment provider. Such a call must not
	// hold a transaction open, and a rollback does not undo it. The claim on the key lasts this long; while the handler
	// runs it is renewed every third of it. The handler does its database work in Steps: each is committed by itself
	// and never repeated. Tx has no transaction. If the process ends, the next request with the key continues after the last step,
	// once the lease has run out. Between 1 s and 1 h; Timeout may be longer. Defaults to 0, transaction mode:
	// everything is one transaction. That is the simpler promise; choose it if the handler writes only to Postgres.
	Lease time.Duration

	// Complete lets Guard.Run run requests again that were begun, have no answer, and that no client repeats. It gets
	// the stored request: method, URL, path values, body, and the headers that CompleteHeaders
	// lists, never credentials. It returns the request for the handler, made from r. Add what your middleware
	// would have put into the context, such as the account. nil leaves the request to the client. It needs Lease and
	// Operation. Only such routes store requests, until they are answered. Defaults to none: clients have to repeat.
	Complete func(r *http.Request, info Info) *http.Request

	// CompleteHeaders are headers of a request that are stored for Complete, in addition to Accept, Accept-Language,
	// Content-Encoding, Content-Language, Content-Type, If-Match, If-None-Match, Traceparent, Tracestate, User-Agent,
	// X-Correlation-Id, X-Request-Id. Those that carry credentials are refused. Defaults to no others.
	CompleteHeaders []string

	// CompleteQuery names the parameters of the query that are stored with a request. A request with any other parameter is not
	// stored, and left to its client, because a query may contain credentials, and the handler would do something else without
	// a part of it. A warning says so once a minute. Defaults to none: only requests without a query are stored.
	CompleteQuery []string

	// Operation names what the route does, as part of the key's scope: "POST /charges/{id}/refunds". Defaults to the
	// result of Config.OperationFunc. Required with ScopeOperation and with Complete.
	Operation string

	// Optional lets requests without a key through. They run in a transaction too (not in lease mode), but every one of
	// them runs.
	Optional bool

	// Anonymous lets all requests without a principal share one.
	Anonymous bool

	// Methods are the methods that are guarded; all others pass through. Defaults to POST and PATCH. You may add PUT
	// and DELETE, but not GET, HEAD, OPTIONS or TRACE.
	Methods []string

	// Scope says who shares a key. Defaults to ScopePrincipal.
	Scope Scope

	// KeyFormat returns an error if a key does not have the form that the route requires: UUID, SHA256, Prefixed, or a function of
	// yours. The answer is then 400, and shows the error. Many goroutines call it at once. Defaults to any: 1 to 255 visible ASCII
	// characters, no comma.
	KeyFormat func(key string) error

	// KeyFunc derives a request's key, for example with Deterministic, for clients that cannot send one. It replaces
	// the headers. Leave out what differs between two attempts. Defaults to none: with a key made from the whole body,
	// a new field that a client adds would be a new operation.
	KeyFunc func(r *http.Request, body []byte) (string, error)

	// Fingerprint returns the part of a request that must be the same in a repeat, instead of its body. Defaults to the
	// body, in the canonical form of RFC 8785 if that loses nothing. Method, path, query and media type are always
	// compared.
	Fingerprint func(r *http.Request, body []byte) ([]byte, error)

	// IgnoreFields are JSON Pointers (RFC 6901) to fields that may differ in a repeat: "/sent_at". They have no effect on
	// bodies of more than 256 KiB, or 10,000 names and values, which are compared byte by byte.
	IgnoreFields []string

	// Store reports whether an answer with this status, from 400 to 499, is stored. An answer below 400 always is, and one
	// with CommitOnError. A declined payment, 402, is the result of an operation. The other statuses usually say that nothing was
	// done, because of the request or of the state of things at that time: then a repeat is judged again, and clients that make
	// mistakes fill no table. docs/guides/idempotent-requests.md has a reason for each. Many goroutines call it at once. Defaults
	// to 402 only.
	Store func(status int) bool

	// ReplayHeaders are headers of an answer that are stored and replayed, in addition to Content-Type, Content-Language,
	// Content-Encoding, Content-Disposition, Content-Location, Location, ETag, Last-Modified, Link, Cache-Control, Retry-After,
	// X-Content-Type-Options. Cookies, credentials, dates and headers of one connection are never stored. Defaults to no others.
	ReplayHeaders []string

	// ReplayStatus changes the status of a replay, for example from 201 to 200. Defaults to the first answer's status.
	ReplayStatus func(status int) int

	// OnReplay may add headers to a replay.
	OnReplay func(r *http.Request, h http.Header)

	// Redact changes the Status, Header or Body of an answer before it is stored. The answer that is sent stays as it
	// is, so a replay then differs from it. The other fields are filled in afterwards.
	Redact func(a *store.Answer)

	// StatusURL returns an address for requests whose key is in use: the answer is 202 with this Location instead of
	// 409.
	StatusURL func(r *http.Request, key string) string

	// Isolation is the transaction's isolation level. After a serialization failure at commit the handler runs again,
	// up to three times. Defaults to READ COMMITTED.
	Isolation pgx.TxIsoLevel

	// The next ones are for this route what the fields of Config with their names are for all. 0 is Config's, so a route
	// cannot switch a Wait off.
	TTL, Wait, Timeout      time.Duration
	MismatchStatus          int
	MaxRequest, MaxResponse int64
}

// storeStatus is the default of Route.Store.
func storeStatus(status int) bool { return status == http.StatusPaymentRequired }

// replayHeaders are the headers that are stored with every answer.
var replayHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location", "ETag",
	"Last-Modified", "Link", "Cache-Control", "Retry-After", "X-Content-Type-Options",
}

// neverReplayed are headers that Route.ReplayHeaders must not name.
var neverReplayed = []string{
	"Set-Cookie", "Www-Authenticate", "Authorization", "Authentication-Info", "Date", "Age", "Server", "Connection", "Keep-Alive",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Vary",
}

// of returns the route with the settings it takes from c.
func (r Route) of(c Config) Route {
	if len(r.Methods) == 0 {
		r.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	r.Scope = cmp.Or(r.Scope, ScopePrincipal)
	if r.Store == nil {
		r.Store = storeStatus
	}
	r.TTL = cmp.Or(r.TTL, c.TTL)
	r.Wait = cmp.Or(r.Wait, c.Wait)
	r.Timeout = cmp.Or(r.Timeout, c.Timeout)
	r.MismatchStatus = cmp.Or(r.MismatchStatus, c.MismatchStatus)
	r.MaxRequest = cmp.Or(r.MaxRequest, c.MaxRequest)
	r.MaxResponse = cmp.Or(r.MaxResponse, c.MaxResponse)
	r.Isolation = cmp.Or(r.Isolation, pgx.ReadCommitted)
	return r
}

// validate checks a route that has all its settings.
func (r Route) validate(c Config) error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, m := range r.Methods {
		switch m {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			bad("method is %s: it must be one that changes something, not GET, HEAD, OPTIONS or TRACE", m)
		default:
			if m != strings.ToUpper(m) || !isToken(m) {
				bad("method is %q: it must be in capitals", m)
			}
		}
	}
	switch r.Scope {
	case ScopePrincipal, ScopeGlobal:
	case ScopeOperation:
		if r.Operation == "" {
			bad("operation is empty: it must name the operation that the keys belong to, with scope %q", r.Scope)
		}
	default:
		bad("scope is %q: it must be %q, %q or %q", r.Scope, ScopePrincipal, ScopeOperation, ScopeGlobal)
	}
	if r.Lease != 0 && (r.Lease < time.Second || r.Lease > time.Hour) {
		bad("lease is %s: it must be 0, or between 1s and 1h", r.Lease)
	}
	if r.Complete != nil && r.Lease == 0 {
		bad("lease is 0s: it must be set with complete: a rollback leaves nothing to complete")
	}
	if r.Complete != nil && r.Operation == "" {
		bad("operation is empty: it must name the route that stored requests belong to, with complete")
	}
	for _, name := range r.CompleteHeaders {
		if !isToken(name) || kept.HasCredentials(name) {
			bad("complete header is %q: it must be the name of a header that carries no credentials", name)
		}
	}
	for _, name := range r.CompleteQuery {
		if name == "" || kept.IsSecret(name) {
			bad("complete query is %q: it must be the name of a parameter that is no credential", name)
		}
	}
	if len(r.Operation) > maxOperation {
		bad("operation is %d bytes long: it must be at most %d", len(r.Operation), maxOperation)
	}
	for _, pointer := range r.IgnoreFields {
		if !strings.HasPrefix(pointer, "/") {
			bad("ignore field is %q: it must be a JSON Pointer, which begins with a slash", pointer)
		}
	}
	for _, name := range r.ReplayHeaders {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if !isToken(name) || slices.Contains(neverReplayed, canonical) || strings.HasPrefix(canonical, "Proxy-") {
			bad("replay header is %q: it must be the name of a header that means the same in every answer", name)
		}
	}
	if r.TTL < time.Second || r.TTL > 10*365*24*time.Hour {
		bad("ttl is %s: it must be between 1s and 10 years", r.TTL)
	}
	if r.TTL < c.MaxRetryWindow {
		bad("ttl is %s: it must be at least the max retry window, %s: a retry after the answer is gone would be a second operation", r.TTL, c.MaxRetryWindow)
	}
	switch r.MismatchStatus {
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
	default:
		bad("mismatch status is %d: it must be 409, 422 or 400", r.MismatchStatus)
	}
	if r.Wait < 0 || r.Wait > 5*time.Minute {
		bad("wait is %s: it must be between 0 and 5m", r.Wait)
	}
	if r.Timeout < time.Millisecond || r.Timeout > time.Hour {
		bad("timeout is %s: it must be between 1ms and 1h", r.Timeout)
	}
	if r.MaxRequest < 1 {
		bad("max request is %d: it must be at least 1", r.MaxRequest)
	}
	if r.MaxResponse < 1 {
		bad("max response is %d: it must be at least 1", r.MaxResponse)
	}
	switch r.Isolation {
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		bad("isolation is %q: it must be read committed, repeatable read or serializable", r.Isolation)
	}
	return errors.Join(problems...)
}
