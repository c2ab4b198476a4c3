package dlq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file works on parked events: those that wait in a relay for their topic, for their partition, for their next attempt, or for
// earlier events of their key. parked_lanes.go takes them from the relays.

// ErrNotParked says that nothing is parked of a topic, or of a key of it. Errors wrap it.
var ErrNotParked = errors.New("nothing is parked")

// ErrHeld says that dead letters hold keys, whose events were left where they are. The error of RedirectParked wraps it.
var ErrHeld = errors.New("dead letters hold their keys")

// ParkedTopic sums up what is parked of a topic for one reason.
type ParkedTopic struct {
	Topic    string
	Why      string    // what it waits for: "topic", "partition", "record" or "follows", as docs/operations/relays.md explains
	Events   int       // how many
	Keys     int       // of how many keys; events without a key do not count
	Bytes    int64     // their payloads and headers
	OldestAt time.Time // when the first of them was parked
	Error    string    // of the event that was parked last, if it has one
}

// ParkedFilter selects parked events.
type ParkedFilter struct {
	Topic string // Required.
	Key   string // "" matches all

	// Partition selects what waits for this partition, because it takes no events. Only RetryParked goes by it: the others would take
	// some events of a key and leave later ones. Defaults to nil, which matches all.
	Partition *int
}

// ParkedOptions are the options of RetryParked, GiveUpParked, DiscardParked and RedirectParked.
type ParkedOptions struct {
	// DryRun counts the events and changes nothing.
	DryRun bool

	// By is who does it. Required, except for a DryRun.
	By string

	// Reason says why. Defaults to "".
	Reason string

	// ProgressFunc is called inline after each transaction. It must be quick. Defaults to none.
	ProgressFunc func(ParkedProgress)
}

// ParkedProgress is the progress of a call that goes through many parked events.
type ParkedProgress struct {
	Moved int // given up, discarded or redirected so far
	Held  int // left where they are, because dead letters hold their keys
	Total int // parked when the call began
}

// ListParked sums up what is parked, by topic and by what it waits for. It reads all parked events.
func (d *DLQ) ListParked(ctx context.Context) ([]ParkedTopic, error) {
	rows, err := d.pool.Query(ctx, d.sql.listParked, "")
	if err != nil {
		return nil, fmt.Errorf("list parked events: %w", explain(err))
	}
	topics, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ParkedTopic])
	if err != nil {
		return nil, fmt.Errorf("list parked events: %w", explain(err))
	}
	return topics, nil
}

// GiveUpParked makes every parked event of a topic, or of one key of it, an open dead letter, and returns how many. Use it when
// the topic will not come back. The dead letters can be read, edited, discarded or replayed later; their ids have the order of each
// key. They hold no key. An event that is the replay of a dead letter becomes that one again, which holds its key if it did before.
//
// It works beside running relays. Each transaction takes at most 5,000 events and 4 MiB of one lane, or one larger event, and
// fewer if that takes longer than about 100 ms: it asks the lane's relay to hand the lane over, which finishes the calls that
// are under way, and gives it back. An event that is acknowledged meanwhile is published, and left out. So no event is
// published twice for this, none is lost, and all other events of the lane wait for a moment, which is longer if a call of
// the publisher hangs. If the relay does not hand the lane over within a minute, the error names it.
//
// You may cancel it at any time: what was committed stays, and the same call continues with the rest. It leaves out events that
// are parked while it runs, and later events of the topic, which relays try to publish and park again. If two
// callers work on a topic at once, each event is changed by one of them. The error wraps ErrNotParked if there is nothing
// to give up.
func (d *DLQ) GiveUpParked(ctx context.Context, f ParkedFilter, o ParkedOptions) (int, error) {
	p, err := d.changeParked(ctx, f, o, "give up", d.giveUp(StateOpen, o))
	return p.Moved, err
}

// DiscardParked gives parked events up for good: each becomes a dead letter that is discarded already, so that its payload stays until
// a purge. It is for events that nobody needs. Otherwise it is as GiveUpParked.
func (d *DLQ) DiscardParked(ctx context.Context, f ParkedFilter, o ParkedOptions) (int, error) {
	p, err := d.changeParked(ctx, f, o, "discard", d.giveUp(StateDiscarded, o))
	return p.Moved, err
}

// RedirectParked makes every parked event of a topic, or of one key of it, an event of the topic to, and returns how many. Use
// it when a topic was renamed or misspelt. Relays publish them with their ids, keys and payloads as they are. Attempts begin anew.
//
// The events of a key keep their order. They come after all events of the key that are published to the other topic or parked
// for it by then, and before those that relays read from the log later. That is decided for each transaction: while a key has more
// events than fit into one (see GiveUpParked), new events of the other topic can come in between. No order holds between a key's
// events that were redirected, and those of the old topic that are published or written later.
//
// A replay of a dead letter goes along, as an event like the others, and its letter has the other topic then. A key that a
// dead letter holds stays. After all other events the error says how many of its events were left, and wraps ErrHeld: replay or
// discard that dead letter first.
//
// It is not a lasting redirect: events that are written to the old topic later are parked there. Otherwise it is as
// GiveUpParked.
func (d *DLQ) RedirectParked(ctx context.Context, f ParkedFilter, to string, o ParkedOptions) (int, error) {
	if err := redirectable(f.Topic, to); err != nil {
		return 0, fmt.Errorf("redirect parked events: %w", err)
	}
	note := fmt.Sprintf("%s redirected it from the topic %s: %s", o.By, f.Topic, o.Reason)
	p, err := d.changeParked(ctx, f, o, "redirect", func(ctx context.Context, tx pgx.Tx, args []any) pgx.Row {
		return tx.QueryRow(ctx, d.sql.redirectParked, append(args, to, note)...)
	})
	if err == nil && p.Held > 0 {
		err = fmt.Errorf("redirect parked events: %d events of the topic %s were left: %w: replay or discard those first", p.Held, f.Topic, ErrHeld)
	}
	return p.Moved, err
}

// giveUp makes a batch dead letters in a state.
func (d *DLQ) giveUp(state string, o ParkedOptions) changeBatch {
	reason := fmt.Sprintf("%s gave up what is parked of its topic: %s", o.By, o.Reason)
	return func(ctx context.Context, tx pgx.Tx, args []any) pgx.Row {
		return tx.QueryRow(ctx, d.sql.giveUpParked, append(args, state, reason, o.By, o.Reason)...)
	}
}

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// redirectable says what is wrong with the topics of a redirect.
func redirectable(topic, to string) error {
	switch {
	case !topicName.MatchString(to) || to == "." || to == "..":
		return fmt.Errorf(`to is %.60q: it must be a Kafka topic's name, of 1 to 249 letters, digits, ".", "_" and "-"`, to)
	case to == topic:
		return fmt.Errorf("to is %q: it must be another topic than the one whose events are redirected", to)
	}
	return nil
}

func (f ParkedFilter) validate() error {
	if f.Topic == "" {
		return errors.New("topic is empty: it must name the topic whose parked events are meant")
	}
	if f.Partition != nil && *f.Partition < 0 {
		return fmt.Errorf("partition is %d: it must be 0 or more", *f.Partition)
	}
	return nil
}

// whole refuses a filter that takes some of a key's events and leaves others.
func (f ParkedFilter) whole() error {
	if f.Partition != nil {
		return fmt.Errorf("partition is %d: only RetryParked goes by partition", *f.Partition)
	}
	return nil
}

// partition is what statements take for Partition.
func (f ParkedFilter) partition() int32 {
	if f.Partition == nil {
		return -1
	}
	return int32(min(*f.Partition, math.MaxInt32)) // Kafka has no larger one
}

// notParked says that a filter selects nothing.
func (f ParkedFilter) notParked() error {
	if f.Partition != nil {
		return fmt.Errorf("%w for partition %d of the topic %q: holdfast status names the partitions that take nothing", ErrNotParked, *f.Partition, f.Topic)
	}
	if f.Key != "" {
		return fmt.Errorf("%w of the key %q of the topic %q", ErrNotParked, f.Key, f.Topic)
	}
	return fmt.Errorf("%w of the topic %q: ListParked, or holdfast parked list, names the topics", ErrNotParked, f.Topic)
}
