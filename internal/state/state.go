// Package state reads what a schema holds at a moment, and says what of it needs a person.
//
// It is the one reading of the state: holdfast status, doctor and the console show it, and metrics makes its figures of parts of it. A
// Reader reads the parts, each in one statement. Read reads them all. Needs decides what needs a person, each with
// its command: it knows no database and no clock.
package state

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/backlog"
	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/waiting"
)

// The bounds of what Read counts: a count that has reached its bound stands for that many or more.
const (
	MostEvents = 10_000 // waiting events of a consumer, dead letters
	MostRows   = 1_000  // waiting and scheduled events of a lane, events of a key
	MostSpots  = 100    // topics and partitions of a lane that take nothing

	// MostInRelays is how far the events that wait in relays are counted together.
	MostInRelays = 100_000
	// MostHeld is how far topics and partitions that take nothing are counted together.
	MostHeld = 1_000

	mostTypes  = 200   // types of a consumer whose overdue events are looked for
	mostHeads  = 20    // stored events of a type that are due, of which one may be taken by no node
	mostOldest = 2_000 // stored events of a consumer whose keys are looked at, the oldest first
)

// State is what a schema holds. Each list is nil if it was not read: because it could not be (Unread), or was not looked for. Numbers of seconds say how long
// something has been so, or takes.
type State struct {
	History    []History     `json:"-"` // one; none in a database that was never installed
	Paused     []Pause       `json:"paused,omitzero"`
	Letters    []Letters     `json:"open_letters,omitzero"`
	Looked     int64         `json:"-"` // letters that were looked at; at MostEvents, others are not counted
	Held       []Held        `json:"held,omitzero"`
	HeldPlaces HeldPlaces    `json:"-"`
	Backlog    backlog.Sum   `json:"-"`
	Lanes      []Lane        `json:"lanes,omitzero"`
	Relays     []Relay       `json:"relays,omitzero"`
	Long       []LongWaiting `json:"long_waiting,omitzero"`
	Segments   []Segment     `json:"segments,omitzero"`
	Consumers  []Consumer    `json:"consumers,omitzero"`
	Blocked    []Blocked     `json:"blocked_keys,omitzero"`
	Skipped    []Skipped     `json:"skipped_types,omitzero"`
	Backfills  []Backfill    `json:"backfills,omitzero"`
	Needed     []Dependency  `json:"dependencies,omitzero"`
	Positions  []Position    `json:"positions,omitzero"`
	Sizes      []Size        `json:"sizes,omitzero"`
	LogHolders []Holder      `json:"log_holders,omitzero"`  // only of a log without an empty segment
	Behind     []Behind      `json:"lanes_behind,omitzero"` // likewise
	// LaneHolders are looked for only when a relay runs and a lane with events has no owner.
	LaneHolders []Holder `json:"lane_holders,omitzero"`

	lookedAt time.Time // at the lanes

	// Before and After are two looks at who owns the lanes; nil without a second one.
	Before, After Owners `json:"-"`

	Drift  error    `json:"-"` // why holdfast check fails
	Unread []Unread `json:"-"` // what could not be read of a schema that has drifted
	NoEnds error    `json:"-"` // why Kafka did not say where partitions end
	Schema string   `json:"-"`
}

// History says whether the database has the history that relays have seen: it is no restored copy.
type History struct{ Same bool }

// Unread is a part that could not be read.
type Unread struct {
	Part string
	Err  error
}

// Pause is what a person has paused: a topic, a consumer, or a key of a consumer.
type Pause struct {
	Consumer string `json:"consumer"`
	Topic    string `json:"topic"`
	Key      string `json:"key"`
	By       string `json:"by"`
	Reason   string `json:"reason"`
	Seconds  int64  `json:"seconds"`
}

// Of names it as package waiting does.
func (p Pause) Of() waiting.Pausable {
	return waiting.Pausable{Consumer: p.Consumer, Topic: p.Topic, Key: p.Key}
}

// Letters are the open dead letters of a lane (of consumers: -1) and of a consumer (of relays: "").
type Letters struct {
	Lane     int64  `json:"lane"`
	Origin   string `json:"-"`
	Consumer string `json:"consumer"`
	Open     int64  `json:"letters"`
	Looked   int64  `json:"-"` // how many were looked at for all rows together
}

// Held is a topic that is missing or not permitted (Partition is -2), or a partition that takes nothing, in a lane.
type Held struct {
	Lane      int64  `json:"lane"`
	Topic     string `json:"topic"`
	Partition int64  `json:"partition"`
	Events    int64  `json:"events"`
}

// HeldPlaces are the topics and partitions that take nothing in any lane, MostHeld of both together at most.
type HeldPlaces struct{ Topics, Partitions int }

// Lane is a lane of the log.
type Lane struct {
	Lane          int64  `json:"lane"`
	Owner         string `json:"owner"` // "" if nobody owns it now
	Lease         int64  `json:"lease_seconds"`
	Epoch         int64  `json:"epoch"`
	Saved         int64  `json:"saved_seconds_ago"`
	Unread        bool   `json:"unread"`
	Oldest        int64  `json:"oldest_seconds"` // 0 if nothing is unread
	Waiting       int64  `json:"waiting"`
	OldestWaiting int64  `json:"oldest_waiting_seconds"`
	Scheduled     int64  `json:"scheduled"`
	Trouble       string `json:"trouble"` // what its owner says of the broker

	Letters int64  `db:"-" json:"letters"`
	HeldBy  string `db:"-" json:"held_by"`
}

// NeedsOwner says that the lane has events and no owner.
func (l Lane) NeedsOwner() bool {
	return l.Owner == "" && (l.Unread || l.Scheduled > 0 || l.Waiting > 0)
}

// WaitingText and the like are counts as people read them: with a plus for one that has reached its bound.
func (l Lane) WaitingText() string { return AtMost(l.Waiting, MostRows) }

// ScheduledText is WaitingText of the scheduled events.
func (l Lane) ScheduledText() string { return AtMost(l.Scheduled, MostRows) }

// Relay is a relay that runs.
type Relay struct {
	Relay   string `json:"relay"`
	Up      int64  `json:"up_seconds"`
	Trouble string `json:"trouble"`
}

// LongWaiting counts events of a lane that have waited for longer than a limit.
type LongWaiting struct {
	Lane   int64 `json:"lane"`
	Events int64 `json:"events"`
}

// Segment is a part of the log.
type Segment struct {
	Segment int64 `json:"segment"`
	Current bool  `json:"current"`
	Bytes   int64 `json:"bytes"`
}

// Behind is a lane that has not read all older segments.
type Behind struct {
	Lane int `json:"lane"`
}

// Holder is a transaction, of a process or prepared, that holds something.
type Holder struct {
	PID         int64  `json:"pid"`
	Prepared    string `json:"prepared"` // its name, if it is prepared: it has no process
	Application string `json:"application"`
	Seconds     int64  `json:"seconds"` // -1 if this role may not see it
}

// Consumer is a consumer that has ever had a node, a position, a waiting event or a dead letter.
type Consumer struct {
	Consumer  string `json:"consumer"`
	Waiting   int64  `json:"waiting"`
	Keys      int64  `json:"keys"`
	Oldest    int64  `json:"oldest_seconds"`
	NoHandler int64  `json:"no_handler"` // of the waiting ones, of types that no node handles
	Overdue   int64  `json:"overdue_seconds"`
	Letters   int64  `json:"letters"`
	Nodes     int64  `json:"nodes"`
	Heard     int64  `json:"heard_seconds_ago"` // -1 if no node has ever announced itself

	Node nodes.Row `json:"-"` // zero if no node has ever announced itself
}

// WaitingText is how many events wait.
func (c Consumer) WaitingText() string { return AtMost(c.Waiting, MostEvents) }

// KeysText is of how many keys they are.
func (c Consumer) KeysText() string {
	if c.Waiting >= MostEvents {
		return fmt.Sprint(c.Keys, "+")
	}
	return fmt.Sprint(c.Keys)
}

// Blocked is a key that waits, with its first event.
type Blocked struct {
	Consumer string      `json:"consumer"`
	Topic    string      `json:"topic"`
	Key      string      `json:"key"`
	Events   int64       `json:"events"`
	Seconds  int64       `json:"seconds"`
	HeadID   string      `json:"head_id"`
	HeadType string      `json:"head_type"`
	Attempts int64       `json:"attempts"`
	Next     int64       `json:"next_in_seconds"` // -1 if it waits for something else
	Letter   int64       `json:"letter"`
	Error    string      `json:"error"`
	Why      waiting.Why `json:"why"`
	Running  bool        `json:"running"`
}

// Skipped is a type whose events a consumer has skipped. Those of further types have no topic.
type Skipped struct {
	Consumer string `json:"consumer"`
	Topic    string `json:"topic"`
	Type     string `json:"type"`
	Events   int64  `json:"events"`
	Last     int64  `json:"last_seconds_ago"`
}

// Backfill is the last backfill of a consumer.
type Backfill struct{ backfill.Row }

// MarshalJSON makes whole seconds of its times, and adds what State and SecondsLeft say.
func (b Backfill) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"consumer": b.Consumer, "done": b.Done, "left": b.Remaining, "partitions": b.Partitions, "partitions_left": b.PartitionsLeft,
		"seconds": b.Took, "told_seconds_ago": b.Told, "ended": b.Ended, "recent": b.Recent, "waits": b.Waits, "error": b.Error,
		"per_second": b.PerSecond(), "time_left_seconds": b.WholeSecondsLeft(), "state": b.State()})
}

// PerSecond is its rate in whole offsets.
func (b Backfill) PerSecond() int64 { return int64(math.RoundToEven(b.Rate)) }

// WholeSecondsLeft is SecondsLeft, rounded.
func (b Backfill) WholeSecondsLeft() int64 { return int64(math.RoundToEven(b.SecondsLeft())) }

// Dependency is something that handlers of a consumer need (inbox.Needs), once one of them has found it away.
type Dependency struct {
	Consumer string   `json:"consumer"`
	Name     string   `json:"dependency"`
	Away     bool     `json:"away"`
	Seconds  int64    `json:"seconds"`             // for how long it has been away, or back
	Next     int64    `json:"next_try_in_seconds"` // while it is away: when an event may try it; less than 0 if none has since then
	Tries    int64    `json:"tries"`               // how often in a row it was found away, as far as that is not forgotten
	Error    string   `json:"error"`               // why it was found away last
	Node     string   `json:"node"`                // that found it so, or that tries it
	Types    []string `json:"types"`               // of nodes that run
	Waiting  int64    `json:"waiting"`             // events that wait for it, of as many as are counted
}

// untriedLong is the time in seconds without a try from which nobody knows whether a dependency is still away. While an event needs it, one tries it at
// least every 30 seconds, or as late as it asks for: Next counts from then.
const untriedLong = 300

// Untried says that it was away when an event tried it last, and that none has tried it for long: none needs it now.
func (d Dependency) Untried() bool { return d.Away && d.Next < -untriedLong }

// Gone says that it is away: that an event has found it so lately.
func (d Dependency) Gone() bool { return d.Away && !d.Untried() }

// State is what becomes of it, in words.
func (d Dependency) State() string {
	switch {
	case d.Untried():
		return "was away; nothing has tried it for " + Span(-d.Next)
	case d.Away && d.Next > 0:
		return "away; the next try is in " + Span(d.Next)
	case d.Away:
		return "away; an event may try it now"
	}
	return "there"
}

// TypesText are the types that need it.
func (d Dependency) TypesText() string { return strings.Join(d.Types, ", ") }

// WaitingText is how many events wait for it.
func (d Dependency) WaitingText() string { return AtMost(d.Waiting, MostRows) }

// AwayFor are the names of what handlers of a type need that is away.
func (s *State) AwayFor(consumer, eventType string) (names []string) {
	for _, d := range s.Needed {
		if d.Consumer == consumer && d.Away && slices.Contains(d.Types, eventType) {
			names = append(names, d.Name)
		}
	}
	return names
}

// Position is where a consumer stands in a partition.
type Position struct {
	Consumer  string `json:"consumer"`
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Position  int64  `json:"position"`
	Owner     string `json:"owner"`
	Saved     int64  `json:"saved_seconds_ago"`
	Held      string `json:"held"`

	Lag   int64 `db:"-" json:"lag"` // -1 if it is not known; less than 0 too for a position past the end, as after a topic was recreated
	Known bool  `db:"-" json:"-"`   // Lag is
}

// Behind is how many offsets of the partition are known to be not consumed. A position past the end has none.
func (p Position) Behind() int64 {
	if !p.Known {
		return 0
	}
	return max(p.Lag, 0)
}

// Progress sums up the partitions of a consumer.
type Progress struct {
	Consumer   string
	Partitions int
	Held       int
	Position   int64 // the sum of its positions
}

// Size is the size of a table. The segments of the log are the table "log".
type Size struct {
	Table string `json:"table"`
	Bytes int64  `json:"bytes"`
	Rows  int64  `json:"rows"` // -1 before Postgres has looked
}

// Stored is what waits in a consumer: of its oldest events, so many as are counted.
type Stored struct {
	Consumer  string
	Events    int
	Keys      int
	Oldest    float64 // seconds
	NoHandler int
}

// Written are counters that only grow.
type Written struct {
	At       float64 // seconds, by the database's clock
	Written  int64   // rows written to the log, rolled back ones too
	Recorded int64   // rows written to the inbox, by all consumers
	Letters  int64   // dead letters written

	// Published are events that the broker has acknowledged, repeats too. After a crash of a relay those are missing that were
	// acknowledged after its last save, as all are that a relay of version 1 has published.
	Published int64
}

// Names are names that this database knows.
type Names struct {
	Topics []string // that consumers have read
	Types  []string // that consumers handle
}

// Owner is who owns a lane, and how often it had another owner.
type Owner struct {
	Name  string
	Epoch int64
}

// Owners are the owners of the lanes at a moment.
type Owners map[int]Owner

// Ends says where partitions end, as kafkago.Offsets does: metrics.DatabaseConfig and console.Config have one.
type Ends func(ctx context.Context, of []source.TopicPartition) (map[source.TopicPartition]int64, error)

// Queries is what a Reader uses of a pool or a transaction.
type Queries interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Reader reads parts of the state. What it counts has a bound.
type Reader struct {
	DB     Queries
	Schema string
}

// Settings are for the transaction of a Reader: with them its statements stay bounded whatever Postgres believes of the tables.
func Settings(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, settings)
	return err
}

// list reads rows.
func list[T any](ctx context.Context, r Reader, sql string, args ...any) ([]T, error) {
	rows, err := r.DB.Query(ctx, sqlschema.In(r.Schema, sql), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// one reads the only row.
func one[T any](ctx context.Context, r Reader, sql string, args ...any) (t T, err error) {
	rows, err := r.DB.Query(ctx, sqlschema.In(r.Schema, sql), args...)
	if err != nil {
		return t, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
}

// Backlog sums up what is not published, and counts what waits in relays up to MostInRelays.
func (r Reader) Backlog(ctx context.Context) (backlog.Sum, error) {
	return backlog.Read(ctx, r.DB, r.Schema, MostInRelays)
}

// Written reads the counters.
func (r Reader) Written(ctx context.Context) (Written, error) {
	return one[Written](ctx, r, readWritten)
}

// Lanes counts up to MostRows.
func (r Reader) Lanes(ctx context.Context) ([]Lane, error) {
	return list[Lane](ctx, r, readLanes, MostRows)
}

// Owners says who owns the lanes now.
func (r Reader) Owners(ctx context.Context) (Owners, error) {
	rows, err := list[struct {
		Lane int
		Owner
	}](ctx, r, readOwners)
	owners := make(Owners, len(rows))
	for _, row := range rows {
		owners[row.Lane] = row.Owner
	}
	return owners, err
}

// Relays lists the relays that run.
func (r Reader) Relays(ctx context.Context) ([]Relay, error) { return list[Relay](ctx, r, readRelays) }

// Held lists at most MostSpots topics and partitions of a lane that take nothing, and counts their events up to MostRows.
func (r Reader) Held(ctx context.Context) ([]Held, error) {
	return list[Held](ctx, r, readHeld, MostRows, MostSpots)
}

// HeldPlaces counts them.
func (r Reader) HeldPlaces(ctx context.Context) (HeldPlaces, error) {
	return one[HeldPlaces](ctx, r, countHeld, MostHeld)
}

// Segments lists the parts of the log.
func (r Reader) Segments(ctx context.Context) ([]Segment, error) {
	return list[Segment](ctx, r, readSegments)
}

// Letters looks at the first most dead letters that are open or being replayed, and says how many there were.
func (r Reader) Letters(ctx context.Context, most int) (open []Letters, looked int64, err error) {
	open, err = list[Letters](ctx, r, readLetters, most)
	if len(open) > 0 {
		looked = open[0].Looked
	}
	return slices.DeleteFunc(open, func(l Letters) bool { return l.Open == 0 }), looked, err
}

// Stored looks at the most oldest events of each consumer that has any.
func (r Reader) Stored(ctx context.Context, most int) ([]Stored, error) {
	return list[Stored](ctx, r, readStored, most)
}

// Nodes says which consumers have announced themselves.
func (r Reader) Nodes(ctx context.Context) ([]nodes.Row, error) {
	return list[nodes.Row](ctx, r, nodes.Rows, nodes.Args()...)
}

// Backfills lists the last one of each consumer, for a week.
func (r Reader) Backfills(ctx context.Context) ([]Backfill, error) {
	return list[Backfill](ctx, r, backfill.Rows)
}

// Dependencies lists what handlers have found away, by consumer and name. Of the events that wait it counts so many as most.
func (r Reader) Dependencies(ctx context.Context, most int) ([]Dependency, error) {
	return list[Dependency](ctx, r, readDependencies, most)
}

// Positions lists at most so many positions, by consumer, topic and partition, without their lag.
func (r Reader) Positions(ctx context.Context, most int64) ([]Position, error) {
	return list[Position](ctx, r, readPositions, most)
}

// Progress sums up the partitions of each consumer.
func (r Reader) Progress(ctx context.Context) ([]Progress, error) {
	return list[Progress](ctx, r, readProgress)
}

// Names reads up to 500 names of each kind.
func (r Reader) Names(ctx context.Context) (Names, error) {
	return one[Names](ctx, r, readNames, 500)
}

// Sizes lists the tables that grow.
func (r Reader) Sizes(ctx context.Context) ([]Size, error) { return list[Size](ctx, r, readSizes) }

// LogHolders lists who keeps segments of the log from being emptied.
func (r Reader) LogHolders(ctx context.Context) ([]Holder, error) {
	return list[Holder](ctx, r, readLogHolders)
}
