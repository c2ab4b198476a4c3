package simdb

import (
	"fmt"
	"slices"
	"time"
)

type state uint8

const (
	running state = iota
	prepared
	committed
	aborted
)

// Tx is a transaction. Xid is 0 until it writes.
type Tx struct {
	Xid    uint64
	Events []*Event // written, in order of seq

	db           *DB
	number       int // of its begin
	state        state
	snap         *Snapshot // of REPEATABLE READ; else nil
	guarded      bool
	at           time.Time // of the last statement
	cells        []finisher
	keys         []string // advisory locks
	deadLettered []Parked
	gone         []string // unparked ids
	fences       map[int]int64
	inserts      [Segments]bool // segments locked against TRUNCATE
}

// Begin begins a transaction of a writer.
func (db *DB) Begin() *Tx {
	db.begun++
	tx := &Tx{db: db, at: db.Up(), number: db.begun}
	db.open = append(db.open, tx)
	return tx
}

// Open says whether the transaction has not ended.
func (tx *Tx) Open() bool { return tx.state == running || tx.state == prepared }

// Repeatable makes it a transaction of REPEATABLE READ: it has one snapshot, of now.
func (tx *Tx) Repeatable() { tx.snap = tx.db.snapshot(tx) }

// Draw makes sure that the transaction has an id.
func (tx *Tx) Draw() uint64 {
	if !tx.Open() {
		panic("the transaction has ended")
	}
	if tx.Xid == 0 {
		tx.Xid = tx.db.nextXid
		tx.db.nextXid++
		tx.db.flying = append(tx.db.flying, tx)
	}
	return tx.Xid
}

// Lock takes the advisory lock of a key until the end, or says that another has it.
func (tx *Tx) Lock(key string) bool {
	if by, taken := tx.db.locks[key]; taken && by != tx {
		return false
	}
	if !slices.Contains(tx.keys, key) {
		tx.db.locks[key] = tx
		tx.keys = append(tx.keys, key)
	}
	return true
}

// Segment is the segment that the next event goes to: holdfast.append reads it once, and the log may rotate before the row is in.
func (db *DB) Segment() int { return db.current }

// Append writes an event into a segment: its parts are drawn in the order of the columns.
func (tx *Tx) Append(segment int, e Event) *Event {
	db := tx.db
	if db.CutEvery > 0 && db.Rand.IntN(db.CutEvery) == 0 {
		if e.Snap = tx.snap; e.Snap == nil {
			e.Snap = db.snapshot(tx) // before the row has an id
		}
	}
	e.Xid = tx.Draw()
	db.seq++
	e.Seq, e.Tx = db.seq, tx
	db.segments[segment] = append(db.segments[segment], &e)
	db.bytes[segment] += 300
	tx.inserts[segment] = true
	tx.Events = append(tx.Events, &e)
	tx.at = db.Up()
	return &e
}

// Schedule writes an event that waits for its time.
func (tx *Tx) Schedule(s Scheduled) {
	db := tx.db
	tx.Draw()
	db.seq++
	s.Seq = db.seq
	insert(&db.scheduled, tx, s)
}

// Prepare is PREPARE TRANSACTION.
func (tx *Tx) Prepare() {
	tx.Draw()
	tx.state = prepared
	tx.db.flush()
}

// flush puts on the disk all that was written to the write-ahead log: the ends of transactions, and the rows of those in
// flight. The id of one that has written nothing yet is not in it.
func (db *DB) flush() {
	db.flushed = max(db.flushed, db.completed)
	for _, tx := range db.flying {
		if len(tx.Events) > 0 || len(tx.cells) > 0 || tx.state == prepared {
			db.flushed = max(db.flushed, tx.Xid)
		}
	}
}

// Commit ends the transaction, of COMMIT PREPARED too. It fails when the server has ended it already.
func (tx *Tx) Commit() error {
	if !tx.Open() {
		return fmt.Errorf("commit: the server has ended the transaction")
	}
	tx.end(committed)
	return nil
}

// Rollback ends the transaction.
func (tx *Tx) Rollback() {
	if tx.Open() {
		tx.end(aborted)
	}
}

func (tx *Tx) end(how state) {
	db := tx.db
	tx.state = how
	db.open = without(db.open, tx)
	for _, c := range tx.cells {
		c.finish(how == committed)
	}
	if tx.Xid > 0 {
		db.flying = without(db.flying, tx)
		db.completed = max(db.completed, tx.Xid)
		if how == committed {
			db.flush()
		}
	}
	for _, key := range tx.keys {
		delete(db.locks, key)
	}
	if how == aborted {
		for n := range db.segments {
			if tx.inserts[n] {
				db.segments[n] = slices.DeleteFunc(db.segments[n], func(e *Event) bool { return e.Tx == tx })
			}
		}
		return
	}
	if w := db.Watch.DeadLettered; w != nil { // before it is seen that a cursor is past them
		for _, p := range tx.deadLettered {
			w(p.ID, p.Topic, p.Key, p.Letter)
		}
	}
	for _, c := range tx.cells {
		c.committed()
	}
	if w := db.Watch.Committed; w != nil && len(tx.Events) > 0 {
		w(tx)
	}
	if w := db.Watch.Unparked; w != nil {
		for _, id := range tx.gone {
			w(id)
		}
	}
	if w := db.Watch.Wrote; w != nil {
		for lane, epoch := range tx.fences {
			w(lane, epoch, db.lanes[lane].row.Epoch)
		}
	}
}

func without(list []*Tx, tx *Tx) []*Tx {
	if i := slices.Index(list, tx); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

type finisher interface {
	finish(commit bool)
	committed() // after all have finished
}

// cell is a row with at most one uncommitted version: the transaction that changes it holds its lock.
type cell[T any] struct {
	row    T
	live   bool                  // committed
	by     *Tx                   // who has it locked
	next   T                     // what by made of it
	will   bool                  // next is there
	notify func(before, after T) // after a commit
}

// see is the row as me sees it.
func (c *cell[T]) see(me *Tx) (*T, bool) {
	if c.by == me && me != nil {
		return &c.next, c.will
	}
	return &c.row, c.live
}

func (c *cell[T]) locked(me *Tx) bool { return c.by != nil && c.by != me }

// lock takes the row for me, who gets its own version to change. It must not be locked by another.
func (c *cell[T]) lock(me *Tx) *T {
	if c.by == nil {
		me.Draw()
		c.by, c.next, c.will = me, c.row, c.live
		me.cells = append(me.cells, c)
	}
	return &c.next
}

func (c *cell[T]) remove(me *Tx) {
	c.lock(me)
	c.will = false
}

func (c *cell[T]) finish(commit bool) {
	if commit {
		c.row, c.next, c.live = c.next, c.row, c.will
	}
	c.by = nil
}

func (c *cell[T]) committed() {
	if c.notify != nil {
		c.notify(c.next, c.row) // finish has put the old row there
	}
}

func insert[T any](table *[]*cell[T], me *Tx, row T) {
	me.Draw()
	if len(*table) > 64 {
		*table = slices.DeleteFunc(*table, func(c *cell[T]) bool { return c.by == nil && !c.live })
	}
	c := &cell[T]{by: me, next: row, will: true}
	me.cells = append(me.cells, c)
	*table = append(*table, c)
}

// each visits the rows that me sees.
func each[T any](table []*cell[T], me *Tx, visit func(c *cell[T], row *T)) {
	for _, c := range table {
		if row, there := c.see(me); there {
			visit(c, row)
		}
	}
}
