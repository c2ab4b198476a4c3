package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Route is what one route does differently. A zero field means what Config says.
type Route struct {
	// Lease chooses lease mode, for handlers that call the outside, say a payment provider: such a call must not hold a
	// transaction open, and is not undone by its rollback. The key is claimed for so long, and again each third of it
	// while the handler runs; what the handler does in the database it does in Steps, each of which is committed and never
	// repeated; Tx is nil. When the process ends the next request with the key goes on behind the last step, once the
	// lease has run out. Between 1 s and 1 h; Timeout may be longer. Defaults to 0, transaction mode: everything is one
	// transaction, which is the simpler promise. Choose it where all that the handler does is in Postgres.
	Lease time.Duration

	// Complete lets Guard.Run run requests again that were begun, have no answer, and that nobody repeats. It is given the
	// request as it was stored: method, URL, path values, body, and the headers of DefaultCompleteHeaders and
	// CompleteHeaders, never credentials. It returns the request that the handler is to get, made from r, with what the middleware in
	// front would have put into its context, such as who asks; nil leaves it to the client. Needs Lease and Operation.
	// Only such routes store requests, until they are answered. Defaults to none: clients have to repeat.
	Complete func(r *http.Request, info Info) *http.Request

	// CompleteHeaders are headers that are stored beside those of DefaultCompleteHeaders.
	CompleteHeaders []string

	// Operation names what the route does, as part of the key's scope: "POST /charges/{id}/refunds". Defaults to what
	// Config.OperationFunc says. Required with ScopeOperation and with Complete.
	Operation string

	// Optional lets requests without a key through. They run in a transaction too (not in lease mode), but every one runs.
	Optional bool

	// Anonymous lets requests without a principal share one.
	Anonymous bool

	// Methods are guarded; all others go through. Defaults to POST and PATCH. PUT and DELETE may be added; GET, HEAD,
	// OPTIONS and TRACE may not.
	Methods []string

	// Scope says within what a key is one key. Defaults to ScopePrincipal.
	Scope Scope

	// KeyFormat refuses keys of another form with 400. Defaults to any: 1 to 255 visible ASCII characters, no comma.
	KeyFormat KeyFormat

	// KeyFunc makes the key of a request instead of its headers, say with Deterministic, for clients that cannot send
	// one. Leave out what differs between two tries. Defaults to none: a key made of the body turns a client's new field
	// into a new operation.
	KeyFunc func(r *http.Request, body []byte) (string, error)

	// Fingerprint says what of a request has to be the same in a repeat, instead of its body. Defaults to the body, in
	// the form of RFC 8785 where that loses nothing. Method, path, query and media type are always compared.
	Fingerprint func(r *http.Request, body []byte) ([]byte, error)

	// IgnoreFields are JSON Pointers (RFC 6901) to what may differ in a repeat: "/sent_at".
	IgnoreFields []string

	// Store says which statuses below 500 are kept. Defaults to StoreStatus.
	Store func(status int) bool

	// ReplayHeaders are headers that are kept beside those of DefaultReplayHeaders.
	ReplayHeaders []string

	// ReplayStatus changes the status of a replay, for instance 201 to 200. Defaults to the first answer's.
	ReplayStatus func(status int) int

	// OnReplay may add headers to a replay.
	OnReplay func(r *http.Request, h http.Header)

	// Redact changes the Status, Header or Body of an answer before it is stored, not of the one that is sent: a replay
	// is not byte-equal then. The other fields are filled in afterwards.
	Redact func(a *StoredAnswer)

	// StatusURL makes the answer to a request whose key is in use: 202 with this as Location, instead of 409.
	StatusURL func(r *http.Request, key string) string

	// Isolation of the transaction. A serialization failure at its end makes the handler run again, up to three times.
	// Defaults to READ COMMITTED.
	Isolation pgx.TxIsoLevel

	TTL, Wait, Timeout      time.Duration
	MismatchStatus          int
	MaxRequest, MaxResponse int64
}

// StoreStatus is what is stored unless Route.Store says otherwise: every status below 500 except 401, 403, 408, 425 and
// 429, which a retry may not meet again.
func StoreStatus(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

// DefaultReplayHeaders returns the headers that are kept with every answer. Cookies, credentials, dates and what belongs to one connection never are.
func DefaultReplayHeaders() []string { return slices.Clone(replayHeaders) }

var replayHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location", "ETag",
	"Last-Modified", "Link", "Cache-Control", "Retry-After", "X-Content-Type-Options",
}

// neverReplayed are headers that Route.ReplayHeaders must not name.
var neverReplayed = []string{
	"Set-Cookie", "Www-Authenticate", "Authorization", "Authentication-Info", "Date", "Age", "Server", "Connection", "Keep-Alive",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Vary",
}

// of is the route with everything that it leaves to c.
func (o Route) of(c Config) Route {
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	o.Scope = or(o.Scope, ScopePrincipal)
	if o.Store == nil {
		o.Store = StoreStatus
	}
	o.TTL = or(o.TTL, c.TTL)
	o.Wait = or(o.Wait, c.Wait)
	o.Timeout = or(o.Timeout, c.Timeout)
	o.MismatchStatus = or(o.MismatchStatus, c.MismatchStatus)
	o.MaxRequest = or(o.MaxRequest, c.MaxRequest)
	o.MaxResponse = or(o.MaxResponse, c.MaxResponse)
	o.Isolation = or(o.Isolation, pgx.ReadCommitted)
	return o
}

// validate checks a route that has everything.
func (o Route) validate(c Config) error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, m := range o.Methods {
		switch m {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			bad("methods has %s: it changes nothing, so it needs no key", m)
		default:
			if m != strings.ToUpper(m) || !isToken(m) {
				bad("methods has %q: it must be a method in capitals", m)
			}
		}
	}
	switch o.Scope {
	case ScopePrincipal, ScopeGlobal:
	case ScopeOperation:
		if o.Operation == "" {
			bad("operation is empty: with scope %q it names what the keys belong to", o.Scope)
		}
	default:
		bad("scope is %q: it must be %q, %q or %q", o.Scope, ScopePrincipal, ScopeOperation, ScopeGlobal)
	}
	if o.Lease != 0 && (o.Lease < time.Second || o.Lease > time.Hour) {
		bad("lease is %s: it must be 0, or between 1s and 1h", o.Lease)
	}
	if o.Complete != nil && o.Lease == 0 {
		bad("complete is set and lease is 0: what is undone by a rollback cannot be completed")
	}
	if o.Complete != nil && o.Operation == "" {
		bad("operation is empty: with complete it names the route that stored requests belong to")
	}
	for _, name := range o.CompleteHeaders {
		if canonical := textproto.CanonicalMIMEHeaderKey(name); !isToken(name) || slices.Contains(neverKept, canonical) {
			bad("complete headers has %q: it must be the name of a header, and none that carries credentials", name)
		}
	}
	if len(o.Operation) > maxOperation {
		bad("operation has %d bytes: it must have at most %d", len(o.Operation), maxOperation)
	}
	for _, pointer := range o.IgnoreFields {
		if !strings.HasPrefix(pointer, "/") {
			bad("ignore fields has %q: it must be a JSON Pointer, beginning with a slash", pointer)
		}
	}
	for _, name := range o.ReplayHeaders {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if !isToken(name) || slices.Contains(neverReplayed, canonical) || strings.HasPrefix(canonical, "Proxy-") {
			bad("replay headers has %q: it must be the name of a header that means the same in every answer", name)
		}
	}
	if o.TTL < time.Second || o.TTL > 10*365*24*time.Hour {
		bad("ttl is %s: it must be between 1s and 10 years", o.TTL)
	}
	if o.TTL < c.MaxRetryWindow {
		bad("ttl is %s and max retry window %s: a retry after the answer is gone would be a second operation", o.TTL, c.MaxRetryWindow)
	}
	switch o.MismatchStatus {
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
	default:
		bad("mismatch status is %d: it must be 409, 422 or 400", o.MismatchStatus)
	}
	if o.Wait < 0 || o.Wait > 5*time.Minute {
		bad("wait is %s: it must be between 0 and 5m", o.Wait)
	}
	if o.Timeout < time.Millisecond || o.Timeout > time.Hour {
		bad("timeout is %s: it must be between 1ms and 1h", o.Timeout)
	}
	if o.MaxRequest < 1 || o.MaxResponse < 1 {
		bad("max request is %d and max response %d: each must be at least 1", o.MaxRequest, o.MaxResponse)
	}
	switch o.Isolation {
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		bad("isolation is %q: it must be read committed, repeatable read or serializable", o.Isolation)
	}
	return errors.Join(problems...)
}
