package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/retry"
)

// This file reads a request: what it asks for, and whose key it carries.

const (
	maxPrincipal = 512
	maxOperation = 256
)

// principalScope followed by the principal is a key's scope under ScopePrincipal.
const principalScope = "principal:"

var errPrincipal = fmt.Errorf("it must be 1 to %d bytes of UTF-8 without NUL", maxPrincipal)

// operation names what the request asks for. route is the same if a route or a router names it, else "".
func (rt *route) operation(r *http.Request) (name, route string) {
	if rt.o.Operation != "" {
		return rt.o.Operation, rt.o.Operation
	}
	pattern := ""
	if rt.g.c.OperationFunc != nil {
		pattern = rt.g.c.OperationFunc(r)
	} else if !mounts(r.Pattern) {
		pattern = below(takenOff(r), r.Pattern, wholePath(r))
	}
	name = operationName(r.Method, cmp.Or(pattern, wholePath(r)))
	if pattern != "" {
		rt.see(name)
		route = name
	}
	return name, route
}

// mounts reports whether a router's pattern covers everything below a path, possibly another router's routes: "/v1/*"
// of chi, "/v1/" and "/v1/{rest...}" of net/http. Such a pattern names no operation.
func mounts(pattern string) bool {
	return strings.HasSuffix(pattern, "*") || strings.HasSuffix(pattern, "/") || strings.HasSuffix(pattern, "...}")
}

// maxScope is the length of a scope that the table takes.
const maxScope = 522

// tenantScope is a scope among the keys of one tenant. Two tenants, or two scopes of one, are never the same.
func tenantScope(tenant, scope string) string {
	name := "tenant:" + url.QueryEscape(tenant) + "/"
	if len(name)+len(scope) <= maxScope {
		return name + scope
	}
	return "tenant-sha256:" + Deterministic(tenant, scope)
}

// hostName is the host that a request was sent to, without its port. It is "" for an address, which names a machine: a
// repeat may go to another one.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return ""
	}
	return host
}

func operationName(method, pattern string) string {
	name := pattern
	if !strings.HasPrefix(name, method+" ") {
		name = method + " " + name
	}
	if len(name) > maxOperation { // Two paths could become one if they were cut.
		name = method + " sha256:" + Deterministic(name)
	}
	return name
}

// request is a guarded request that was read.
type request struct {
	*http.Request
	info        Info
	scope       string // of the key, as in the table
	operation   string // likewise
	subject     subject
	fingerprint []byte   // of subject: its version, and the rest; the table has two columns
	differs     []string // in which parts it differs from the request that has its key, for the log
	body        []byte
	lock        int64
	begun       time.Time
	until       time.Time // when the client stops waiting for an answer; zero if unknown
	expired     bool      // the key had an answer that has expired
	completed   bool      // Run runs it, and no client waits for its answer
	taken       bool      // another request had its key when we looked
	final       *stored   // the row by which it was answered, if that will not change
	route       string    // the operation if a route or a router names it
	notified    bool      // the outcome was reported
	err         error     // our own error that led to the answer; for the log
}

// key returns the key as a Store has it.
func (req *request) key() store.Key {
	return store.Key{Scope: req.scope, Operation: req.operation, Key: req.info.Key}
}

// whole returns a copy of the request with its body rewound, for code that reads or changes it.
func (req *request) whole(ctx context.Context) *http.Request {
	r := req.Request.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(req.body))
	return r
}

// adopt gives the request the fingerprint that builds before versionHostForm would have given it, if one wrote the row. It reports
// whether it did.
func (req *request) adopt(s *stored) bool {
	if s == nil || s.Expired || s.Version > versionBytes || req.fingerprint[0] <= versionBytes {
		return false
	}
	req.fingerprint = req.subject.earlier()
	return true
}

// operationName names the operation in logs. Where neither a route nor a router names it, it is the path, which may have a token
// in it: then it is the hash of what the row has.
func (req *request) operationName() string {
	if req.route != "" || req.info.Operation == "" {
		return req.info.Operation
	}
	sum := sha256.Sum256([]byte(req.info.Operation))
	return req.Method + " sha256:" + hex.EncodeToString(sum[:8])
}

// keyHash names the key in logs.
func (req *request) keyHash() string { return hashName(req.lock) }

// hashName is a name for a key that does not tell the number of its lock: any user who may connect could hold that. From the
// lock's number docs/operations/idempotency.md computes it in SQL.
func hashName(lock int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "holdfast/idempotency:%016x", uint64(lock)))
	return hex.EncodeToString(sum[:8])
}

// read reads everything that identifies a request. A problem that is not nil refuses it.
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
	perr = foreign.Error(perr)
	if class := retry.Classify(perr); class == retry.Timeout || class == retry.Unavailable { // The caller is not to blame.
		req.err = fmt.Errorf("principal: %w", perr)
		return refuse(storeUnavailable)
	}
	if perr != nil || (principal == "" && !rt.o.Anonymous) || len(principal) > maxPrincipal || strings.ContainsRune(principal, 0) || !utf8.ValidString(principal) {
		req.err = fmt.Errorf("principal of %d bytes: %w", len(principal), cmp.Or(perr, errPrincipal))
		return refuse(principalUnknown)
	}
	req.info.Principal = principal
	body := r.Body
	if body == nil { // a request that no server read
		body = http.NoBody
	}
	if req.body, err = readBody(http.MaxBytesReader(w, body, rt.o.MaxRequest), min(r.ContentLength, rt.o.MaxRequest)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(foreign.Error(err), &tooLarge) {
			return refuse(requestTooLarge.with(fmt.Sprintf("Its body must have at most %d bytes.", tooLarge.Limit))) // of code in front of us, or ours
		}
		return refuse(requestUnread)
	}
	compared := key != "" || rt.o.KeyFunc != nil // a request without a key repeats nothing
	if req.body, err = readBefore(r, req.body); err != nil && rt.o.Fingerprint == nil && compared {
		req.err = err
		return refuse(handlerFault)
	}
	if rt.o.KeyFunc != nil {
		if key, err = rt.o.KeyFunc(req.whole(r.Context()), req.body); err == nil && key != "" {
			err = checkKey(key)
		} else if err == nil && !rt.o.Optional {
			err = invalidKey("it cannot be made from this request")
		}
		if err != nil {
			return refuse(keyInvalid.with(foreign.Text(err)))
		}
	}
	if key != "" && rt.o.KeyFormat != nil {
		if err := rt.o.KeyFormat(key); err != nil {
			return refuse(keyInvalid.with(foreign.Text(err)))
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
		req.scope, req.operation = principalScope+principal, req.info.Operation
	}
	if g.c.TenantFunc == nil {
		s.host = hostName(r.Host)
	} else if tenant := g.c.TenantFunc(r); tenant != "" {
		req.scope = tenantScope(tenant, req.scope)
	}
	if rt.o.Fingerprint != nil {
		if s.body, err = rt.o.Fingerprint(req.whole(r.Context()), req.body); err != nil {
			return refuse(requestUnfit.with(foreign.Text(err)))
		}
		s.mediaType += ";selected"
	}
	req.subject, req.fingerprint = s, s.fingerprint()
	req.lock = lockNumber(g.c.Schema, req.scope, req.operation, key)
	return nil
}

// readBody reads a body of this length; -1 if it is not known. Room for all of it is made when the first 64 KiB are there, so
// that nobody claims memory with a header alone, and nothing is copied as it grows.
func readBody(body io.Reader, length int64) ([]byte, error) {
	const first = 64 << 10
	if length <= first {
		return io.ReadAll(body)
	}
	begin, err := io.ReadAll(io.LimitReader(body, first))
	if err != nil || len(begin) < first {
		return begin, err
	}
	whole := bytes.NewBuffer(make([]byte, 0, length+bytes.MinRead))
	whole.Write(begin)
	_, err = whole.ReadFrom(body)
	return whole.Bytes(), err
}

// budgetOf reads X-Request-Timeout: how long the client waits, in seconds ("1.5") or with a unit ("1500ms").
func budgetOf(value string) (time.Duration, bool) {
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		if seconds > 0 && seconds <= 86_400 {
			return time.Duration(seconds * float64(time.Second)), true
		}
		return 0, false // also NaN
	}
	d, err := time.ParseDuration(value)
	return d, err == nil && d > 0
}
