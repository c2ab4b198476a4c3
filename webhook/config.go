package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// Defaults of Config.
const (
	defaultMaxBody    = 1 << 20
	defaultWorkers    = 8
	defaultWait       = 5 * time.Second
	defaultRetryAfter = 5 * time.Second

	// defaultHorizon is a little more than 75 h 35 min, the time over which the example in the Standard Webhooks
	// specification repeats a delivery.
	defaultHorizon = 76 * time.Hour
)

// timelessWindow is how long an inbox should remember the ids of webhooks whose signatures have no time. A recorded
// request stays valid as long as its secret.
const timelessWindow = 30 * 24 * time.Hour

// Mode says when a delivery is handled.
type Mode string

const (
	// Inline handles the event before the request is answered. Inbox.Run retries a handler that failed.
	Inline Mode = "inline"

	// StoreFirst stores the event, answers, and leaves the handler to Inbox.Run. Use it for handlers that may take
	// longer than the provider waits (3 s with Slack, 5 s with Shopify, 10 s with GitHub).
	StoreFirst Mode = "store"
)

// Identity says how a repeat is recognised.
type Identity string

const (
	// ByBody treats deliveries of one type with the same body as one event.
	ByBody Identity = "body"

	// ByID treats deliveries with the same id as one event.
	ByID Identity = "id"
)

// Config configures an endpoint. A zero field takes its default; the zero Config is safe.
type Config struct {
	// Mode says when a delivery is handled. Defaults to Inline.
	Mode Mode

	// Topic is the topic of the events. It is a name that the inbox and its dead letters show; no broker
	// needs such a topic. Defaults to "webhook." followed by the source.
	Topic string

	// Unsigned says how a repeat is recognised if the provider does not sign the id, as GitHub and Shopify do not. ByID
	// trusts the id: an attacker who has seen one signed request can have it handled again under another id. ByBody
	// does not, and has two costs. Of two events with identical bytes, such as a workflow dispatched twice within a
	// second, the second counts as a duplicate. A delivery whose body changes between attempts becomes two events.
	// Signed ids are always trusted, and a delivery without an id is always recognised by its body. Defaults to ByBody.
	Unsigned Identity

	// SharedSource lets several endpoints of one inbox have one source, for example two paths, or an old and a new secret,
	// of one account of one provider. All of them must set it. Otherwise New refuses the second one: with two accounts
	// under one source, an event of one is a duplicate of the other's. New sees the endpoints of its own process only.
	SharedSource bool

	// TypeFunc returns the event type of a delivery; handlers are registered by type. One inbox may hold the types of
	// several sources: add a prefix if they are not distinct. The delivery is verified. Many goroutines call it at once.
	// Defaults to Delivery.Type, and to "webhook" if the delivery has none.
	TypeFunc func(d Delivery, body []byte) string

	// KeyFunc returns the key of the event. Events of one key are handled one after the other in the order of their
	// arrival, which may differ from the order in which they happened. Many goroutines call it at once. Defaults to none:
	// no order.
	KeyFunc func(d Delivery, body []byte) string

	// Headers names the request headers that the event carries, under their names in lower case. With "X-Request-Id" among them,
	// and inbox.Config.CorrelationHeader "x-request-id", the inbox's log lines have the correlation id of the request. Headers with
	// credentials or signatures are refused. A value that is not UTF-8 or longer than 4 KiB is left out. Nil means
	// Content-Type; an empty slice means none.
	Headers []string

	// MaxBody is the maximum size of a body in bytes, up to 64 MiB. Defaults to 1 MiB.
	MaxBody int64

	// Workers is how many deliveries are in progress at once, each with a connection of the inbox's pool. Further
	// deliveries wait up to Wait and are then answered with 503. Between 1 and 1,000. Defaults to 8.
	Workers int

	// Wait is how long a delivery waits for a worker. -1 means not at all. Defaults to 5 s.
	Wait time.Duration

	// RetryAfter is the Retry-After of a 503: when the sender should try again. Between 1 s and 1 h. Defaults to 5 s.
	RetryAfter time.Duration

	// Horizon is how long the provider may send an event again. New refuses an inbox that forgets sooner
	// (inbox.Config.SourceRetention, Retention). If the signature has no time (GitHub, Shopify), a replay is recognised only that long;
	// below 30 days a warning is logged. Stripe lets people send an event again by hand for 30 days: below that a warning is
	// logged too, unless Horizon is set. Defaults to 76 hours.
	Horizon time.Duration

	// NowFunc is the clock against which timestamps are checked. Many goroutines call it at once. Defaults to time.Now.
	NowFunc func() time.Time

	// Observer receives what happens. Defaults to nothing.
	Observer Observer

	// Logger receives constant messages with attributes, never bodies, secrets or signatures. Defaults to the inbox's.
	Logger *slog.Logger
}

// Observer receives what an endpoint does. Any field may be nil. The functions are called inline, from many goroutines
// at once, and must be quick.
type Observer struct {
	// OnRequest is called when a request arrives at the endpoint of source, with its context, before anything of it is checked.
	// It must not read the body. The request goes on with the context that it returns, which must be made from the given one.
	// headers travel with the event, such as traceparent, and win over those that Config.Headers names; they must be valid and
	// not reserved, or none of them is taken. ended is called once, when the request is answered.
	OnRequest func(ctx context.Context, source string, r *http.Request) (requests context.Context, headers map[string]string, ended func())

	// OnRefused is called when a request was refused: it was not a delivery, or not from the provider.
	OnRefused func(Refused)

	// OnDelivery is called when a delivery was answered.
	OnDelivery func(Answered)
}

// Refused describes a refused request. Nothing in it comes from the sender, except for what middlewares put into Context.
type Refused struct {
	Context context.Context // the request's, with its span
	Source  string
	Status  int
	Reason  Reason
	Err     error
}

// Answered describes a verified delivery and its answer.
type Answered struct {
	Context       context.Context // the request's, with its span
	Source        string
	Delivery      Delivery
	EventID       string        // the id of the event in the inbox; "" for a handshake
	CorrelationID string        // the name by which other logs know the request; "" if there is none
	Outcome       inbox.Outcome // "" for a handshake, and if nothing was decided
	Status        int
	Err           error         // why nothing was decided
	Took          time.Duration // from the call of the handler to the answer
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

func (c Config) withDefaults(source string, in inbox.Config) Config {
	c.Mode = or(c.Mode, Inline)
	c.Topic = or(c.Topic, "webhook."+source)
	c.Unsigned = or(c.Unsigned, ByBody)
	if c.TypeFunc == nil {
		c.TypeFunc = func(d Delivery, _ []byte) string { return or(d.Type, "webhook") }
	}
	if c.KeyFunc == nil {
		c.KeyFunc = func(Delivery, []byte) string { return "" }
	}
	if c.Headers == nil {
		c.Headers = []string{"Content-Type"}
	}
	c.MaxBody = or(c.MaxBody, defaultMaxBody)
	c.Workers = or(c.Workers, defaultWorkers)
	c.Wait = max(or(c.Wait, defaultWait), 0)
	c.RetryAfter = or(c.RetryAfter, defaultRetryAfter)
	c.Horizon = or(c.Horizon, defaultHorizon)
	if c.NowFunc == nil {
		c.NowFunc = time.Now
	}
	c.Logger = or(c.Logger, in.Logger)
	return c
}

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// validate checks a copy that has its defaults, and reports every problem at once.
func (c Config) validate(source string, in inbox.Config) error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !text(source, 1, 255) {
		bad("source is %q: it must be a name of 1 to 255 bytes of UTF-8, one for each endpoint", source)
	}
	if !topicName.MatchString(c.Topic) || c.Topic == "." || c.Topic == ".." { // the inbox's rule
		bad("topic is %q: it must be 1 to 249 letters, digits, '.', '_' and '-', and neither '.' nor '..': set it if the source has other characters", c.Topic)
	}
	switch c.Mode {
	case Inline, StoreFirst:
	default:
		bad("mode is %q: it must be %q or %q", c.Mode, Inline, StoreFirst)
	}
	switch c.Unsigned {
	case ByBody, ByID:
	default:
		bad("unsigned is %q: it must be %q or %q", c.Unsigned, ByBody, ByID)
	}
	for _, name := range c.Headers {
		lower := strings.ToLower(name)
		switch {
		case name == "", strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }):
			bad("header is %q: it must be the name of a header", name)
		case wire.Reserved(lower):
			bad("header is %q: it must not be a reserved name", name)
		case secretHeaders[http.CanonicalHeaderKey(name)], strings.Contains(lower, "signature"), strings.Contains(lower, "hmac"):
			bad("header is %q: it must not carry credentials or a signature, because it is stored", name)
		}
	}
	if c.MaxBody < 1 || c.MaxBody > 64<<20 {
		bad("max body is %d: it must be between 1 and 67108864 (64 MiB)", c.MaxBody)
	}
	if c.Workers < 1 || c.Workers > 1000 {
		bad("workers is %d: it must be between 1 and 1000; give the pool as many connections", c.Workers)
	}
	if c.Wait > time.Hour {
		bad("wait is %s: it must be at most 1h: the provider does not wait that long", c.Wait)
	}
	if c.RetryAfter < time.Second || c.RetryAfter > time.Hour {
		bad("retry after is %s: it must be between 1s and 1h", c.RetryAfter)
	}
	switch {
	case c.Horizon < time.Minute:
		bad("horizon is %s: it must be at least 1m: a provider repeats what was not acknowledged", c.Horizon)
	case in.RetentionOf(source) < c.Horizon:
		bad("horizon is %s: it must be at most the inbox's retention of this source, %s, or a later repeat would be handled again: lengthen it, in inbox.Config.SourceRetention", c.Horizon, in.RetentionOf(source))
	}
	return errors.Join(problems...)
}

var secretHeaders = map[string]bool{"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Set-Cookie": true}

// text reports whether a value fits a text column of the inbox.
func text(value string, shortest, longest int) bool {
	return len(value) >= shortest && len(value) <= longest && utf8.ValidString(value) && strings.IndexByte(value, 0) < 0
}
