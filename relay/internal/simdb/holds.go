package simdb

import (
	"slices"
	"time"
)

// The statements that hold parked events with their topic or partition, and resume them.

func holdParked(c *call) error {
	rows := c.rowsAt(c.args[1].([]string), c.args[2].([]string), c.args[3].([]int64))
	if c.rowLocks(rows) {
		return errBlocked
	}
	if err := c.anyRefused(rows); err != nil {
		return err
	}
	for i, q := range rows {
		if q == nil {
			continue
		}
		p := q.lock(c.tx)
		p.NextAt, p.Partition = time.Time{}, c.args[4].([]*int32)[i]
		if p.Partition == nil {
			p.Why = "topic"
		}
	}
	return nil
}

func resumeQueues(c *call) error {
	db, lane, topics, keys := c.db, c.args[0].(int), c.args[1].([]string), c.args[2].([]string)
	for i := range topics {
		queue := db.queueOf(c.tx, lane, topics[i], keys[i])
		if len(queue) == 0 || db.is(BugEmptied) {
			c.row(topics[i], keys[i])
		}
		if len(queue) == 0 || db.is(BugNoWake) {
			continue
		}
		if p, _ := queue[0].see(c.tx); p.NextAt.IsZero() && (p.Letter != 0 || !db.holds(c.tx, lane, topics[i], keys[i]) || db.is(BugResumesHeld)) {
			if queue[0].locked(c.tx) {
				return errBlocked
			}
			if err := c.refused(p.ID); err != nil {
				return err
			}
			queue[0].lock(c.tx).NextAt = db.Now()
		}
	}
	return nil
}

// spot is what a row waits for: a partition, -2 for its topic.
func (p *Parked) spot() int {
	if p.Partition == nil {
		return -2
	}
	return int(*p.Partition)
}

func (p *Parked) waits() bool { return p.Partition != nil || p.Why == "topic" }

// waiting are the rows that wait for a topic or a partition, by place.
func (c *call) waiting() (rows []*cell[Parked]) {
	lane, topic, partition := c.args[0].(int), c.args[1].(string), c.args[2].(int)
	each(c.db.parked, c.tx, func(q *cell[Parked], p *Parked) {
		if p.Lane == lane && p.Topic == topic && p.waits() && p.spot() == partition {
			rows = append(rows, q)
		}
	})
	c.db.byPlace(c.tx, rows)
	return rows
}

// after leaves out the rows up to a place; nil leaves out none.
func (c *call) after(rows []*cell[Parked], place *int64) []*cell[Parked] {
	return slices.DeleteFunc(rows, func(q *cell[Parked]) bool {
		p, _ := q.see(c.tx)
		return place != nil && p.Place <= *place
	})
}

// heads says whether a row is the first of its queue.
func (c *call) heads(q *cell[Parked]) bool {
	p, _ := q.see(c.tx)
	return p.Key == "" || c.db.queueOf(c.tx, p.Lane, p.Topic, p.Key)[0] == q
}

// probed are the rows that may be tried for what they wait for.
func (c *call) probed(rows []*cell[Parked]) []*cell[Parked] {
	return slices.DeleteFunc(rows, func(q *cell[Parked]) bool {
		p, _ := q.see(c.tx)
		return !c.heads(q) || p.Letter == 0 && c.db.holds(c.tx, p.Lane, p.Topic, p.Key)
	})
}

func readProbe(c *call) error {
	after := c.args[3].(int64)
	rows := c.probed(c.after(c.waiting(), &after))
	return c.emitParked(rows[:min(1, len(rows))])
}

func resumeHeld(c *call) error {
	rows := c.after(c.waiting(), c.args[4].(*int64))
	rows = rows[:min(len(rows), c.args[3].(int))]
	if c.rowLocks(rows) {
		return errBlocked
	}
	if err := c.anyRefused(rows); err != nil {
		return err
	}
	heads := map[*cell[Parked]]bool{}
	for _, q := range rows {
		heads[q] = c.heads(q) || c.db.is(BugResumesFollowers)
	}
	for _, q := range rows {
		p := q.lock(c.tx)
		p.Partition = nil
		if p.Why == "topic" || p.Why == "partition" {
			p.Why = "follows"
		}
		if heads[q] && p.NextAt.IsZero() && (p.Letter != 0 || !c.db.holds(c.tx, p.Lane, p.Topic, p.Key)) {
			p.NextAt = c.db.Now()
		}
	}
	c.row(int64(len(rows)))
	return nil
}

func loadHolds(c *call) error {
	lane := c.args[0].(int)
	each(c.db.parked, c.tx, func(_ *cell[Parked], p *Parked) {
		if p.Lane == lane && p.waits() && !slices.ContainsFunc(c.rows, func(row []any) bool { return row[0] == p.Topic && row[1] == int64(p.spot()) }) {
			c.row(p.Topic, int64(p.spot()))
		}
	})
	return nil
}

func readPaused(c *call) error {
	for _, topic := range c.db.Paused {
		c.row(topic)
	}
	return nil
}
