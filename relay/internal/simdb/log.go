package simdb

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// The statements that read the log and keep it small.

func (db *DB) is(b Bug) bool { return db.Bug == b }

func (db *DB) incarnated(token string) bool {
	return db.is(BugNoIncarnation) || db.token != "" && (token == db.incarnation() || db.is(BugIgnoresStarts) && strings.HasPrefix(token, db.token+"/"))
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

// state says whether a reader of a cursor may go on.
func (db *DB) state(token string, cursor ...*Snapshot) string {
	if !db.incarnated(token) {
		return "crashed"
	}
	if db.ahead(cursor...) {
		return "ahead"
	}
	return "ok"
}

// ahead says whether a cursor lies ahead of the server.
func (db *DB) ahead(cursor ...*Snapshot) bool {
	return !db.is(BugNoIncarnation) && !db.is(BugIgnoresStarts) &&
		slices.ContainsFunc(cursor, func(s *Snapshot) bool { return s != nil && s.Xmax > db.completed+1 })
}

func (db *DB) header(c *call, upto, state string) bool {
	c.row(int64(0), upto, state, "", "", "", db.Now(), nil, nil, int64(0), int64(0), nil, int64(0))
	return state == "ok"
}

// emitting is how a statement returns the events of a page, in seq order and up to limit.
type emitting func(db *DB, c *call, events []*Event, limit int, bound int64) error

// emitSized returns events up to the one with which they have bound bytes.
func emitSized(db *DB, c *call, events []*Event, limit int, bound int64) error {
	slices.SortFunc(events, func(a, b *Event) int { return int(a.Seq - b.Seq) })
	sum := int64(0)
	for _, e := range events[:min(limit, len(events))] {
		if sum >= bound {
			return nil
		}
		if err := c.refused(e.ID); err != nil {
			return err
		}
		payload, malformed, size := e.Payload, any(nil), int64(sizeOf(e.ID, e.Topic, e.Key, e.Payload))
		if db.Malformed != nil && db.Malformed(e.ID) != "" {
			payload, malformed, size = nil, db.Malformed(e.ID), 1<<30
		} else {
			sum += size
		}
		c.row(e.Seq, e.ID, "", "t", e.Topic, e.Key, db.Now(), nil, slices.Clone(payload), e.Letter, sum, malformed, size)
	}
	return nil
}

// emitSmall returns events that are not larger than bound; of one that is it returns only that.
func emitSmall(db *DB, c *call, events []*Event, limit int, bound int64) error {
	slices.SortFunc(events, func(a, b *Event) int { return int(a.Seq - b.Seq) })
	for _, e := range events[:min(limit, len(events))] {
		size := int64(sizeOf(e.ID, e.Topic, e.Key, e.Payload))
		if db.Malformed != nil && db.Malformed(e.ID) != "" {
			size = 1 << 30
		}
		if size > bound {
			c.row(e.Seq, "", "", "", "", "", db.Now(), nil, nil, e.Letter, int64(0), nil, size)
			continue
		}
		if err := c.refused(e.ID); err != nil {
			return err
		}
		c.row(e.Seq, e.ID, "", "t", e.Topic, e.Key, db.Now(), nil, slices.Clone(e.Payload), e.Letter, int64(0), nil, size)
	}
	return nil
}

func readPage(c *call, emit emitting) error {
	db := c.db
	lane, done, pos, limit, bytes := c.args[0].(int), db.Parse(c.args[1].(string)), c.args[3].(int64), c.args[4].(int), c.args[6].(int64)
	var upto, until *Snapshot
	if given := c.args[2].(*string); given != nil {
		upto = db.Parse(*given)
		until = upto
	} else {
		upto = db.snapshot(c.tx)
		switch {
		case db.is(BugXminHorizon):
			upto = &Snapshot{Xmin: upto.Xmin, Xmax: upto.Xmin}
		case db.is(BugEmptyXip):
			upto = &Snapshot{Xmin: upto.Xmax, Xmax: upto.Xmax}
		}
	}
	if !db.header(c, upto.String(), db.state(c.args[5].(string), done, until)) {
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
		if err := emit(db, c, found, limit, bytes); err != nil {
			return err
		}
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
	return emit(db, c, found, limit, bytes)
}

// readQuiet is readPage without noisy tenants, and without what lies in another window up to a place.
func readQuiet(c *call) error {
	db := c.db
	lane, done, pos, limit, bytes := c.args[0].(int), db.Parse(c.args[1].(string)), c.args[3].(int64), c.args[4].(int), c.args[6].(int64)
	separator, noisy, handedPos := c.args[7].(string), c.args[8].([]string), c.args[10].(int64)
	parsed := func(text *string) *Snapshot {
		if text == nil {
			return nil
		}
		return db.Parse(*text)
	}
	until, handed := parsed(c.args[2].(*string)), parsed(c.args[9].(*string))
	upto := until
	if upto == nil {
		upto = db.snapshot(c.tx)
	}
	if !db.header(c, upto.String(), db.state(c.args[5].(string), done, until)) {
		return nil
	}
	var found []*Event
	db.seen(c.tx, lane, func(e *Event) {
		tenant, _, has := strings.Cut(e.Key, separator)
		if !has {
			tenant = ""
		}
		in := e.Xid >= done.Xmax && e.Xid < upto.Xmax && upto.Sees(e.Xid) || slices.Contains(done.Xip, e.Xid) && !slices.Contains(upto.Xip, e.Xid)
		if in && e.Seq > pos && !slices.Contains(noisy, tenant) && (handed == nil || e.Seq > handedPos || !handed.Sees(e.Xid)) {
			found = append(found, e)
		}
	})
	return emitSized(db, c, found, limit, bytes)
}

func readPlanned(c *call, emit emitting) error {
	db := c.db
	lane, xids, pos, limit := c.args[0].(int), c.args[1].([]int64), c.args[3].(int64), c.args[4].(int)
	big, seqs, bytes := c.args[6].([]string), c.args[7].([]int64), c.args[8].(int64)
	if !db.header(c, c.args[2].(string), db.state(c.args[5].(string), db.Parse(c.args[2].(string)))) {
		return nil
	}
	var found []*Event
	db.seen(c.tx, lane, func(e *Event) {
		at := slices.Index(seqs, e.Seq)
		if at >= 0 && uint64(xids[at]) == e.Xid || e.Seq > pos && slices.Contains(big, strconv.FormatUint(e.Xid, 10)) {
			found = append(found, e)
		}
	})
	return emit(db, c, found, limit, bytes)
}

// window visits the events of a window after pos.
func (db *DB) window(c *call, visit func(*Event)) {
	done, upto, pos := db.Parse(c.args[1].(string)), db.Parse(c.args[2].(string)), c.args[3].(int64)
	db.seen(c.tx, c.args[0].(int), func(e *Event) {
		in := e.Xid >= done.Xmax && e.Xid < upto.Xmax && upto.Sees(e.Xid) || slices.Contains(done.Xip, e.Xid) && !slices.Contains(upto.Xip, e.Xid)
		if in && e.Seq > pos {
			visit(e)
		}
	})
}

func readTransactions(c *call) error {
	db, least := c.db, c.args[4].(int)
	if state := db.state(c.args[5].(string), db.Parse(c.args[2].(string))); state != "ok" {
		c.row(state, nil)
		return nil
	}
	counts := map[uint64]int64{}
	db.window(c, func(e *Event) { counts[e.Xid]++ })
	var xids []uint64
	for xid, n := range counts {
		if n > int64(least) {
			xids = append(xids, xid)
		}
	}
	slices.SortFunc(xids, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for _, xid := range xids[:min(8, len(xids))] {
		c.row(strconv.FormatUint(xid, 10), counts[xid])
	}
	return nil
}

func readPlaces(c *call) error {
	db, limit, big := c.db, c.args[4].(int), c.args[6].([]string)
	if state := db.state(c.args[5].(string), db.Parse(c.args[2].(string))); state != "ok" {
		c.row(state, nil)
		return nil
	}
	var found []*Event
	db.window(c, func(e *Event) {
		if !slices.Contains(big, strconv.FormatUint(e.Xid, 10)) {
			found = append(found, e)
		}
	})
	slices.SortFunc(found, func(a, b *Event) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, e := range found[:min(limit, len(found))] {
		c.row(strconv.FormatUint(e.Xid, 10), e.Seq)
	}
	return nil
}

func readCuts(c *call) error {
	db, done, limit := c.db, c.db.Parse(c.args[0].(string)), int(c.args[1].(int64))
	if state := db.state(c.args[2].(string), done); state != "ok" {
		c.row(state, nil, nil)
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
	now := db.snapshot(c.tx)
	for _, done := range dones {
		if done != nil && db.ahead(db.Parse(*done)) {
			return nil
		}
	}
	for i, lane := range lanes {
		unread, parked, scheduled := false, false, false
		var fresh any
		if dones[i] != nil {
			done := db.Parse(*dones[i])
			db.seen(c.tx, int(lane), func(e *Event) { unread = unread || e.Xid >= done.Xmax || slices.Contains(done.Xip, e.Xid) })
			if done.Xmax < now.Xmax || slices.ContainsFunc(done.Xip, func(x uint64) bool { return !slices.Contains(now.Xip, x) }) {
				fresh = now.String()
			}
		}
		each(db.parked, c.tx, func(_ *cell[Parked], p *Parked) { parked = parked || p.Lane == int(lane) && db.due(p) })
		each(db.scheduled, c.tx, func(_ *cell[Scheduled], s *Scheduled) {
			scheduled = scheduled || s.Lane == int(lane) && !s.DueAt.After(db.Now())
		})
		c.row(int64(lane), unread, parked, scheduled, fresh)
	}
	return nil
}

func readSegments(c *call) error {
	for n := range Segments {
		c.row(int64(c.db.current), int64(n), c.db.bytes[n], c.db.bytes[n] == 0)
	}
	return nil
}

func readHolders(c *call) error {
	for _, tx := range c.db.open {
		if tx != c.tx && tx.inserts[c.args[0].(int)] {
			c.row("tx " + strconv.Itoa(tx.number))
		}
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

// expireWrittenOnce removes nothing: no event of the fake has a dedupe key.
func expireWrittenOnce(c *call) error {
	c.row(0)
	return nil
}

func reclaim(c *call) error {
	db, n := c.db, c.args[0].(int)
	unlocked := db.is(BugReclaimWithoutLock)
	unread, future := false, false
	for lane, l := range db.lanes {
		row, _ := l.see(c.tx)
		done := db.Parse(row.Done)
		future = future || done.Xmax > db.completed+1
		for _, e := range db.segments[n] {
			if e.Lane == lane && e.Tx.state == committed {
				unread = unread || e.Xid >= done.Xmax || !db.is(BugReclaimForgetsLong) && slices.Contains(done.Xip, e.Xid)
			}
		}
	}
	busy := slices.ContainsFunc(db.open, func(tx *Tx) bool { return tx.inserts[n] })
	switch {
	case db.current == n:
		c.row("refused: it is the current segment")
	case unread && !unlocked:
		c.row("unread")
	case busy && !unlocked:
		c.row("busy")
	case !db.incarnated(c.args[1].(string)):
		c.row("refused: the database was restarted after a crash")
	case future:
		c.row("refused: a cursor lies in the future")
	case unlocked && !db.reclaims[n]:
		// The test was made now; the truncation comes with the next call, whatever was written meanwhile.
		if !unread {
			if db.reclaims == nil {
				db.reclaims = map[int]bool{}
			}
			db.reclaims[n] = true
		}
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
