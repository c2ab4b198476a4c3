package simdb

import (
	"fmt"
	"slices"
	"strconv"
)

// The statements that find rows for which others fail, and make dead letters of them.

// readNext names the next event of a window.
func readNext(c *call) error {
	db, lane, done, pos := c.db, c.args[0].(int), c.db.Parse(c.args[1].(string)), c.args[3].(int64)
	upto, until := db.snapshot(c.tx), (*Snapshot)(nil)
	if given := c.args[2].(*string); given != nil {
		until = db.Parse(*given)
		upto = until
	}
	if db.state(c.args[4].(string), done, until) != "ok" {
		return nil
	}
	var found []*Event
	db.seen(c.tx, lane, func(e *Event) {
		if e.inWindow(done, upto) && e.Seq > pos {
			found = append(found, e)
		}
	})
	slices.SortFunc(found, func(a, b *Event) int { return int(a.Seq - b.Seq) })
	if db.is(BugNamesTheNext) && len(found) > 1 {
		found = found[1:]
	}
	if len(found) > 0 {
		next := found[0]
		c.row(upto.String(), db.segmentOf(next), strconv.FormatUint(next.Xid, 10), next.Seq, next.ID, "t", next.Topic, next.Key)
	}
	return nil
}

func (e *Event) inWindow(done, upto *Snapshot) bool { return upto.Sees(e.Xid) && !done.Sees(e.Xid) }

func (db *DB) segmentOf(e *Event) string {
	for n, segment := range db.segments {
		if slices.Contains(segment, e) {
			return fmt.Sprint("holdfast.event_", n)
		}
	}
	panic("the event is in no segment")
}

func deadLetterEvents(c *call) error {
	db, lane, done, upto := c.db, c.args[0].(int), c.db.Parse(c.args[1].(string)), c.db.Parse(c.args[2].(string))
	seqs, holds := c.args[3].([]int64), c.args[6].([]bool)
	var gone []*Event
	db.seen(c.tx, lane, func(e *Event) {
		if slices.Contains(seqs, e.Seq) && e.inWindow(done, upto) {
			gone = append(gone, e)
		}
	})
	slices.SortFunc(gone, func(a, b *Event) int { return int(a.Seq - b.Seq) })
	reopened := make([]*cell[Letter], len(gone))
	for i, e := range gone {
		if err := c.refused(e.ID); err != nil {
			return err
		}
		each(db.letters, c.tx, func(l *cell[Letter], row *Letter) {
			if e.Letter != 0 && row.ID == e.Letter && row.State == "replaying" && row.EventID == e.ID && row.Topic == e.Topic {
				reopened[i] = l
			}
		})
		if l := reopened[i]; l != nil && l.locked(c.tx) {
			return errBlocked
		}
	}
	for i, e := range gone {
		if db.is(BugDeadLetterNoLetter) {
			c.row(e.Seq, int64(1), db.segmentOf(e), strconv.FormatUint(e.Xid, 10))
			continue
		}
		holds := !db.is(BugDeadLetterNoHold) && holds[slices.Index(seqs, e.Seq)]
		letter := e.Letter
		if l := reopened[i]; l != nil {
			row := l.lock(c.tx)
			row.State = "open"
		} else {
			letter = c.deadLetter(Letter{
				State:   "open",
				Holds:   holds,
				EventID: e.ID,
				Topic:   e.Topic,
				Key:     e.Key,
				Payload: e.Payload,
				Lane:    e.Lane,
			})
		}
		c.tx.deadLettered = append(c.tx.deadLettered, Parked{
			ID:     e.ID,
			Topic:  e.Topic,
			Key:    e.Key,
			Letter: letter,
		})
		c.row(e.Seq, letter, db.segmentOf(e), strconv.FormatUint(e.Xid, 10))
	}
	return nil
}

// deadLetter writes a letter.
func (c *call) deadLetter(l Letter) int64 {
	c.db.letterID++
	l.ID = c.db.letterID
	insert(&c.db.letters, c.tx, l)
	return l.ID
}

// nameScheduled names the event that is due first.
func nameScheduled(c *call) error {
	if due := c.dueScheduled(); len(due) > 0 {
		row, _ := due[0].see(c.tx)
		c.row(row.Seq)
	}
	return nil
}

// deadLetterScheduled makes a letter of the event that is due first, if it has that seq. None is too large here.
func deadLetterScheduled(c *call) error {
	due, seq := c.dueScheduled(), c.args[3].(*int64)
	if len(due) == 0 || seq == nil {
		return nil
	}
	row, _ := due[0].see(c.tx)
	gone := *row
	if gone.Seq != *seq {
		return nil
	}
	if err := c.refused(gone.ID); err != nil {
		return err
	}
	due[0].remove(c.tx)
	if c.db.is(BugDeadLetterScheduled) {
		c.row(int64(1), gone.Seq, gone.Topic, gone.ID, "t", gone.Key)
		return nil
	}
	id := c.deadLetter(Letter{
		State:   "open",
		EventID: gone.ID,
		Topic:   gone.Topic,
		Key:     gone.Key,
		Payload: gone.Payload,
		Lane:    gone.Lane,
	})
	c.tx.deadLettered = append(c.tx.deadLettered, Parked{
		ID:     gone.ID,
		Topic:  gone.Topic,
		Key:    gone.Key,
		Letter: id,
	})
	c.row(id, gone.Seq, gone.Topic, gone.ID, "t", gone.Key)
	return nil
}

func (c *call) emitName(q *cell[Parked]) {
	p, _ := q.see(c.tx)
	c.row(p.Place, p.Topic, p.Key, int64(p.Attempts), p.ID, "t", p.Letter)
}

func nameHead(c *call) error {
	from := c.args[3].(int64)
	for _, q := range c.db.queueOf(c.tx, c.args[0].(int), c.args[1].(string), c.args[2].(string)) {
		if p, _ := q.see(c.tx); p.Place >= from {
			c.emitName(q)
			break
		}
	}
	return nil
}

func nameWaiting(c *call) error {
	rows := c.after(c.waiting(), c.args[3].(*int64))
	if c.args[4].(bool) {
		rows = c.probed(rows)
	}
	for _, q := range rows[:min(1, len(rows))] {
		c.emitName(q)
	}
	return nil
}
