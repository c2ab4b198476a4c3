package simdb

import (
	"slices"
	"strconv"
)

// The statements that read the log and keep it small.

func (db *DB) is(b Bug) bool { return db.Bug == b }

func (db *DB) incarnated(token string) bool {
	return db.is(BugNoIncarnation) || db.token != "" && db.token == token
}

// seen visits the events of a lane that a statement of tx sees.
func (db *DB) seen(tx *Tx, lane int, visit func(*Event)) {
	for _, segment := range db.segments {
		for _, e := range segment {
			if e.Lane == lane && (e.Tx.state == committed || e.Tx == tx) {
				visit(e)
			}
		}
	}
}

func (db *DB) header(c *call, upto, token string) bool {
	state := "ok"
	if !db.incarnated(token) {
		state = "crashed"
	}
	c.row(int64(0), upto, state, "", "", "", db.Now(), nil, nil, int64(0))
	return state == "ok"
}

func (db *DB) emit(c *call, events []*Event, limit int) {
	slices.SortFunc(events, func(a, b *Event) int { return int(a.Seq - b.Seq) })
	for _, e := range events[:min(limit, len(events))] {
		c.row(e.Seq, e.ID, "", "t", e.Topic, e.Key, db.Now(), nil, e.Payload, e.Letter)
	}
}

func readPage(c *call) error {
	db := c.db
	lane, done, pos, limit := c.args[0].(int), db.Parse(c.args[1].(string)), c.args[3].(int64), c.args[4].(int)
	var upto *Snapshot
	if given := c.args[2].(*string); given != nil {
		upto = db.Parse(*given)
	} else {
		upto = db.snapshot(c.tx)
		switch {
		case db.is(BugXminHorizon):
			upto = &Snapshot{Xmin: upto.Xmin, Xmax: upto.Xmin}
		case db.is(BugEmptyXip):
			upto = &Snapshot{Xmin: upto.Xmax, Xmax: upto.Xmax}
		}
	}
	if !db.header(c, upto.String(), c.args[5].(string)) {
		return nil
	}
	var found []*Event
	if db.is(BugMaxSeq) {
		last := db.sequels[strconv.Itoa(lane)+done.String()]
		db.seen(c.tx, lane, func(e *Event) {
			if e.Seq > max(last, pos) {
				found = append(found, e)
			}
		})
		db.emit(c, found, limit)
		for _, e := range found[:min(limit, len(found))] {
			last = max(last, e.Seq)
		}
		if db.sequels == nil {
			db.sequels = map[string]int64{}
		}
		db.sequels[strconv.Itoa(lane)+upto.String()] = max(last, db.sequels[strconv.Itoa(lane)+upto.String()])
		return nil
	}
	db.seen(c.tx, lane, func(e *Event) {
		switch {
		case e.Seq <= pos:
		case e.Xid >= done.Xmax && e.Xid < upto.Xmax && upto.Sees(e.Xid),
			!db.is(BugForgetsInFlight) && slices.Contains(done.Xip, e.Xid) && !slices.Contains(upto.Xip, e.Xid):
			found = append(found, e)
		}
	})
	db.emit(c, found, limit)
	return nil
}

func readPlanned(c *call) error {
	db := c.db
	lane, xids, pos, limit := c.args[0].(int), append(slices.Clone(c.args[1].([]string)), c.args[6].([]string)...), c.args[3].(int64), c.args[4].(int)
	if !db.header(c, c.args[2].(string), c.args[5].(string)) {
		return nil
	}
	var found []*Event
	db.seen(c.tx, lane, func(e *Event) {
		if e.Seq > pos && slices.Contains(xids, strconv.FormatUint(e.Xid, 10)) {
			found = append(found, e)
		}
	})
	db.emit(c, found, limit)
	return nil
}

func readTransactions(c *call) error {
	db := c.db
	lane, done, upto, pos, limit := c.args[0].(int), db.Parse(c.args[1].(string)), db.Parse(c.args[2].(string)), c.args[3].(int64), c.args[4].(int)
	if !db.incarnated(c.args[5].(string)) {
		c.row("crashed", nil)
		return nil
	}
	counts := map[uint64]int64{}
	var xids []uint64
	db.seen(c.tx, lane, func(e *Event) {
		in := e.Xid >= done.Xmax && e.Xid < upto.Xmax && upto.Sees(e.Xid) || slices.Contains(done.Xip, e.Xid) && !slices.Contains(upto.Xip, e.Xid)
		if !in || e.Seq <= pos {
			return
		}
		if counts[e.Xid] == 0 {
			xids = append(xids, e.Xid)
		}
		counts[e.Xid] = min(counts[e.Xid]+1, int64(limit))
	})
	slices.Sort(xids)
	for _, xid := range xids {
		c.row(strconv.FormatUint(xid, 10), counts[xid])
	}
	return nil
}

func readCuts(c *call) error {
	db, done, limit := c.db, c.db.Parse(c.args[0].(string)), int(c.args[1].(int64))
	if !db.incarnated(c.args[2].(string)) {
		c.row("crashed", nil, nil)
		return nil
	}
	var cuts []*Event
	for lane := range db.lanes {
		db.seen(c.tx, lane, func(e *Event) {
			if e.Snap != nil && e.Xid >= done.Xmax && e.Snap.Xmax > done.Xmax {
				cuts = append(cuts, e)
			}
		})
	}
	slices.SortFunc(cuts, func(a, b *Event) int {
		if a.Xid != b.Xid {
			return int(a.Xid) - int(b.Xid)
		}
		return int(a.Seq - b.Seq)
	})
	for _, e := range cuts[:min(limit, len(cuts))] {
		switch {
		case db.is(BugUncorrectedCut):
			c.row(e.Snap.String(), int64(e.Snap.Xmax), e.Seq) // what is past its end needs no correction
		case db.is(BugInventedCut):
			c.row((&Snapshot{Xmin: e.Xid, Xmax: e.Xid}).String(), int64(e.Xid), e.Seq)
		default:
			c.row(e.Snap.String(), int64(e.Xid), e.Seq)
		}
	}
	return nil
}

func probeLanes(c *call) error {
	db, lanes, dones := c.db, c.args[0].([]int16), c.args[1].([]*string)
	if !db.incarnated(c.args[2].(string)) {
		return nil
	}
	for i, lane := range lanes {
		unread, parked, scheduled := false, false, false
		if dones[i] != nil {
			done := db.Parse(*dones[i])
			db.seen(c.tx, int(lane), func(e *Event) { unread = unread || e.Xid >= done.Xmax || slices.Contains(done.Xip, e.Xid) })
		}
		each(db.parked, c.tx, func(_ *cell[Parked], p *Parked) { parked = parked || p.Lane == int(lane) && db.due(p) })
		each(db.scheduled, c.tx, func(_ *cell[Scheduled], s *Scheduled) {
			scheduled = scheduled || s.Lane == int(lane) && !s.DueAt.After(db.Now())
		})
		c.row(int64(lane), unread, parked, scheduled)
	}
	return nil
}

func readSegments(c *call) error {
	for n := range Segments {
		c.row(int64(c.db.current), int64(n), c.db.bytes[n], c.db.bytes[n] == 0)
	}
	return nil
}

func rotateSegments(c *call) error {
	if to, from := c.args[0].(int), c.args[1].(int); c.db.current == from {
		c.db.current = to
		c.tag = 1
	}
	return nil
}

func reclaim(c *call) error {
	db, n := c.db, c.args[0].(int)
	unlocked := db.is(BugReclaimWithoutLock)
	for _, tx := range db.open {
		if tx.inserts[n] && !unlocked {
			c.row("busy")
			return nil
		}
	}
	unread := false
	for lane, l := range db.lanes {
		row, _ := l.see(c.tx)
		done := db.Parse(row.Done)
		if done.Xmax > db.completed+1 {
			c.row("refused: a cursor lies in the future")
			return nil
		}
		for _, e := range db.segments[n] {
			if e.Lane == lane && e.Tx.state == committed {
				unread = unread || e.Xid >= done.Xmax || !db.is(BugReclaimForgetsLong) && slices.Contains(done.Xip, e.Xid)
			}
		}
	}
	switch {
	case !db.incarnated(c.args[1].(string)):
		c.row("refused: the database was restarted after a crash")
	case db.current == n:
		c.row("refused: it is the current segment")
	case unlocked && !db.reclaims[n]:
		// The test was made now; the truncation comes with the next call, whatever was written meanwhile.
		if !unread {
			if db.reclaims == nil {
				db.reclaims = map[int]bool{}
			}
			db.reclaims[n] = true
		}
		c.row("unread")
	case unread && !unlocked:
		c.row("unread")
	default:
		delete(db.reclaims, n)
		gone := slices.DeleteFunc(slices.Clone(db.segments[n]), func(e *Event) bool { return e.Tx.state != committed })
		db.segments[n] = slices.DeleteFunc(db.segments[n], func(e *Event) bool { return e.Tx.state == committed })
		db.bytes[n] = 0
		if db.Watch.Truncated != nil {
			db.Watch.Truncated(n, gone)
		}
		c.row("emptied")
	}
	return nil
}
