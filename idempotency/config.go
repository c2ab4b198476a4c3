package idempotency

import (
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
	defaultAcquire      = 5 * time.Second
	defaultCleanupEvery = time.Minute
	defaultCleanupBatch = 1000

	defaultKeepUnfinished = 30 * 24 * time.Hour
	defaultCompleteEvery  = 10 * time.Second
	defaultCompleters     = 4
)

// defaultCompletion is Config.Completion where that has zero fields.
var defaultCompletion = retry.Policy{Attempts: 10, Base: 30 * time.Second, Cap: 15 * time.Minute, Budget: -1}

// defaultHeaders are the names under which a key is looked for: that of the IETF draft, and its older form.
var defaultHeaders = []string{"Idempotency-Key", "X-Idempotency-Key"}

// Scope says within what a key is one key.
type Scope string

const (
	// ScopePrincipal: a principal and an operation have their keys for themselves.
	ScopePrincipal Scope = "principal"

	// ScopeOperation: all principals share the keys of an operation, say, all creations of payments. Another principal's
	// use of a key is a mismatch, never a replay: nobody sees an answer that was given to somebody else.
	ScopeOperation Scope = "operation"

	// ScopeGlobal: all principals and all operations share their keys. Another operation's use of a key is a mismatch.
	ScopeGlobal Scope = "global"
)

// Config says how a Guard works. The zero value of each field means its default; only Principal is required.
type Config struct {
	// Schema is the name of the Postgres schema that holds holdfast's tables. Defaults to "holdfast".
	Schema string

	// Principal says who asks: the tenant or account that the request was authenticated for, not something it only
	// claims. Two principals never share a key. An error, or "", is answered with 401. At most 512 bytes. It is called
	// from many goroutines at once. Required: authenticate before this middleware.
	Principal func(*http.Request) (string, error)

	// OperationFunc names what a request asks for, as part of its key's scope, where Route.Operation does not: with chi's
	// r.Use the middleware runs before the router knows the pattern. An empty name means the path. Called from many
	// goroutines at once. Defaults to the pattern of the router, where it sets http.Request.Pattern (net/http, chi from
	// v5.3) and that names one route, else to the path, with the method before it. Either has what http.StripPrefix took
	// off the path.
	OperationFunc func(*http.Request) string

	// Headers are the names under which clients send their key. Defaults to Idempotency-Key, the IETF draft's, and X-Idempotency-Key.
	Headers []string

	// Strict accepts a key only as a string in quotes, as the IETF draft has it. Most clients send bare tokens.
	Strict bool

	// DocsURL is where your API's description explains its keys: problems link to it.
	DocsURL string

	// TTL is how long an answer is kept, from when it was given. Between 1 s and 10 years. Thirty days suit payments.
	// Defaults to 24 hours.
	TTL time.Duration

	// MaxRetryWindow is how long after its first try a client, or a queue on the way, may try again. A TTL below it is
	// refused. Defaults to 0: not declared.
	MaxRetryWindow time.Duration

	// MismatchStatus answers a key that comes with another request: 409, or 422 as in the IETF draft, or 400. Defaults
	// to 409.
	MismatchStatus int

	// Wait is how long a request waits while another with its key runs, before it is answered 409 with Retry-After. It
	// holds no connection meanwhile. At most 5 min. Defaults to 0: it does not wait.
	Wait time.Duration

	// Timeout is how long a handler may run before its context is cancelled. Between 1 ms and 1 h. Defaults to 30 s.
	Timeout time.Duration

	// AcquireTimeout is how long a request waits for a connection of the pool, before it is answered 503. Defaults to 5 s.
	AcquireTimeout time.Duration

	// MaxRequest is how many bytes a request's body may have; a longer one is answered 413. Defaults to 1 MiB.
	MaxRequest int64

	// MaxResponse is up to how many bytes of an answer's body are stored. Of a longer one the status and the headers
	// are, and a replay says by "Idempotency-Body: omitted" that its body is not there: the effect is never repeated.
	// Defaults to 1 MiB.
	MaxResponse int64

	// ShowExpiry adds "Idempotency-Key-Expires", a date, to stored and replayed answers.
	ShowExpiry bool

	// KeepExpired is how long what is expired stays in the table idempotency_expired, without the answer's headers and
	// body, for audits. Defaults to 0: it is deleted.
	KeepExpired time.Duration

	// CleanupEvery is how often Run looks for expired keys, CleanupBatch how many it removes in one transaction.
	// Default to one minute and 1,000 keys.
	CleanupEvery time.Duration
	CleanupBatch int

	// KeepUnfinished is how long a request that has done steps but has no answer (Route.Lease) is kept after the last of
	// them, at least for its TTL: part of its effect is there, so it goes on where it stopped, and its key cannot be used
	// for anything else. Then it is removed like any expired key, with a warning in the log. Defaults to 30 days.
	KeepUnfinished time.Duration

	// Completion says how often, and after which waits, Run runs a request again that its client has left without an
	// answer, on routes with Route.Complete. Its Budget is not used. Defaults to 10 attempts, 30 s doubling to 15 minutes.
	Completion retry.Policy

	// CompleteEvery is how often Run looks for such requests, Completers how many a node runs at once. Default to 10 s and 4.
	CompleteEvery time.Duration
	Completers    int

	// Observer gets what becomes of requests.
	Observer Observer

	// Logger gets constant messages with attributes: keys only as hashes, never bodies. Defaults to slog.Default().
	Logger *slog.Logger
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

func (c Config) withDefaults() Config {
	c.Schema = or(c.Schema, sqlschema.Default)
	if len(c.Headers) == 0 {
		c.Headers = defaultHeaders
	}
	c.TTL = or(c.TTL, defaultTTL)
	c.MismatchStatus = or(c.MismatchStatus, http.StatusConflict)
	c.Timeout = or(c.Timeout, defaultTimeout)
	c.AcquireTimeout = or(c.AcquireTimeout, defaultAcquire)
	c.MaxRequest = or(c.MaxRequest, int64(defaultMaxRequest))
	c.MaxResponse = or(c.MaxResponse, int64(defaultMaxResponse))
	c.CleanupEvery = or(c.CleanupEvery, defaultCleanupEvery)
	c.CleanupBatch = or(c.CleanupBatch, defaultCleanupBatch)
	c.KeepUnfinished = or(c.KeepUnfinished, defaultKeepUnfinished)
	c.Completion = c.Completion.Or(defaultCompletion)
	c.CompleteEvery = or(c.CompleteEvery, defaultCompleteEvery)
	c.Completers = or(c.Completers, defaultCompleters)
	c.Logger = or(c.Logger, slog.Default())
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
		bad("principal is nil: say whose a request's key is, or two customers share their keys; for routes without accounts return a constant and set Route.Anonymous")
	}
	for _, name := range c.Headers {
		if !isToken(name) {
			bad("headers has %q: it must be the name of a header", name)
		}
	}
	if c.KeepExpired < 0 {
		bad("keep expired is %s: it must not be negative; 0 deletes at once", c.KeepExpired)
	}
	if c.CleanupEvery < time.Millisecond {
		bad("cleanup every is %s: it must be at least 1ms", c.CleanupEvery)
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

// isToken says that s is a token of RFC 9110.
func isToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	}) < 0
}
