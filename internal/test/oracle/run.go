// Package oracle judges a run: what was written, what is in Kafka, what was done, and what the parts report. It
// has no clock, no SQL and no network: the code that made the run fills a Run, and Judge answers with a Verdict. Eleven oracles,
// O1 to O11, each ask one question; a Verdict holds when none of them has found anything.
//
// Truth comes from the servers: rows that were committed, records in Kafka's log, rows of effects. The history says who
// did what, and is evidence for the rest: why there is a duplicate, who lost an event, whether an error was honest.
package oracle

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// Run is all that is known of a run once it has ended: faults are healed, and parts have stopped.
type Run struct {
	// Entries is the whole history in the order of time, and Torn the number of lines in it that were torn, both as
	// history.Read gives them. A run must have a history, or Limits.NoHistory.
	Entries []history.Entry
	Torn    int

	// Written are the rows of the table written, in any order: what was committed. Everything else is compared with it.
	Written []Written
	// Records is Kafka's log, one partition after another, each in the order of its offsets. It has only topics to which
	// events of Written go: a topic of letters, say, is not part of it.
	Records []Record
	// Effects are the rows of the table effect in the order of n, which is the order of commits for each consumer and key.
	Effects []Effect
	// Consumers are the consumers in which every event must have an effect.
	Consumers []string
	// Letters are all rows of holdfast.letter, closed ones too.
	Letters []Letter

	// Undone are times whose transactions the database has lost, because an older state of it took its place. What was claimed
	// then is in no log of the database, and epochs are given again.
	Undone []Span
	// Redone are events whose effect the database lost, because an older state of it took its place, and that are done again.
	// That may be after later ones of their key: O4 does not compare their effects.
	Redone []string

	// Lanes is the number of lanes. With 0 the lane of an event is unknown, and O5 excuses a little more: a claim of any lane
	// explains a repeat.
	Lanes int
	// LaneLog is every change of holdfast.lane, and PositionLog every change of holdfast.consumer_position, in the order
	// of N, as an audit trigger saw them. The row's lock puts the changes of one row in the order of their commits.
	LaneLog     []LaneChange
	PositionLog []PositionChange
	// TakenLog is every event that a consumer took in from Kafka, handled or not. Its N and that of PositionLog are drawn from
	// one sequence, under the fence of the partition: so they show whether an event was taken in before or after a new owner
	// had raised the epoch.
	TakenLog []Taken
	// Cursors were taken during the run.
	Cursors []CursorSample

	// Places are the places of events in the log, and Parked the events that were parked, both as triggers saw them.
	// Without them O5 does not know what a cursor covered.
	Places []Place
	Parked []Parking

	// Removed is what a person's commands took out of what is parked, as a trigger saw it: with the lane's lock held.
	Removed []Removal

	// Pending is what still waits at the end, and Leftovers what parts left behind.
	Pending   []Waiting
	Leftovers []Leftover
	// Leaks are the places where the logs of parts have what is in an event (Limits.Canary), unless Entries have them.
	Leaks []string
	// Killed are the processes that a fault killed. Every other process that began must have ended by itself, with an End
	// entry. A process that was asked to stop, did not, and had to be killed does not belong here.
	Killed []Process
	// KilledAt is when they were killed, if that is known.
	KilledAt map[Process]time.Time

	// Alarms says, for a fault's name, what must be logged between its beginning and its healing or Limits.Alarm later, and
	// before another fault begins: every one of them. A fault that is not in it needs no message.
	Alarms map[string][]Alarm

	Limits Limits
}

// Span is a time from one moment to another.
type Span struct{ From, Until time.Time }

// undone says whether a moment lies in a time that the database has lost.
func (r *Run) undone(at time.Time) bool {
	return slices.ContainsFunc(r.Undone, func(s Span) bool { return at.After(s.From) && at.Before(s.Until) })
}

// Alarm is a line that must be logged, by an actor whose name begins with By. It begins with one of Messages.
type Alarm struct {
	By       string // "relay", "" is anybody
	Messages []string

	// Before says that a line so long before the fault counts, too. The library says some things once in a while only.
	Before time.Duration
}

// Written is a row of the table written, inserted in the transaction of the event itself.
type Written struct {
	ID, Topic, Key string
	Number         int64 // place in the order of topic and key, drawn under the key's row lock; of no meaning without a key
	Type           string
	Content        string     // a hash of what is in it, or "" where nobody knows: then it is compared with nothing
	Due            *time.Time // when it may be published at the earliest; nil for at once
}

// Record is a record of Kafka's log. ID is its header ce_id.
type Record struct {
	ID, Topic, Key string
	Partition      int
	Offset         int64
	Content        string // as in Written
}

// Effect is a row of the table effect, inserted by a handler in its transaction. Content is of what the handler got.
type Effect struct {
	Consumer, ID, Key, Content string
	At                         time.Time // by the database's clock, before the COMMIT; zero where it is not known
}

// Letter is a row of holdfast.letter. Consumer is "" for the relay's.
type Letter struct {
	ID                int64
	EventID, Consumer string
	State             State
	Reason            string

	// Command is the name of the command by which a person gave the event up: history.Decide has its answer. "" if a relay or
	// a consumer gave it up.
	Command string
}

// State is the state of a letter.
type State string

// The states of a letter, as in schema.sql. Open and Discarded ones excuse their event from arriving, if they are of
// the event itself and not of a repeat (Limits.BesideEffects); one that is Replaying is pending; one that was Replayed
// excuses nothing but the event's place in its key's order.
const (
	Open      State = "open"
	Replaying State = "replaying"
	Replayed  State = "replayed"
	Discarded State = "discarded"
)

// LaneChange is a row of holdfast.lane as it was after a change.
type LaneChange struct {
	N     int64     // order of the changes
	At    time.Time // by the database's clock
	Lane  int
	Epoch int64
	Owner string // "" is nobody
	// By is who made the change: the application_name of the session, which must be the name under which it owns lanes.
	// "" if that is not known: then nobody is accused.
	By   string
	Done string // pg_snapshot as text
	Upto string // pg_snapshot as text, "" for null
	Pos  int64
	// Adopted says that a restored copy was adopted by this change: transaction ids and cursors begin anew.
	Adopted bool
	// Early says that the owner before had a lease that had not run out, by the database's clock in the same transaction.
	Early bool
}

// PositionChange is a row of holdfast.consumer_position as it was after a change. By is as for LaneChange, but need not be
// what the row calls its owner: the process that raised an epoch is the owner under it.
type PositionChange struct {
	N               int64
	At              time.Time
	Consumer, Topic string
	Partition       int
	Epoch, Position int64
	Owner, By       string
}

// Taken is a row of holdfast.inbox of an event from Kafka, when it was inserted. By is as for PositionChange.
type Taken struct {
	N               int64
	Consumer, Topic string
	Partition       int
	ID, By          string
}

// Place is where an event is in the log. At is when it was written there, by the database's clock.
type Place struct {
	ID  string
	XID uint64
	Seq int64
	At  time.Time
}

// Parking is an event that was parked. At is by the database's clock, before the COMMIT.
type Parking struct {
	ID string
	At time.Time
}

// Removal is an event that the session By took out of what is parked. At is by the database's clock, before the COMMIT.
type Removal struct {
	ID, By string
	At     time.Time
}

// CursorSample is a look at the saved cursors during the run.
type CursorSample struct {
	At   time.Time
	Done int // how many events the saved cursors called published
	// Missing are those of them that were nowhere when all places were read after the cursors: not in Kafka, not parked, not
	// a letter.
	Missing []string
}

// Waiting is an event that waits at the end, in Where: "unread", "scheduled" or "parked" for the relays, "stored" for a
// consumer. ID may be "" when only the number of rows is known.
type Waiting struct{ Where, Consumer, ID string }

// Leftover is what was found after all parts had stopped: What is "connection", "lock", "prepared transaction", "idle in
// transaction", "goroutine" and so on, Text distinguishes it from others of its kind.
type Leftover struct{ What, Text string }

// Process is a process that had a place in the run for a while.
type Process struct {
	Actor string
	PID   int
}

// Limits are what is allowed. The zero Limits are those of a run with faults that end.
type Limits struct {
	// Recovery is how long after a Heal Recovered may come. Defaults to 60 s.
	Recovery time.Duration
	// Alarm is how long after a Heal an alarm may still come. Defaults to 10 s.
	Alarm time.Duration
	// Duplicates is how many duplicate records in Kafka each explanation may account for; without an entry it is any
	// number. Duplicates without an explanation are never allowed.
	Duplicates map[Explanation]int
	// Unsaved is how long a relay may take to save that an event was acknowledged. The time of faults that keep relays from
	// saving, and of the recovery from them, is not counted. An event that is sent again after more than that was not saved in
	// time. Defaults to 10 s.
	Unsaved time.Duration
	// Keeping are the names of the faults that may keep a relay from saving, because it cannot reach the database, gets no
	// answer from the broker, or does not run. Nil means all of them.
	Keeping []string
	// Unsaving is the beginning of the line that a relay logs when a save has failed. The cause may last longer than the fault,
	// say a pooler that accepts nobody for a while. So the seconds around such a line are not counted. A relay that does not
	// try to save logs none. "" means there is no such line.
	Unsaving string
	// BesideEffects are beginnings of reasons for which a letter may exist although its event had its effect with the same
	// consumer. Defaults to "stale" and "conflict": letters of a repeat, not of the event.
	BesideEffects []string
	// MayDie are the types of events that a consumer may give up. Nil is all of them, and relays may give up any too.
	// Otherwise a letter of another type, or of a relay, is found, and excuses nothing. A person may give up any event.
	MayDie []string
	// Tries is how often a consumer must have begun to handle an event before it may give it up. Each fault
	// meanwhile, and each killed process, may have cost a try that was counted and did not begin. 0 requires none.
	Tries int
	// Canary is a text of payloads that must not be logged. "" looks for none.
	Canary string
	// NoHistory says that the run kept no history: what only a history can show is not judged (O5, O9, O11, and the most of
	// O8 and O10).
	NoHistory bool
}

// The defaults of Limits.
const (
	defaultRecovery = time.Minute
	defaultAlarm    = 10 * time.Second
	defaultUnsaved  = 10 * time.Second
)

var defaultBesideEffects = []string{"stale", "conflict"}

func (l Limits) withDefaults() Limits {
	if l.Recovery == 0 {
		l.Recovery = defaultRecovery
	}
	if l.Alarm == 0 {
		l.Alarm = defaultAlarm
	}
	if l.Unsaved == 0 {
		l.Unsaved = defaultUnsaved
	}
	if l.BesideEffects == nil {
		l.BesideEffects = defaultBesideEffects
	}
	return l
}
