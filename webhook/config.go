package webhook

import (
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

	// defaultHorizon is a little more than the 75 h 35 min over which the Standard Webhooks specification's example repeats
	// a delivery.
	defaultHorizon = 76 * time.Hour
)

// timelessWindow is how long an inbox should know the ids of webhooks that sign no time: a request of theirs that was
// recorded stays good for as long as its secret is.
const timelessWindow = 30 * 24 * time.Hour

// Mode says when a delivery is handled.
type Mode string

const (
	// Inline handles the event before the request is answered. A handler that fails is tried again by Inbox.Run.
	Inline Mode = "inline"

	// StoreFirst stores the event, answers, and leaves its handler to Inbox.Run: for handlers that may take longer than the
	// provider waits (3 s with Slack, 5 s with Shopify, 10 s with GitHub).
	StoreFirst Mode = "store"
)

// Identity says by what a repeat is recognised.
type Identity string

const (
	// ByBody takes deliveries of one type with the same body for one event.
	ByBody Identity = "body"

	// ByID takes deliveries with the same id for one event.
	ByID Identity = "id"
)

// Config says how webhooks are received. The zero value is safe, and each zero field means its default.
type Config struct {
	// Mode says when a delivery is handled. Defaults to Inline.
	Mode Mode

	// Topic is the topic of the events: a name that the inbox and its letters show, no topic of Kafka's has to be there for
	// it. Defaults to "webhook." and the source.
	Topic string

	// Unsigned says by what a repeat is recognised where the provider does not sign the id, as GitHub and Shopify. ByID
	// believes the id: an attacker who has seen one request with its signature can have it handled again by changing the id.
	// ByBody does not, and costs two things: of two events that are the same to the byte, such as a workflow that is
	// dispatched twice within a second, the second is a duplicate; and a delivery whose body changes between its tries is
	// two events. Signed ids are always believed, and a delivery without an id is always recognised by its body.
	// Defaults to ByBody.
	Unsigned Identity

	// TypeFunc returns the type of the event that a delivery is; handlers are registered by it. Types of all sources meet in
	// one inbox: put a prefix before them where they are not distinct. Defaults to Delivery.Type, and to "webhook" where
	// the delivery tells none.
	TypeFunc func(d Delivery, body []byte) string

	// KeyFunc returns the key of the event: events of a key are handled one after the other, in the order in which they
	// come, which need not be the order in which they happened. Defaults to none: no order.
	KeyFunc func(d Delivery, body []byte) string

	// Headers names the headers of the request that the event carries, under their names in lower case. Those that carry
	// credentials or signatures are refused. A value that is no UTF-8 or has more than 4 KiB is left out. Nil means
	// Content-Type; an empty slice means none.
	Headers []string

	// MaxBody is the largest body, in bytes, that is read. Up to 64 MiB. Defaults to 1 MiB.
	MaxBody int64

	// Workers is how many deliveries are in progress at once, each with a connection of the inbox's pool. The others wait for
	// Wait, and are then told to come again. Between 1 and 1,000. Defaults to 8.
	Workers int

	// Wait is how long a delivery waits for its turn. -1 means not at all. Defaults to 5 s.
	Wait time.Duration

	// RetryAfter is the Retry-After of a 503: when a sender should come again. Between 1 s and 1 h. Defaults to 5 s.
	RetryAfter time.Duration

	// Horizon is for how long the provider may send an event again. New refuses an inbox that forgets earlier
	// (inbox.Config.Retention). Where no time is signed (GitHub, Shopify), a replay is recognised for that long only: the log
	// has a warning where it is shorter than 30 days. Defaults to 76 hours.
	Horizon time.Duration

	// NowFunc is the clock that timestamps are held against. Defaults to time.Now.
	NowFunc func() time.Time

	// Observer gets what happens.
	Observer Observer

	// Logger gets constant messages with attributes, never bodies, secrets or signatures. Defaults to the inbox's.
	Logger *slog.Logger
}

// Observer gets what a receiver does. Any field may be nil. The functions are called in line, from many goroutines,
// and must be quick.
type Observer struct {
	// OnRefused is called when a request was refused: it was no delivery, or not the provider's.
	OnRefused func(Refused)

	// OnDelivery is called when a delivery was answered.
	OnDelivery func(Answered)
}

// Refused tells of a request that was refused. Nothing in it was said by the sender.
type Refused struct {
	Source string
	Status int
	Reason Reason
	Err    error
}

// Answered tells of a delivery that was verified, and of its answer.
type Answered struct {
	Source   string
	Delivery Delivery
	EventID  string        // of the event that it is; "" for a handshake
	Outcome  inbox.Outcome // "" for a handshake, and where nothing was decided
	Status   int
	Err      error         // why nothing was decided
	Took     time.Duration // from the first byte of its body on
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
	if !topicName.MatchString(c.Topic) || c.Topic == "." || c.Topic == ".." { // as the inbox has it
		bad("topic is %q: it must be 1 to 249 letters, digits, '.', '_' and '-', and neither '.' nor '..': set it where the source has others", c.Topic)
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
			bad("header %q: it must be the name of a header", name)
		case wire.Reserved(lower):
			bad("header %q: the name is reserved", name)
		case secretHeaders[http.CanonicalHeaderKey(name)], strings.Contains(lower, "signature"), strings.Contains(lower, "hmac"):
			bad("header %q: it carries credentials or a signature, which must not be stored", name)
		}
	}
	if c.MaxBody < 1 || c.MaxBody > 64<<20 {
		bad("max body is %d: it must be between 1 byte and 64 MiB", c.MaxBody)
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
		bad("horizon is %s: it must be at least 1m: a provider sends again what was not acknowledged", c.Horizon)
	case in.Retention < c.Horizon:
		bad("horizon is %s, but the inbox's window is %s: a repeat that comes after it would be handled again: lengthen inbox.Config.Retention", c.Horizon, in.Retention)
	}
	return errors.Join(problems...)
}

var secretHeaders = map[string]bool{"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Set-Cookie": true}

// text says whether a value fits a column of the inbox's.
func text(value string, shortest, longest int) bool {
	return len(value) >= shortest && len(value) <= longest && utf8.ValidString(value) && strings.IndexByte(value, 0) < 0
}
