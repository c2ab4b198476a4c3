// Package simdb is an in-memory fake of the tables that a relay works on: what schema.sql and the relay's statements do
// in Postgres, in plain Go, so that the relay's own code can be run through millions of schedules a minute.
//
// It follows Postgres where the relay's correctness rests on it: transaction ids are drawn at the first write,
// snapshots are xmin, xmax and the transactions in flight, a statement sees what was committed when it began and what
// its own transaction did (READ COMMITTED), row locks are held to the end, SKIP LOCKED passes over them, prepared
// transactions survive a crash, unlogged rows do not, and after a crash the ids of what was never flushed are given out
// again. A statement is one moment: no other comes between its parts. relay's TestSimAgrees_TheFakeAndPostgresAgree runs the same
// histories on both.
//
// A DB and all that belongs to it is used by one goroutine at a time.
package simdb

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Segments is the number of segments of the log.
const Segments = 4

// DB is a database with the schema installed.
type DB struct {
	Now  func() time.Time // the server's clock
	Up   func() time.Time // what its timers run by: steps of the clock do not change it
	Rand *rand.Rand
	Bug  Bug // injected, for a test of the tests

	CutEvery    int           // a cut is kept in about one call of so many; 0 for none
	Survives    bool          // unlogged tables survive a crash
	IdleTimeout time.Duration // idle_in_transaction_session_timeout of the relay's transactions

	Watch Watch

	Refuse    func(statement, id string) error // why a statement fails for a row; nil for never
	Malformed func(id string) string           // what is wrong with an event, as pages say it; nil for nothing

	Paused []string // topics

	lanes     []*cell[Lane]
	parked    []*cell[Parked]
	leases    []*cell[Lease]
	letters   []*cell[Letter]
	scheduled []*cell[Scheduled]
	relays    map[string]time.Time // seen_until
	token     string
	tokens    int
	current   int // the segment that new events go to
	segments  [Segments][]*Event
	bytes     [Segments]int64

	nextXid   uint64
	completed uint64 // the highest id of a transaction that ended
	flushed   uint64 // no id up to here is given out again
	flying    []*Tx  // with an id and not ended, by id
	open      []*Tx  // all that have not ended
	locks     map[string]*Tx
	seq       int64
	place     int64
	letterID  int64
	sequels   map[string]int64 // of BugMaxSeq
	begun     int              // transactions so far
	reclaims  map[int]bool     // of BugReclaimWithoutLock: what the test said
	snapshots map[string]*Snapshot
	Crashes   int
}

// Watch receives what an oracle wants to see. Any may be nil.
type Watch struct {
	Saved        func(lane int, before, after Lane)        // a committed row of a lane changed
	Wrote        func(lane int, by, current int64)         // something was written in the name of epoch by
	Committed    func(tx *Tx)                              // with events
	Truncated    func(segment int, events []*Event)        // committed ones
	DeadLettered func(id, topic, key string, letter int64) // committed: an event became a letter
	Unparked     func(id string)                           // committed: a row of parked is gone
}

// Lane is a row of lane. A zero LeaseUntil is '-infinity'.
type Lane struct {
	Owner      string // "" is null
	Epoch      int64
	LeaseUntil time.Time
	Done, Upto string // Upto "" is null
	Pos        int64
	Save       int64 // number of the last save of the epoch
	Published  int64
}

// Event is a row of a segment. Covered is the oracle's.
type Event struct {
	Xid     uint64
	Seq     int64
	Lane    int
	ID      string
	Topic   string
	Key     string
	Payload []byte
	Letter  int64
	Snap    *Snapshot

	Covered bool // a saved cursor says that it is read
	Tx      *Tx
}

// Parked is a row of parked. A zero NextAt is 'infinity'.
type Parked struct {
	Lane       int
	Topic, Key string
	Place      int64
	Why        string
	Attempts   int
	NextAt     time.Time
	ID         string
	Payload    []byte
	Letter     int64
	Partition  *int32 // nil is null
}

// Lease is a row of parked_lease.
type Lease struct {
	Lane       int
	Topic, Key string
	Place      int64
}

// Letter is a row of letter.
type Letter struct {
	ID         int64
	State      string
	Holds      bool
	EventID    string
	Topic, Key string
	Payload    []byte
	Lane       int
	Attempts   int
}

// Scheduled is a row of scheduled.
type Scheduled struct {
	Lane           int
	DueAt          time.Time
	Seq            int64
	ID, Topic, Key string
	Payload        []byte
}

// New returns a database with lanes, which begins at some transaction id.
func New(lanes int, now func() time.Time, r *rand.Rand) *DB {
	db := &DB{
		Now:         now,
		Up:          now,
		Rand:        r,
		IdleTimeout: 10 * time.Second,
		nextXid:     700,
		completed:   699,
		flushed:     699,
		relays:      map[string]time.Time{},
		locks:       map[string]*Tx{},
		snapshots:   map[string]*Snapshot{},
	}
	db.refill()
	for n := range lanes {
		db.lanes = append(db.lanes, &cell[Lane]{
			row:  Lane{Done: db.snapshot(nil).String()},
			live: true,
			notify: func(before, after Lane) {
				if db.Watch.Saved != nil {
					db.Watch.Saved(n, before, after)
				}
			},
		})
	}
	return db
}

func (db *DB) refill() {
	db.tokens++
	db.token = "token " + strconv.Itoa(db.tokens)
}

// incarnation is the row of current_incarnation; "" for none.
func (db *DB) incarnation() string {
	if db.token == "" {
		return ""
	}
	return db.token + "/" + strconv.Itoa(db.Crashes)
}

// Snapshot is a pg_snapshot.
type Snapshot struct {
	Xmin, Xmax uint64
	Xip        []uint64 // ascending
	text       string
}

// String is its text form.
func (s *Snapshot) String() string {
	if s.text == "" {
		b := strconv.AppendUint(make([]byte, 0, 32), s.Xmin, 10)
		b = append(b, ':')
		b = strconv.AppendUint(b, s.Xmax, 10)
		b = append(b, ':')
		for i, x := range s.Xip {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, x, 10)
		}
		s.text = string(b)
	}
	return s.text
}

// Sees is pg_visible_in_snapshot.
func (s *Snapshot) Sees(xid uint64) bool {
	return xid < s.Xmin || xid < s.Xmax && !slices.Contains(s.Xip, xid)
}

// Parse reads the text form. What does not parse is no snapshot that this database gave out: it panics.
func (db *DB) Parse(text string) *Snapshot {
	if s, known := db.snapshots[text]; known {
		return s
	}
	parts := strings.Split(text, ":")
	s := &Snapshot{text: text}
	s.Xmin, s.Xmax = number(parts[0]), number(parts[1])
	if parts[2] != "" {
		for x := range strings.SplitSeq(parts[2], ",") {
			s.Xip = append(s.Xip, number(x))
		}
	}
	if len(db.snapshots) > 500 {
		clear(db.snapshots)
	}
	db.snapshots[text] = s
	return s
}

func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// snapshot is pg_current_snapshot of a statement of me: it leaves out its own transaction.
func (db *DB) snapshot(me *Tx) *Snapshot {
	s := &Snapshot{Xmin: db.completed + 1, Xmax: db.completed + 1}
	for _, tx := range db.flying {
		s.Xmin = min(s.Xmin, tx.Xid)
		if tx != me && tx.Xid < s.Xmax {
			s.Xip = append(s.Xip, tx.Xid)
		}
	}
	return s
}

// Crash stops the server and starts it again.
func (db *DB) Crash() {
	db.Crashes++
	for _, tx := range slices.Clone(db.open) {
		if tx.state == running {
			tx.end(aborted)
		}
	}
	low := db.flushed + 1
	if n := len(db.flying); n > 0 { // prepared transactions are on the disk
		low = max(low, db.flying[n-1].Xid+1)
	}
	if db.nextXid > low && db.Rand.IntN(2) == 0 {
		db.nextXid = low
	} else if db.nextXid > low {
		db.nextXid = low + db.Rand.Uint64N(db.nextXid-low+1)
	}
	db.completed = db.nextXid - 1
	if !db.Survives {
		db.token, db.leases = "", nil
	}
	db.seq += db.Rand.Int64N(33) // sequences log ahead
	clear(db.reclaims)
}

// Tend ends transactions of relays that have been idle for too long.
func (db *DB) Tend() {
	for _, tx := range slices.Clone(db.open) {
		if tx.guarded && tx.state == running && db.Up().Sub(tx.at) > db.IdleTimeout {
			tx.end(aborted)
		}
	}
}

// What the oracles and the drivers look at: as it is committed.

// Lane returns the row of a lane.
func (db *DB) Lane(n int) Lane { return db.lanes[n].row }

// Lanes is how many lanes there are.
func (db *DB) Lanes() int { return len(db.lanes) }

// Events calls visit for each committed event that is still in the log.
func (db *DB) Events(visit func(*Event)) {
	for _, segment := range db.segments {
		for _, e := range segment {
			if e.Tx.state == committed {
				visit(e)
			}
		}
	}
}

// Uncommitted calls visit for each event in the log whose transaction has not ended.
func (db *DB) Uncommitted(visit func(*Event)) {
	for _, segment := range db.segments {
		for _, e := range segment {
			if e.Tx.state != committed {
				visit(e)
			}
		}
	}
}

// ParkedRow says whether an event is parked.
func (db *DB) ParkedRow(id string) bool {
	return slices.ContainsFunc(db.parked, func(c *cell[Parked]) bool { return c.live && c.row.ID == id })
}

// Parked returns the rows of parked.
func (db *DB) Parked() []Parked { return rowsOf(db.parked) }

// Leases returns the rows of parked_lease.
func (db *DB) Leases() []Lease { return rowsOf(db.leases) }

// Letters returns the rows of letter.
func (db *DB) Letters() []Letter { return rowsOf(db.letters) }

// Scheduled is how many events wait for their time.
func (db *DB) Scheduled() int { return len(rowsOf(db.scheduled)) }

func rowsOf[T any](cells []*cell[T]) []T {
	var rows []T
	for _, c := range cells {
		if c.live {
			rows = append(rows, c.row)
		}
	}
	return rows
}

// Expire makes the lease of a lane run out, and Due makes every finite time of parked rows come.
func (db *DB) Expire(lane int) { db.lanes[lane].row.LeaseUntil = db.Now().Add(-time.Second) }

// Due makes every parked row due that has a time.
func (db *DB) Due() {
	for _, c := range db.parked {
		if !c.row.NextAt.IsZero() {
			c.row.NextAt = db.Now().Add(-time.Second)
		}
	}
}

// Reincarnate gives the database another token, as after a crash that lost nothing else.
func (db *DB) Reincarnate() { db.refill() }
