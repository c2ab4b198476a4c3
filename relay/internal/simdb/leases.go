package simdb

import (
	"fmt"
	"slices"
)

// The statements by which a lane leases parked events, and a person who discards what waits beside it.

func beginLeases(c *call) error {
	n, epoch := c.args[0].(int), c.args[2].(int64)
	l := c.db.lanes[n]
	if row, _ := l.see(nil); !c.db.ours(row, c.args[1].(string), epoch) || !c.db.incarnated(c.args[3].(string)) {
		return nil
	}
	if l.locked(c.tx) {
		return errBlocked
	}
	l.lock(c.tx)
	each(c.db.leases, c.tx, func(q *cell[Lease], p *Lease) {
		if p.Lane == n {
			q.remove(c.tx)
		}
	})
	insert(&c.db.leases, c.tx, Lease{Lane: n, Place: epoch})
	return nil
}

// leasesAt are the rows that a statement names, and which of those are there.
func (c *call) leasesAt() (named []Lease, there map[Lease]*cell[Lease]) {
	topics, keys, places := c.args[1].([]string), c.args[2].([]string), c.args[3].([]int64)
	there = map[Lease]*cell[Lease]{}
	for i := range topics {
		named = append(named, Lease{
			Lane:  c.args[0].(int),
			Topic: topics[i],
			Key:   keys[i],
			Place: places[i],
		})
	}
	each(c.db.leases, c.tx, func(q *cell[Lease], p *Lease) {
		if slices.Contains(named, *p) {
			there[*p] = q
		}
	})
	return named, there
}

func leaseParked(c *call) error {
	if c.db.is(BugNoLease) {
		return nil
	}
	named, there := c.leasesAt()
	for _, p := range named {
		if there[p] == nil {
			insert(&c.db.leases, c.tx, p)
			there[p] = c.db.leases[len(c.db.leases)-1]
		}
	}
	return nil
}

func endLeases(c *call) error {
	_, there := c.leasesAt()
	for _, q := range there {
		q.remove(c.tx)
	}
	return nil
}

// parkedOf is the advisory lock of what is parked in a lane.
func parkedOf(lane int) string { return fmt.Sprint("parked in ", lane) }

// leased says whether the owner of a lane has a parked event in memory.
func (db *DB) leased(tx *Tx, p *Parked) bool {
	place := p.Place
	if p.Key != "" {
		place = 0
	}
	found := false
	each(db.leases, tx, func(_ *cell[Lease], l *Lease) {
		found = found || *l == Lease{Lane: p.Lane, Topic: p.Topic, Key: p.Key, Place: place}
	})
	return found && !db.is(BugIgnoresLeases)
}

// DiscardParked begins a transaction that discards what waits of a topic in a lane, most events at most, as package waiting does, and
// returns the ids of that, and whether it takes the lane from an owner whose lease has run out. It is nil if somebody else is changing what is
// parked in the lane, or if the lane's owner does not tell what it has leased.
func (db *DB) DiscardParked(lane int, topic string, most int) (tx *Tx, ids []string, frees bool) {
	tx = db.Begin()
	if !db.is(BugUnlockedCommand) && !tx.Lock(parkedOf(lane)) {
		tx.Rollback()
		return nil, nil, false
	}
	row, _ := db.lanes[lane].see(tx)
	owned, told := row.Owner != "" && row.LeaseUntil.After(db.Now()), false
	each(db.leases, tx, func(_ *cell[Lease], p *Lease) { told = told || *p == Lease{Lane: lane, Place: row.Epoch} })
	if owned && !told {
		tx.Rollback()
		return nil, nil, false
	}
	if l := db.lanes[lane]; !owned && row.Owner != "" && !l.locked(tx) {
		l.lock(tx).Owner, frees = "", true
	}
	var gone []*cell[Parked]
	each(db.parked, tx, func(q *cell[Parked], p *Parked) {
		if p.Lane == lane && p.Topic == topic && !q.locked(tx) && !(owned && db.leased(tx, p)) {
			gone = append(gone, q)
		}
	})
	db.byPlace(tx, gone)
	for _, q := range gone[:min(most, len(gone))] {
		p, _ := q.see(tx)
		if letter, _ := db.letter(p.Letter); p.Letter != 0 && letter != nil && letter.locked(tx) {
			continue
		} else if p.Letter != 0 && letter != nil {
			letter.lock(tx).State = "discarded"
		}
		ids = append(ids, p.ID)
		tx.deadLettered = append(tx.deadLettered, *p)
		key := p.Key
		q.remove(tx)
		if key == "" || db.is(BugDiscardNoWake) {
			continue
		}
		for _, next := range db.queueOf(tx, lane, topic, key) {
			n, _ := next.see(tx)
			if n.NextAt.IsZero() && !n.waits() && !next.locked(tx) && (n.Letter != 0 || !db.holds(tx, lane, topic, key)) {
				next.lock(tx).NextAt = db.Now()
			}
			break
		}
	}
	return tx, ids, frees
}
