package idempotency

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/retry"
)

// Defaults of Config.
const (
	defaultTTL          = 24 * time.Hour
	defaultTimeout      = 30 * time.Second
	defaultMaxRequest   = 1 << 20
	defaultMaxResponse  = 1 << 20
	defaultMaxAnswer    = 64 << 20
	defaultAcquire      = 5 * time.Second
	defaultCleanupEvery = time.Minute
	defaultCleanupBatch = 1000

	defaultKeepUnfinished = 30 * 24 * time.Hour
	defaultCompleteEvery  = 10 * time.Second
	defaultCompleters     = 4
)

// defaultCompletion is Config.Completion where that has zero fields.
var defaultCompletion = retry.Policy{
	Attempts: 10,
	Base:     30 * time.Second,
	Cap:      15 * time.Minute,
	Budget:   -1,
}

// defaultHeaders are the header names that may carry a key: the IETF draft's name and its older form.
var defaultHeaders = []string{"Idempotency-Key", "X-Idempotency-Key"}

// Scope says who shares a key.
type Scope string

const (
	// ScopePrincipal: every principal has its own keys for each operation.
	ScopePrincipal Scope = "principal"

	// ScopeOperation: all principals share the keys of one operation, such as creating payments. A key that another
	// principal used is a mismatch, never a replay. Nobody sees an answer meant for another principal.
	ScopeOperation Scope = "operation"

	// ScopeGlobal: all principals and all operations share their keys. A key that another operation used is a mismatch.
	ScopeGlobal Scope = "global"
)

// Config configures a Guard. A zero field takes its default; only Principal is required.
type Config struct {
	// Schema is the name of the Postgres schema that holds holdfast's tables. Defaults to "holdfast".
	Schema string

	// Principal returns the tenant or account that the request was authenticated for, not one that it only claims. Two
	// principals never share a key. An error or "" is answered with 401; an error of a dependency, such as a session
	// store that cannot be reached (retry.Timeout, retry.Unavailable), with 503. The result has at most 512 bytes. Many
	// goroutines call it at once. Required: authenticate the request before this middleware runs.
	Principal func(*http.Request) (string, error)

	// TenantFunc returns the tenant that a request concerns, where one principal may ask for several: the tenant's own part of
	// the host or of the path, or a header that your middleware has checked. Two tenants never share a key. "" means that
	// there is none. Many goroutines call it at once. Defaults to none; then a repeat must come to the same host name, or it
	// is a mismatch. Addresses are not compared, since they name machines. Set it if a proxy puts changing names into Host.
	TenantFunc func(*http.Request) string

	// OperationFunc names the operation of a request where Route.Operation does not. The operation is part of the key's
	// scope. Set it for middleware that runs before the router knows the pattern, as with chi's r.Use. An empty name
	// means the path. Many goroutines call it at once. Defaults to the router's pattern if http.Request.Pattern is set
	// (net/http, chi from v5.3) and names one route; otherwise to the method and the path. Both include the prefix that
	// http.StripPrefix removed.
	OperationFunc func(*http.Request) string

	// Headers are the header names that may carry a key. Defaults to Idempotency-Key, the IETF draft's name, and
	// X-Idempotency-Key.
	Headers []string

	// Strict accepts a key only as a quoted string, as the IETF draft requires. Most clients send bare tokens. Defaults to false.
	Strict bool

	// DocsURL is the address of your API's documentation of its keys. Problem answers link to it. Defaults to "": no link.
	DocsURL string

	// TTL is how long an answer is kept, counted from when it was given. Between 1 s and 10 years. Thirty days suit
	// payments. Defaults to 24 hours.
	TTL time.Duration

	// MaxRetryWindow is how long after its first attempt a client, or a queue on the way, may try again. New refuses a
	// shorter TTL. Defaults to 0: not declared.
	MaxRetryWindow time.Duration

	// MismatchStatus is the status for a key that comes with a different request: 409, 422 as in the IETF draft, or
	// 400. Defaults to 409.
	MismatchStatus int

	// Wait is how long a request waits while another request with its key runs, before the answer is 409 with
	// Retry-After. A waiting request holds no connection. At most 5 min. Defaults to 0: it does not wait.
	Wait time.Duration

	// Timeout is how long a handler may run before its context is cancelled. Between 1 ms and 1 h. Defaults to 30 s.
	Timeout time.Duration

	// AcquireTimeout is how long a request waits for a connection of the pool before the answer is 503. Defaults to 5
	// s.
	AcquireTimeout time.Duration

	// MaxRequest is the maximum size of a request's body in bytes. A longer one is answered with 413. Defaults to 1
	// MiB.
	MaxRequest int64

	// MaxResponse is the maximum size of a stored answer body in bytes. For a longer one, only the status and the
	// headers are stored, and the replay has the header "Idempotency-Body: omitted". The effect is never repeated.
	// Defaults to 1 MiB.
	MaxResponse int64

	// MaxAnswer is the maximum size of an answer's body in bytes, stored or not. It is held in memory until COMMIT. A handler that
	// writes more gets an error, nothing is kept, and the answer is 500. Between MaxResponse and 1 GiB. Defaults to 64 MiB, or
	// MaxResponse if that is more.
	MaxAnswer int64

	// MaxKeys is how many keys of a principal may be in the table, those that have expired and were not removed yet included. A
	// request with one more is answered with 429 (idempotency.too_many_keys); those with known keys get their answers. Each process
	// believes a count of them for 30 s, so some more may get in. It holds for ScopePrincipal, and not with NewEphemeral. Choose it well above what an honest client needs in a TTL. Defaults to 0, no limit.
	MaxKeys int

	// ShowExpiry adds the header "Idempotency-Key-Expires", a date, to stored and replayed answers. Defaults to false.
	ShowExpiry bool

	// KeepExpired is how long expired keys stay in the table idempotency_expired, for audits, without the answer's
	// headers and body. Defaults to 0: they are deleted.
	KeepExpired time.Duration

	// CleanupEvery is how often Run looks for expired keys. CleanupBatch is how many keys it removes in one
	// transaction. Default to one minute and 1,000 keys.
	CleanupEvery time.Duration
	CleanupBatch int

	// KeepUnfinished is how long a request with finished steps but no answer (Route.Lease) is kept after its last step,
	// and at least for its TTL. Part of its effect is committed, so a repeat continues after the last step, and no
	// other request can use the key. Afterwards it is removed like any expired key, with a warning in the log. Defaults
	// to 30 days.
	KeepUnfinished time.Duration

	// Completion is the schedule on which Run runs a request again that its client abandoned without an answer, on
	// routes with Route.Complete. Its Budget is not used. Defaults to 10 attempts, 30 s doubling to 15 minutes.
	Completion retry.Policy

	// CompleteEvery is how often Run looks for such requests. Completers is how many a node runs at once. Default to 10
	// s and 4.
	CompleteEvery time.Duration
	Completers    int

	// Observer receives the outcome of every request. Defaults to nothing.
	Observer Observer

	// Logger receives constant messages with attributes. Keys appear only as hashes, bodies never. Defaults to
	// slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Schema = cmp.Or(c.Schema, sqlschema.Default)
	if len(c.Headers) == 0 {
		c.Headers = defaultHeaders
	}
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	c.MismatchStatus = cmp.Or(c.MismatchStatus, http.StatusConflict)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.AcquireTimeout = cmp.Or(c.AcquireTimeout, defaultAcquire)
	c.MaxRequest = cmp.Or(c.MaxRequest, int64(defaultMaxRequest))
	c.MaxResponse = cmp.Or(c.MaxResponse, int64(defaultMaxResponse))
	c.MaxAnswer = cmp.Or(c.MaxAnswer, max(int64(defaultMaxAnswer), c.MaxResponse))
	c.CleanupEvery = cmp.Or(c.CleanupEvery, defaultCleanupEvery)
	c.CleanupBatch = cmp.Or(c.CleanupBatch, defaultCleanupBatch)
	c.KeepUnfinished = cmp.Or(c.KeepUnfinished, defaultKeepUnfinished)
	c.Completion = c.Completion.Or(defaultCompletion)
	c.CompleteEvery = cmp.Or(c.CompleteEvery, defaultCompleteEvery)
	c.Completers = cmp.Or(c.Completers, defaultCompleters)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

// validate checks a copy that has its defaults, and reports every problem at once.
func (c Config) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if c.Principal == nil {
		bad("principal is nil: it must return the account that a request belongs to, or two customers would share keys; for routes without accounts return a constant and set Route.Anonymous")
	}
	for _, name := range c.Headers {
		if !isToken(name) {
			bad("header is %q: it must be the name of a header", name)
		}
	}
	if c.KeepExpired < 0 {
		bad("keep expired is %s: it must be at least 0s; 0 deletes at once", c.KeepExpired)
	}
	if c.CleanupEvery < time.Millisecond {
		bad("cleanup every is %s: it must be at least 1ms", c.CleanupEvery)
	}
	if c.MaxKeys < 0 {
		bad("max keys is %d: it must be at least 1, or 0 for no limit", c.MaxKeys)
	}
	if c.MaxAnswer < c.MaxResponse || c.MaxAnswer > 1<<30 {
		bad("max answer is %d: it must be between max response, %d, and 1 GiB", c.MaxAnswer, c.MaxResponse)
	}
	if c.CleanupBatch < 1 || c.CleanupBatch > 100_000 {
		bad("cleanup batch is %d: it must be between 1 and 100000", c.CleanupBatch)
	}
	if c.KeepUnfinished < time.Second || c.KeepUnfinished > 10*365*24*time.Hour {
		bad("keep unfinished is %s: it must be between 1s and 10 years", c.KeepUnfinished)
	}
	if err := c.Completion.Validate("completion"); err != nil {
		problems = append(problems, err)
	}
	if c.CompleteEvery < time.Millisecond {
		bad("complete every is %s: it must be at least 1ms", c.CompleteEvery)
	}
	if c.Completers < 1 || c.Completers > 1000 {
		bad("completers is %d: it must be between 1 and 1000", c.Completers)
	}
	if c.AcquireTimeout < time.Millisecond {
		bad("acquire timeout is %s: it must be at least 1ms", c.AcquireTimeout)
	}
	return errors.Join(append(problems, Route{}.of(c).validate(c))...)
}

// isToken reports whether s is a token as RFC 9110 defines it.
func isToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	}) < 0
}
