package simdb

import (
	"time"

	"github.com/holdfast-go/holdfast"
)

// The statements that share lanes, and save cursors under the fence.

func readServer(c *call) error {
	var done uint64
	for _, l := range c.db.lanes {
		row, _ := l.see(c.tx)
		done = max(done, c.db.Parse(row.Done).Xmax)
		if row.Upto != "" {
			done = max(done, c.db.Parse(row.Upto).Xmax)
		}
	}
	c.row(c.db.incarnation(), false, "read committed", int64(1), int64(1), int64(3), int64(3), int64(done), int64(c.db.snapshot(c.tx).Xmax), int64(holdfast.SchemaVersion))
	return nil
}

func ensureIncarnation(c *call) error {
	if c.db.token == "" {
		c.db.refill()
	}
	return nil
}

// free says whether a lane's lease has run out. A lease further away than twice its length was given by a clock that has
// since stepped back.
func (db *DB) free(l *Lane, lease time.Duration) bool {
	return l.LeaseUntil.Before(db.Now()) || !db.is(BugNoLeaseAhead) && l.LeaseUntil.After(db.Now().Add(2*lease))
}

func heartbeatRelay(c *call) error {
	db, name, lease, mine := c.db, c.args[0].(string), c.args[1].(time.Duration), c.args[2].([]int16)
	relays, free := int64(1), int64(0)
	for other, until := range db.relays {
		if other != name && until.After(db.Now()) && until.Before(db.Now().Add(2*lease)) {
			relays++
		}
	}
	db.relays[name] = db.Now().Add(lease)
	for n, l := range db.lanes {
		row, _ := l.see(c.tx)
		if db.free(row, lease) || row.Owner == name && !contains(mine, n) {
			free++
		}
	}
	c.row(relays, int64(len(db.lanes)), free)
	return nil
}

func contains(lanes []int16, n int) bool {
	for _, lane := range lanes {
		if int(lane) == n {
			return true
		}
	}
	return false
}

func leaveRelay(c *call) error {
	name := c.args[0].(string)
	for _, l := range c.db.lanes {
		if row, _ := l.see(c.tx); row.Owner == name && l.locked(c.tx) {
			return errBlocked
		}
	}
	for _, l := range c.db.lanes {
		if row, _ := l.see(c.tx); row.Owner == name {
			next := l.lock(c.tx)
			next.Owner, next.LeaseUntil = "", time.Time{}
		}
	}
	delete(c.db.relays, name)
	return nil
}

func claimLane(c *call) error {
	db, name, lease, token, mine := c.db, c.args[0].(string), c.args[1].(time.Duration), c.args[2].(string), c.args[3].([]int16)
	if !db.incarnated(token) {
		return nil
	}
	for n, l := range db.lanes {
		row, _ := l.see(c.tx)
		if !(db.free(row, lease) || row.Owner == name) || contains(mine, n) || l.locked(c.tx) {
			continue
		}
		next := l.lock(c.tx)
		next.Owner, next.LeaseUntil, next.Save = name, db.Now().Add(lease), 0
		if !db.is(BugClaimKeepsEpoch) {
			next.Epoch++
		}
		c.row(int64(n), next.Epoch, next.Done, next.Upto, next.Pos, next.Published)
		break
	}
	return nil
}

// ours is the fence.
func (db *DB) ours(l *Lane, name string, epoch int64) bool {
	return (l.Owner == name || db.is(BugClaimKeepsEpoch)) && l.Epoch == epoch
}

// inTurn says that a save is not an earlier one that arrives late.
func (db *DB) inTurn(l *Lane, number int64) bool { return l.Save < number || db.is(BugLateSave) }

func saveLanes(c *call) error {
	db, name, lease := c.db, c.args[0].(string), c.args[1].(time.Duration)
	lanes, epochs, dones, uptos, poss := c.args[2].([]int16), c.args[3].([]int64), c.args[4].([]*string), c.args[5].([]*string), c.args[6].([]int64)
	number, published, unfenced := c.args[8].(int64), c.args[9].([]int64), db.is(BugSaveWithoutFence)
	if !db.incarnated(c.args[7].(string)) && !unfenced {
		return nil
	}
	for i, n := range lanes {
		l := db.lanes[n]
		if l.locked(c.tx) {
			if row, _ := l.see(nil); db.ours(row, name, epochs[i]) {
				c.row(int64(n), false)
			}
			continue
		}
		if dones[i] != nil && (db.ahead(db.Parse(*dones[i])) || *uptos[i] != "" && db.ahead(db.Parse(*uptos[i]))) {
			continue
		}
		if row, _ := l.see(c.tx); !unfenced && !(db.ours(row, name, epochs[i]) && db.inTurn(row, number)) {
			continue
		}
		next := l.lock(c.tx)
		if dones[i] != nil {
			next.Done, next.Upto = *dones[i], *uptos[i]
		}
		next.Pos, next.LeaseUntil, next.Save, next.Published = poss[i], db.Now().Add(lease), number, published[i]
		if next.Upto == "" && next.Pos != 0 {
			panic(Violated("pos_only_inside_a_window"))
		}
		c.tx.fence(int(n), epochs[i])
		c.row(int64(n), true)
	}
	return nil
}

// fence remembers in whose name a transaction writes.
func (tx *Tx) fence(lane int, epoch int64) {
	if tx.fences == nil {
		tx.fences = map[int]int64{}
	}
	tx.fences[lane] = epoch
}

func releaseLane(c *call) error {
	l := c.db.lanes[c.args[0].(int)]
	row, _ := l.see(nil)
	if !c.db.ours(row, c.args[1].(string), c.args[2].(int64)) {
		return nil
	}
	if l.locked(c.tx) {
		return errBlocked
	}
	next := l.lock(c.tx)
	next.Owner, next.LeaseUntil = "", time.Time{}
	each(c.db.leases, c.tx, func(q *cell[Lease], p *Lease) {
		if p.Lane == c.args[0].(int) {
			q.remove(c.tx)
		}
	})
	return nil
}

func fenceLane(c *call) error {
	n, epoch := c.args[0].(int), c.args[2].(int64)
	l := c.db.lanes[n]
	if !c.tx.Lock(parkedOf(n)) {
		return errBlocked
	}
	if c.db.is(BugParkWithoutEpoch) {
		c.tx.Draw()
		c.tx.fence(n, epoch)
		c.row(int64(1))
		return nil
	}
	if row, _ := l.see(nil); !c.db.ours(row, c.args[1].(string), epoch) || !c.db.incarnated(c.args[3].(string)) {
		return nil
	}
	if l.locked(c.tx) {
		return errBlocked
	}
	l.lock(c.tx)
	c.tx.fence(n, epoch)
	c.row(int64(1))
	return nil
}
