package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
)

// Defaults of Config.
const (
	defaultTimeout          = 30 * time.Second
	defaultGrace            = 5 * time.Second
	defaultStopTimeout      = 10 * time.Second
	defaultRetention        = 7 * 24 * time.Hour
	mostSourceRetentions    = 64
	defaultWorkers          = 8
	defaultGroup            = 1
	defaultMaxHung          = 8
	defaultImmediateRetries = 2
	defaultPollMin          = 20 * time.Millisecond
	defaultPollMax          = time.Second

	defaultMemory = 128 << 20
	leastMemory   = 16 << 20

	defaultMaxStored    = 1_000_000
	defaultMaxStoredKey = 10_000
)

// defaultRetry is the policy for what Config.Retry leaves open: ten attempts in all, full jitter, delays from one second up to five
// minutes, and no limit on the time in all.
var defaultRetry = retry.Policy{Attempts: 10, Base: time.Second, Cap: 5 * time.Minute, Budget: -1}

// Unknown says what becomes of an event whose type has no handler on any node of the consumer.
type Unknown string

const (
	// UnknownSkip counts the event (Observer.OnReceive, outcome Skipped) and goes on. The first of a type is reported in the log
	// with the types that this node handles (Observer.OnUnknownType), and holdfast status lists the types with their counts.
	// Nothing else is written. That holds for records that the tables could not hold, too, since other programs may write such to a shared topic. A record whose type
	// cannot be read becomes a dead letter.
	UnknownSkip Unknown = "skip"

	// UnknownStore stores the event until a node that handles the type comes. Later events of its key wait for it.
	UnknownStore Unknown = "store"

	// UnknownDead makes the event a dead letter at once.
	UnknownDead Unknown = "dead"
)

// Erased says what becomes of an event whose payload is encrypted with a key that was erased.
type Erased string

const (
	// ErasedDead makes the event a dead letter at once. Its payload stays unreadable: somebody should see that it was not handled.
	ErasedDead Erased = "dead"

	// ErasedSkip settles the event without calling its handler, says so in the log, and calls Observer.OnErased. Choose it if the
	// keys of people are erased for good, so that what is still on its way for them needs nobody's attention.
	ErasedSkip Erased = "skip"
)

// Config configures an Inbox. The zero value of each field means its default. Only Consumer is required.
type Config struct {
	// Schema is the name of the Postgres schema that holds holdfast's tables. Defaults to "holdfast".
	Schema string

	// Consumer names the service that consumes: each consumer handles an event once. All nodes of a service share one name, and no
	// two services do. 1 to 255 bytes. Required.
	Consumer string

	// Retry says how often an event that fails is tried, and how far apart. Attempts counts all attempts, the immediate ones
	// included. A Budget gives an event up when its next attempt would come later than that after its first failure. Time in
	// which the database is away counts. Defaults, field by field, to 10 attempts, 1 s Base, 5 min Cap and no Budget.
	Retry retry.Policy

	// ImmediateRetries is how many attempts follow the first at once: the pause is at most 20 ms, then doubles up to 200 ms.
	// After them the event is stored, and other keys can go on. A handler that timed out gets none, nor does retry.After. -1 means
	// none. Defaults to 2.
	ImmediateRetries int

	// BatchSize is how many events of a partition one transaction handles at most, if HandleBatch registered their type. Between 1
	// and 10,000; more than 1,024 never come together. Defaults to 1.
	BatchSize int

	// Group is WithGroup for all types that Handle and On register: how many events one transaction takes in at most while many wait.
	// WithGroup says what handlers give up that share a transaction. Between 1 and 1,000. Defaults to 1: each handler has a transaction
	// of its own.
	Group int

	// Workers is how many handlers run at once on this node for Consume, and as many again for stored events. Each occupies a
	// connection of the pool. Between 1 and 1,000. Defaults to 8.
	Workers int

	// MemoryBudget is how many bytes of events, with their keys and headers, Consume has in memory at a time, of all partitions:
	// those that it reads ahead, those that handlers have, and what is not unpacked yet. A partition has its share of it, at most
	// 16 MiB. An event that takes more than a quarter of the budget becomes a dead letter without its payload, which stays in the log of its topic.
	// Stored events that workers have (Run) take up to an eighth as much on top, or one event alone if it is larger. What handlers
	// make of events comes on top too, and what Receive and Store are given. At least 16 MiB. Defaults to 128 MiB.
	MemoryBudget int64

	// Timeout is how long a handler may run before its context is cancelled. Between 1 ms and 24 h. Defaults to 30 s.
	//
	// Nodes of one consumer may differ, for example during a rolling deploy. But Timeout + Grace + 30 s of one should not be more
	// than twice that of another. Otherwise the second node believes that a wrong clock gave the first node's leases, and begins
	// events that the first is handling. One of the two is rolled back, but it counts as an attempt.
	Timeout time.Duration

	// Grace is how long a handler may take to return after its context was cancelled. After that it counts as hung: its connection
	// is closed, and it is abandoned. Defaults to 5 s.
	Grace time.Duration

	// StopTimeout is how long handlers may go on after the context of Run or Consume has ended, or the group has taken partitions
	// back. Then their contexts are cancelled. StopTimeout and Grace together must be shorter than the session time-out of
	// Consume's group. -1 cancels handlers at once. Defaults to 10 s.
	StopTimeout time.Duration

	// MaxHung is how many hung handlers an inbox tolerates. At that number Run, Consume and ConsumeUntil stop with ErrHungHandlers, and
	// Receive, ReceiveTx and TryReceive return it. Defaults to 8.
	MaxHung int

	// Retention is how long an inbox row is kept at least, counted from the start of the transaction that settled its event
	// (processed_at). A repeat within that time is recognised. Run removes older rows; a row with an offset, which Consume writes, stays until the
	// offset lies below the position of its partition, so that the same record is Stale when it comes again. Nothing else
	// catches a later repeat, by Receive, ReceiveTx, Store or StoreTx, or of an event that was published twice. So make it
	// longer than a sender repeats. At least a minute, and longer than a handler may run. Defaults to 7 days.
	Retention time.Duration

	// SourceRetention is the Retention of the events of single sources, by name: a webhook endpoint whose provider repeats for longer, or a
	// sender of many events that are known for a shorter time. All nodes of the consumer must have the same, since the rows of a source that
	// a node does not find here follow its Retention. At most 64, with the bounds of Retention. Defaults to none.
	SourceRetention map[string]time.Duration

	// HoldKey keeps the later events of a key waiting when one of them has become a dead letter, until the letter is replayed or
	// discarded. That holds for an event that was given up, and for a record that the tables cannot hold, if they can hold its
	// key. Defaults to false: the key goes on.
	HoldKey bool

	// MaxStored is how many events of the consumer may be stored in all; MaxStoredKey is how many of one topic and key. One more is
	// not taken in. Consume holds its partition, says so in the log and to Observer.OnFull, and tries again until there is room.
	// Receive and Store return ErrFull. The number in all is counted every few seconds, and queues of more than 100 events are
	// measured now and then, so that some more may get in. -1 means no limit. Default to 1,000,000 and 10,000.
	MaxStored, MaxStoredKey int

	// UnknownType says what becomes of events of a type that no node declares. Defaults to UnknownSkip. Events of a type that
	// another node declares are always stored for it. That goes on for an hour and two minutes after the last node with a handler
	// was heard of, since it may be unable to reach Postgres. If no such node comes back, the events wait, and later events of
	// their keys too. The gauge
	// holdfast_waiting_no_handler counts them, and a node that handles the type takes them. Package direct, which has no log to
	// read again, skips a type only if UnknownSkip is set here, and else keeps it and what is after it in its topic.
	UnknownType Unknown

	// SourceTopics names, for sources that matter, the topics from which their events are taken. Anybody who may write to another
	// topic could otherwise send an event under such a source with the id of a real one, which would then be a duplicate. An
	// event of the source from any other topic becomes a dead letter under an id of its own, and Receive and Store refuse it.
	// Events of sources that it does not name may come from every topic. Defaults to none.
	SourceTopics map[string][]string

	// CorrelationHeader is the header of an event by which other logs know it: log lines and spans have its value as
	// correlation_id, or the trace id of traceparent if the event has no such header. Defaults to "correlation_id".
	CorrelationHeader string

	// Decryptor decrypts the payloads that outbox.Config.Encryptor encrypted, for handlers. Everything else has what came: inbox rows,
	// stored events and dead letters. It is asked in the handler's transaction and within its Timeout, and its errors count as the
	// handler's. Without one, an encrypted event fails. Defaults to none.
	Decryptor holdfast.Decryptor

	// ErasedKey says what becomes of an event whose key was erased (holdfast.ErrKeyErased). Defaults to ErasedDead.
	ErasedKey Erased

	// DeadLetterTopic publishes every dead letter to a topic of the broker too, each time an event is given up: "*.dlq" is the event's topic
	// with ".dlq" added, "dead-letters" is one topic for all. It goes through the log in the transaction that writes the letter, so
	// a relay has to run on this database. It keeps the event's key, type and source, has an id of its own, and carries the
	// headers that docs/operations/dead-letters.md lists. Dead letters of events from such a topic are not published. Create the topics
	// first. Defaults to "", off.
	DeadLetterTopic string

	// LetterPayload is the largest payload, in bytes, that is published with a letter. A larger one is left out, and a header says
	// so. It should lie well below what the topic takes (Kafka: max.message.bytes). -1 leaves out every payload, and the texts of errors, which may
	// quote it: the class of the error is published, and its fingerprint. The letter in Postgres has the whole text. Defaults to a
	// little less than 1 MiB, which fits Kafka's own limits.
	LetterPayload int

	// PollMin and PollMax are how often Run looks for stored events that are due: every PollMin while it finds some, and less and
	// less often, down to every PollMax, while it does not. Default to 20 ms and 1 s.
	PollMin, PollMax time.Duration

	// Observer receives what the inbox does. Defaults to nothing.
	Observer Observer

	// RedactErrorFunc says what of a handler's error leaves the table of dead letters: it is the attribute error of "handler failed, will
	// retry" and "event given up", and ends the reason of a dead letter, which lists, groups and published letters show. That is the first line
	// of what it returns, at most 200 bytes, without characters that cannot be printed. It gets what the handler returned, must be
	// quick, and is called from many goroutines. Where it returns "", only holdfast's own words are said. WithholdError withholds
	// all that a handler said, ErrorKind leaves out what looks like a value, and error.Error leaves out nothing. Defaults to the
	// error's text with # in place of what it shares with the event: each string or number of its payload, its key and each value of a header,
	// if it has three bytes and stands there as a word, and any 12 bytes in a row of one. What a handler rephrases,
	// such as a rounded number, is not recognised. Of an event with an encrypted payload it defaults to WithholdError.
	RedactErrorFunc func(error) string

	// Logger gets constant messages with attributes, never payloads or header values. Defaults to slog.Default().
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
	c.Retry = c.Retry.Or(defaultRetry)
	c.ImmediateRetries = max(or(c.ImmediateRetries, defaultImmediateRetries), 0)
	c.BatchSize = or(c.BatchSize, 1)
	c.Group = or(c.Group, defaultGroup)
	c.Workers = or(c.Workers, defaultWorkers)
	c.MemoryBudget = or(c.MemoryBudget, defaultMemory)
	c.Timeout = or(c.Timeout, defaultTimeout)
	c.Grace = or(c.Grace, defaultGrace)
	c.StopTimeout = max(or(c.StopTimeout, defaultStopTimeout), 0)
	c.MaxHung = or(c.MaxHung, defaultMaxHung)
	c.Retention = or(c.Retention, defaultRetention)
	c.UnknownType = or(c.UnknownType, UnknownSkip)
	c.ErasedKey = or(c.ErasedKey, ErasedDead)
	c.MaxStored = or(c.MaxStored, defaultMaxStored)
	c.MaxStoredKey = or(c.MaxStoredKey, defaultMaxStoredKey)
	c.CorrelationHeader = or(c.CorrelationHeader, "correlation_id")
	c.LetterPayload = or(c.LetterPayload, defaultLetterPayload)
	c.PollMin = or(c.PollMin, defaultPollMin)
	c.PollMax = or(c.PollMax, max(defaultPollMax, c.PollMin))
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
	if err := checkText("consumer", c.Consumer, 1, 255); err != nil {
		bad("%w: name the service that consumes, the same on all its nodes", err)
	}
	if err := c.Retry.Validate("retry"); err != nil {
		problems = append(problems, err)
	}
	if err := checkText("correlation header", c.CorrelationHeader, 1, 255); err != nil {
		problems = append(problems, err)
	} else if wire.Reserved(c.CorrelationHeader) {
		bad("correlation header is %q: it must not be a reserved name", c.CorrelationHeader)
	}
	if c.ImmediateRetries > 100 {
		bad("immediate retries is %d: it must be between 0 and 100, or -1 for none: the partition waits for all of them", c.ImmediateRetries)
	}
	if c.BatchSize < 1 || c.BatchSize > 10_000 {
		bad("batch size is %d: it must be between 1 and 10000", c.BatchSize)
	}
	if c.Group < 1 || c.Group > maxGroup {
		bad("group is %d: it must be between 1 and %d; 1 is a transaction for each event", c.Group, maxGroup)
	}
	if c.Workers < 1 || c.Workers > 1000 {
		bad("workers is %d: it must be between 1 and 1000; give the pool as many connections", c.Workers)
	}
	if c.MemoryBudget < leastMemory {
		bad("memory budget is %d: it must be at least 16 MiB, %d bytes", c.MemoryBudget, leastMemory)
	}
	problems = append(problems, c.timeoutProblems()...)
	if c.Grace < time.Millisecond || c.Grace > time.Hour {
		bad("grace is %s: it must be between 1ms and 1h", c.Grace)
	}
	if c.StopTimeout > time.Hour {
		bad("stop timeout is %s: it must be at most 1h", c.StopTimeout)
	}
	if c.MaxHung < 1 {
		bad("max hung is %d: it must be at least 1; leave it 0 for %d", c.MaxHung, defaultMaxHung)
	}
	if c.Retention < time.Minute {
		bad("retention is %s: it must be at least 1m, and longer than a redelivery can be late", c.Retention)
	}
	if len(c.SourceRetention) > mostSourceRetentions {
		bad("source retention has %d sources: it must have at most %d, because the rows of each are removed apart", len(c.SourceRetention), mostSourceRetentions)
	}
	for _, source := range slices.Sorted(maps.Keys(c.SourceRetention)) {
		of := c.SourceRetention[source]
		if err := checkText("source", source, 1, 255); err != nil {
			bad("source retention: %w", err)
		}
		if of < time.Minute {
			bad("source retention of %s is %s: it must be at least 1m, and longer than a redelivery can be late", excerpt(source), of)
		}
	}
	if c.MaxStored < -1 {
		bad("max stored is %d: it must be at least 1, 0 for the default, or -1 for no limit", c.MaxStored)
	}
	if c.MaxStoredKey < -1 {
		bad("max stored key is %d: it must be at least 1, 0 for the default, or -1 for no limit", c.MaxStoredKey)
	}
	switch c.UnknownType {
	case UnknownSkip, UnknownStore, UnknownDead:
	default:
		bad("unknown type is %q: it must be %q, %q or %q", c.UnknownType, UnknownSkip, UnknownStore, UnknownDead)
	}
	switch c.ErasedKey {
	case ErasedDead, ErasedSkip:
	default:
		bad("erased key is %q: it must be %q or %q", c.ErasedKey, ErasedDead, ErasedSkip)
	}
	for source, topics := range c.SourceTopics {
		if err := checkText("source", source, 0, 255); err != nil {
			bad("source topics: %w", err)
		}
		if len(topics) == 0 {
			bad("source topics of %s is empty: it must name the topics that its events come from", excerpt(source))
		}
		for _, topic := range topics {
			if err := checkTopic(topic); err != nil {
				bad("source topics of %s: %w", excerpt(source), err)
			}
		}
	}
	if err := wire.ValidateLetterTopic(c.DeadLetterTopic); err != nil {
		problems = append(problems, err)
	}
	if c.LetterPayload < -1 || c.LetterPayload > 1<<30 {
		bad("letter payload is %d: it must be at most 1 GiB, 0 for %d, or -1 to publish none", c.LetterPayload, defaultLetterPayload)
	}
	if c.PollMin < time.Millisecond || c.PollMax < c.PollMin {
		bad("poll min is %s: it must be between 1ms and poll max, %s", c.PollMin, c.PollMax)
	}
	return errors.Join(problems...)
}

// timeoutProblems are those of Timeout, which a registration may change for its type.
func (c Config) timeoutProblems() (problems []error) {
	if c.Timeout < time.Millisecond || c.Timeout > 24*time.Hour {
		problems = append(problems, fmt.Errorf("timeout is %s: it must be between 1ms and 24h: a handler without a limit would hold its key forever", c.Timeout))
	}
	if c.Retention <= c.Timeout+c.Grace {
		problems = append(problems, fmt.Errorf("retention is %s: it must be longer than timeout and grace, %s: a row's age counts from before its handler ran", c.Retention, c.Timeout+c.Grace))
	}
	for _, source := range slices.Sorted(maps.Keys(c.SourceRetention)) {
		if of := c.SourceRetention[source]; of <= c.Timeout+c.Grace {
			problems = append(problems, fmt.Errorf("source retention of %s is %s: it must be longer than timeout and grace, %s: a row's age counts from before its handler ran", excerpt(source), of, c.Timeout+c.Grace))
		}
	}
	return problems
}

// RetentionOf is how long an inbox row of an event of source is kept at least: SourceRetention, or else Retention.
func (c Config) RetentionOf(source string) time.Duration {
	if own, has := c.SourceRetention[source]; has {
		return own
	}
	return c.Retention
}

// lease is how long a stored event belongs to the worker that claimed it: as long as its handler can take at most, and 30 s to get a
// connection first.
func (c Config) lease() time.Duration { return c.Timeout + c.Grace + 30*time.Second }

// withholds says whether what is published of a letter must not quote its event.
func (c Config) withholds() bool { return c.DeadLetterTopic != "" && c.LetterPayload < 0 }

// defaultLetterPayload is the default of Config.LetterPayload: what a topic takes by default (1 MiB), less room for the record itself
// and for wire.MaxLetterHeaders.
const defaultLetterPayload = 1<<20 - 16<<10 - wire.MaxLetterHeaders
