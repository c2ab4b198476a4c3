// Package waiting lets a person see the events that wait, and decide about them.
//
// An event that cannot go on waits in one of three places: in a relay, because it cannot be published yet; in a consumer, because its
// handler cannot run or has failed; or in the schedule, because its time has not come (holdfast.Event.NotBefore). In relays and consumers
// it waits in the queue of its key; in the schedule events have no order yet. Why says for what one waits. Nothing that waits is lost, and what waits for no person goes on by itself.
//
// Groups counts what waits by place, topic and reason. List reads the events, and Show one of them with all its errors. Retry
// has them tried at once, GiveUp makes them dead letters, Discard gives them up for good, Redirect sends those of a topic to another
// one, and Cancel takes scheduled ones back. Pause and Resume have a topic, a consumer or a key wait until a person says otherwise.
// Events that were given up are dead letters: package dlq works on those.
//
// Every change is one short transaction, or many, that also records who made it and why.
package waiting

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/manual"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Why says for what an event waits. An event whose turn has come, or whose handler runs, waits for nothing: its Why is "".
type Why string

// The reasons for which events wait. Of several that are true of an event, the first in this list is named.
const (
	Scheduled    Why = "scheduled"     // its time has not come
	NoHandler    Why = "no-handler"    // no node of its consumer handles its type
	Paused       Why = "paused"        // a person has paused its topic, its consumer or its key
	Topic        Why = "topic"         // its topic takes no events: it is missing, say
	Partition    Why = "partition"     // its partition takes no events
	BehindEvent  Why = "behind-event"  // an earlier event of its key waits
	BehindLetter Why = "behind-letter" // a dead letter holds its key, until a person replays or discards that
	Dependency   Why = "dependency"    // something that its handler needs is away (inbox.Needs)
	Failed       Why = "failed"        // its last attempt failed, and the time of the next one, Event.NextAt, has not come
)

// Whys are all reasons, in their order.
var Whys = []Why{Scheduled, NoHandler, Paused, Topic, Partition, BehindEvent, BehindLetter, Dependency, Failed}

// ErrNotFound says that nothing waits that a filter selects. Errors wrap it.
var ErrNotFound = errors.New("nothing like that waits")

// ErrInvalid says that a filter or options are wrong, or do not allow what is asked for, and what about them. Errors wrap it.
var ErrInvalid = errors.New("invalid")

// ErrBehindLetter says that dead letters hold keys, whose events were left where they are. The error of Redirect wraps it.
var ErrBehindLetter = errors.New("dead letters hold their keys")

// ErrBeingSent says that relays send events just now, so that they were left to them. The errors of GiveUp, Discard and Redirect wrap it.
var ErrBeingSent = errors.New("events are being sent")

// ErrPaused says that a topic is paused, so that none of its events is tried. The error of Retry wraps it.
var ErrPaused = errors.New("the topic is paused")

// Event is an event that waits.
type Event struct {
	Origin   string // where: dlq.OriginRelay for relays and the schedule, dlq.OriginInbox for a consumer
	Consumer string // "" unless it waits in one

	// Event is the event without its payload and its headers.
	Event holdfast.Event

	Why       Why
	Head      bool      // nothing of its key is before it
	Running   bool      // its handler runs. Whether a relay is publishing an event is not known here.
	Partition int       // for which it waits, in a relay; -1 for none
	Attempts  int       // in a consumer with the one that runs
	Error     string    // of the last attempt
	Since     time.Time // when it began to wait; of a scheduled event its Time
	NextAt    time.Time // when it is tried next if nothing holds it then, or when a scheduled event is due; zero if that is not known
	Letter    int64     // the dead letter that it is a replay of; 0 if none

	Lane  int   // in a relay and in the schedule
	Place int64 // its place among those of its lane or consumer, topic and key; in the schedule among those due at the same time
}

// place is where events wait.
type place int

const (
	inRelay place = iota
	inConsumer
	inSchedule
)

// place says where e waits.
func (e *Event) place() place {
	switch {
	case e.Consumer != "":
		return inConsumer
	case e.Why == Scheduled:
		return inSchedule
	}
	return inRelay
}

// Filter selects the waiting events that match all its fields. The zero Filter selects all.
type Filter struct {
	Origin    string // dlq.OriginRelay or dlq.OriginInbox; "" matches any, as in the fields below
	Consumer  string // it says dlq.OriginInbox too
	Topic     string
	Key       string
	Type      string
	Source    string
	EventID   string
	Why       Why
	Heads     bool // only the first waiting event of each key
	Partition *int // only those that wait in a relay for this partition

	// Limit is the maximum number of events. Defaults to 100 for List, which accepts up to 1,000, and to no limit for the others.
	Limit int

	// After is the last event of the previous page of List; later ones follow. Defaults to nil, the start.
	After *Event
}

const (
	defaultLimit = 100
	maxLimit     = 1000
	walkPage     = 100 // that changes read at a time
)

// Options are the options of every change.
type Options struct {
	// DryRun counts the events and changes nothing.
	DryRun bool

	// By is who does it. Required, except for a DryRun. It is kept.
	By string

	// Reason says why; it is kept too. Defaults to "".
	Reason string

	// ProgressFunc is called inline after each transaction. It must be quick. Defaults to none.
	ProgressFunc func(Progress)
}

// Progress is the progress of a change.
type Progress struct {
	Changed int // so far
	Left    int // where they are, because dead letters hold their keys: by Redirect
	Total   int // that the filter selected when the call began; 0 where they were not counted before
}

// report tells how far a change is.
func (o Options) report(p Progress) {
	if o.ProgressFunc != nil && !o.DryRun {
		o.ProgressFunc(p)
	}
}

// check says what is wrong with the options.
func (o Options) check() error {
	if o.DryRun {
		return nil
	}
	return manual.Signature(o.By, o.Reason)
}

// Config configures a Room. The zero Config works.
type Config struct {
	// Schema is the Postgres schema that holdfast.Migrate created. Defaults to "holdfast".
	Schema string
}

// Room is where events wait: all that do in one schema. Many goroutines may use it at once.
//
// Its database role needs only the rights that docs/operations.md lists for an operator.
type Room struct {
	pool   plain.Pool
	schema string
	sql    *sqlschema.Statements
	now    func() time.Time
	rest   func(ctx context.Context, d time.Duration) error
}

// New returns a Room. The error lists every problem of the configuration. New does not use the database.
func New(pool *pgxpool.Pool, c Config) (*Room, error) {
	schema, err := manual.Schema(pool, c.Schema)
	if err != nil {
		return nil, fmt.Errorf("waiting config: %w", err)
	}
	return &Room{
		pool:   plain.Of(pool),
		schema: schema,
		sql:    sqlschema.For(schema),
		now:    time.Now,
		rest:   manual.Rest,
	}, nil
}

// Retry has events tried at once that wait for their next attempt, and returns how many became due. Use it once the cause is fixed.
// Attempts stay as they are. The filter says where: in a consumer, or with dlq.OriginRelay in relays.
//
// In a consumer it makes heads due. It leaves out events that wait for an earlier one of their key or for a dead letter, those of a paused
// key, and those whose handler runs. Those of a paused consumer are tried when it is resumed. Each event is one short transaction.
//
// In relays the filter is a Topic, or a Key of it. It works beside running relays, which go on meanwhile. What waits because the
// topic or a partition takes no events needs no retry: relays try one event of each every 2 seconds at most, and if that is published, all
// others follow. The error wraps ErrPaused if the topic is paused: Resume has everything tried.
//
// The error wraps ErrNotFound if nothing like that waits.
func (r *Room) Retry(ctx context.Context, f Filter, o Options) (int, error) {
	return r.change(f, o, "retry", func() (int, error) { return r.retryRelay(ctx, f, o) },
		func() (int, error) { return r.changeConsumer(ctx, f, o, actRetry) })
}

// GiveUp makes events dead letters, and returns how many. They can be read, edited, discarded or replayed later; their ids have the order
// of each key. They hold no key: the next event of it goes on. An event that is the replay of a dead letter becomes that one again,
// which holds its key if it did before. The filter says where: in a consumer, or with dlq.OriginRelay in relays.
//
// In a consumer it leaves out events whose handler runs, and those that meanwhile wait otherwise than the filter's Why and Heads say.
// Each event is one short transaction, so you may cancel it at any event.
//
// In relays it is for a topic that will not come back: the filter is a Topic, or a Key of it. It works beside running relays, which go on
// meanwhile. Each transaction takes at most 5,000 events and 4 MiB of one lane, or one larger event, and fewer if that takes longer than
// about 100 ms. An event that a relay is sending is left to it, and so are the others of its key: if they are still there when it has
// done that, they are taken then. After 10 seconds the error says how many are still being sent, and wraps ErrBeingSent. So no event is
// published twice for this, and none is lost. You may cancel it at any time: what was committed stays, and the same call continues with
// the rest. It leaves out events that begin to wait while it runs, and later events of the topic, which relays try to publish. If
// two callers work on a topic at once, each event is changed by one of them.
//
// The error wraps ErrNotFound if nothing like that waits.
func (r *Room) GiveUp(ctx context.Context, f Filter, o Options) (int, error) {
	return r.change(f, o, "give up", func() (int, error) { return r.giveUpRelay(ctx, f, o, dlq.StateOpen) },
		func() (int, error) { return r.changeConsumer(ctx, f, o, actGiveUp) })
}

// Discard gives events up for good: each becomes a dead letter that is discarded already, so that its payload stays until a purge. It is for
// events that nobody needs. Otherwise it is as GiveUp.
func (r *Room) Discard(ctx context.Context, f Filter, o Options) (int, error) {
	return r.change(f, o, "discard", func() (int, error) { return r.giveUpRelay(ctx, f, o, dlq.StateDiscarded) },
		func() (int, error) { return r.changeConsumer(ctx, f, o, actDiscard) })
}

// Redirect makes every event of a topic, or of one key of it, that waits in a relay an event of the topic to, and returns how many. Use
// it when a topic was renamed or misspelt. Relays publish them with their ids, keys and payloads as they are. Attempts are counted from the start.
//
// The events of a key keep their order. They enter the log again, as if they were written to the other topic now: they come after all events
// of the key that were written to it before, and before those that are written to it later. That is so for each transaction: while a key
// has more events than fit into one (see GiveUp), new events of the other topic can come in between. No order holds between a key's
// events that were redirected, and those of the old topic that are published or written later. Their errors are not kept.
//
// A replay of a dead letter goes along, as an event like the others, and its letter has the other topic then. A key that a
// dead letter holds stays. After all other events the error says how many of its events were left, and wraps ErrBehindLetter: replay or
// discard that dead letter first.
//
// It is not a lasting redirect: events that are written to the old topic later wait there. Otherwise it is as GiveUp in relays.
func (r *Room) Redirect(ctx context.Context, f Filter, to string, o Options) (int, error) {
	if f.Consumer == "" {
		f.Origin = cmp.Or(f.Origin, dlq.OriginRelay)
	}
	if err := redirectable(f.Topic, to); err != nil {
		return 0, fmt.Errorf("redirect waiting events: %w: %w", ErrInvalid, err)
	}
	return r.change(f, o, "redirect", func() (int, error) { return r.redirectRelay(ctx, f, to, o) }, nil)
}

// change checks what is asked for and does it where the filter says.
func (r *Room) change(f Filter, o Options, doing string, relay, consumer func() (int, error)) (n int, err error) {
	in, wrong := f.changes(doing, consumer != nil)
	switch err = errors.Join(wrong, o.check()); {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	case in == inRelay:
		n, err = relay()
	default:
		n, err = consumer()
	}
	if err != nil {
		return n, fmt.Errorf("%s waiting events: %w", doing, err)
	}
	return n, nil
}

// validate says what is wrong with a filter, wherever its events wait.
func (f Filter) validate() error {
	var problems []error
	switch {
	case f.Origin != "" && f.Origin != dlq.OriginRelay && f.Origin != dlq.OriginInbox:
		problems = append(problems, fmt.Errorf("origin is %q: it must be relay or inbox", f.Origin))
	case f.Origin == dlq.OriginRelay && f.Consumer != "":
		problems = append(problems, fmt.Errorf("origin is relay and consumer is %q: what waits in a relay has no consumer", f.Consumer))
	}
	if f.Why != "" && !slices.Contains(Whys, f.Why) {
		problems = append(problems, fmt.Errorf("why is %q: it must be one of %v", f.Why, Whys))
	}
	if f.Partition != nil && *f.Partition < 0 {
		problems = append(problems, fmt.Errorf("partition is %d: it must be 0 or more", *f.Partition))
	}
	if f.Limit < 0 {
		problems = append(problems, fmt.Errorf("limit is %d: it must be 0 or more", f.Limit))
	}
	return errors.Join(problems...)
}

// somewhere is validate, for reading: no filter is of events that cannot be.
func (f Filter) somewhere() error {
	err := f.validate()
	if err == nil && len(f.places()) == 0 {
		err = fmt.Errorf("no event can wait so: of those in consumers none waits for %s, %s or %s, of those in relays none for %s or %s, and only those in relays for a partition",
			Topic, Partition, Scheduled, NoHandler, Dependency)
	}
	return err
}

// places are where the events of a filter can wait, in the order of List.
func (f Filter) places() (all []place) {
	ofRelay, ofInbox := f.Consumer == "" && f.Origin != dlq.OriginInbox, f.Origin != dlq.OriginRelay && f.Partition == nil
	if ofRelay && f.Why != Scheduled && f.Why != NoHandler && f.Why != Dependency {
		all = append(all, inRelay)
	}
	if ofInbox && f.Why != Scheduled && f.Why != Topic && f.Why != Partition {
		all = append(all, inConsumer)
	}
	if ofRelay && f.Partition == nil && (f.Why == "" || f.Why == Scheduled) {
		all = append(all, inSchedule)
	}
	return all
}

// changes says where a change of a filter's events takes place, or what is wrong with the filter for it. consumers says whether
// those of consumers can be changed so.
func (f Filter) changes(doing string, consumers bool) (place, error) {
	if err := f.validate(); err != nil {
		return 0, err
	}
	switch {
	case f.After != nil:
		return 0, errors.New("after is set: only List goes by it")
	case f.Partition != nil:
		return 0, fmt.Errorf("partition is %d: changes do not go by it, because they would take some events of a key and leave later ones; "+
			"relays try what waits for a partition by themselves", *f.Partition)
	case f.Why == Scheduled:
		return 0, errors.New("why is scheduled: only Cancel changes what waits for its time")
	case !consumers && (f.Consumer != "" || f.Origin == dlq.OriginInbox):
		return 0, fmt.Errorf("a consumer's events are meant: only those of relays can be changed so (%s)", doing)
	case f.Consumer != "" && (f.Why == Topic || f.Why == Partition):
		return 0, fmt.Errorf("why is %s: no event of a consumer waits for that", f.Why)
	case f.Consumer != "" && doing == "retry" && (f.Why == BehindEvent || f.Why == BehindLetter):
		return 0, fmt.Errorf("why is %s: Retry is for events that nothing is before", f.Why)
	case f.Consumer != "":
		return inConsumer, nil
	case f.Origin != dlq.OriginRelay:
		return 0, errors.New("consumer is empty: it must name whose events are meant, or origin must be relay")
	case f.Topic == "":
		return 0, errors.New("topic is empty: it must name the topic whose events in relays are meant")
	}
	for _, field := range []struct {
		name string
		set  bool
	}{{"type", f.Type != ""}, {"source", f.Source != ""}, {"event id", f.EventID != ""}, {"why", f.Why != ""}, {"heads", f.Heads}, {"limit", f.Limit != 0}} {
		if field.set {
			return 0, fmt.Errorf("%s is set: in relays changes go by topic and key only, because others would take some events of a key and leave later ones", field.name)
		}
	}
	return inRelay, nil
}

// partition is what statements take for Partition.
func (f Filter) partition() int32 {
	if f.Partition == nil {
		return -1
	}
	return int32(min(*f.Partition, math.MaxInt32)) // Kafka has no larger one
}

// notFound says that a filter selects nothing.
func (f Filter) notFound() error {
	switch {
	case f.Consumer != "":
		return fmt.Errorf("%w in the consumer %q", ErrNotFound, f.Consumer)
	case f.Key != "":
		return fmt.Errorf("%w of the key %q of the topic %q", ErrNotFound, f.Key, f.Topic)
	}
	return fmt.Errorf("%w of the topic %q: holdfast waiting groups lists the topics, as Room.Groups does", ErrNotFound, f.Topic)
}
