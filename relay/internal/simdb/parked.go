package simdb

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// The statements that keep queues of parked events, letters and scheduled events.

func (db *DB) due(p *Parked) bool { return !p.NextAt.IsZero() && !p.NextAt.After(db.Now()) }

// queueOf are the rows of a queue in order of their places.
func (db *DB) queueOf(tx *Tx, lane int, topic, key string) (queue []*cell[Parked]) {
	each(db.parked, tx, func(c *cell[Parked], p *Parked) {
		if p.Lane == lane && p.Topic == topic && p.Key == key {
			queue = append(queue, c)
		}
	})
	db.byPlace(tx, queue)
	return queue
}

func (db *DB) byPlace(tx *Tx, queue []*cell[Parked]) {
	slices.SortFunc(queue, func(a, b *cell[Parked]) int {
		x, _ := a.see(tx)
		y, _ := b.see(tx)
		switch {
		case x.Place < y.Place:
			return -1
		case x.Place > y.Place:
			return 1
		}
		return strings.Compare(x.ID, y.ID)
	})
}

// holds says whether a letter holds a key.
func (db *DB) holds(tx *Tx, lane int, topic, key string) (holds bool) {
	each(db.letters, tx, func(_ *cell[Letter], l *Letter) {
		holds = holds || l.Lane == lane && l.Topic == topic && l.Key == key && l.Holds && (l.State == "open" || l.State == "replaying")
	})
	return holds
}

// listQueues are the queues of a lane in their order, from one on, so many at most, with what is said of their first rows.
func listQueues(c *call) error {
	lane, most, topic, key := c.args[0].(int), c.args[1].(int), c.args[2].(string), c.args[3].(string)
	var rows []*Parked
	each(c.db.parked, c.tx, func(_ *cell[Parked], p *Parked) {
		if p.Lane == lane && cmp.Or(strings.Compare(p.Topic, topic), strings.Compare(p.Key, key)) >= 0 {
			rows = append(rows, p)
		}
	})
	slices.SortFunc(rows, func(a, b *Parked) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), strings.Compare(a.Key, b.Key), cmp.Compare(a.Place, b.Place))
	})
	for len(rows) > 0 && len(c.rows) < most {
		head := rows[0]
		for len(rows) > 0 && rows[0].Topic == head.Topic && rows[0].Key == head.Key {
			rows = rows[1:]
		}
		c.row(head.Topic, head.Key, head.NextAt.IsZero() && !head.waits())
	}
	return nil
}

// keylessGone are those of some topics of which no row without a key is left.
func keylessGone(c *call) error {
	for _, topic := range c.args[1].([]string) {
		if len(c.db.queueOf(c.tx, c.args[0].(int), topic, "")) == 0 {
			c.row(topic)
		}
	}
	return nil
}

func loadHeld(c *call) error {
	lane := c.args[0].(int)
	each(c.db.letters, c.tx, func(_ *cell[Letter], l *Letter) {
		if l.Lane != lane || !l.Holds || l.State != "open" && l.State != "replaying" {
			return
		}
		if !slices.ContainsFunc(c.rows, func(row []any) bool { return row[0] == l.Topic && row[1] == l.Key }) {
			c.row(l.Topic, l.Key)
		}
	})
	return nil
}

func parkEvents(c *call) error {
	db, lane := c.db, c.args[0].(int)
	topics, keys, whys, attempts := c.args[1].([]string), c.args[2].([]string), c.args[3].([]string), c.args[4].([]int32)
	ids, payloads, letters, delays := c.args[6].([]string), c.args[11].([][]byte), c.args[12].([]int64), c.args[13].([]*float64)
	partitions := c.args[14].([]*int32)
	for i := range ids {
		p := Parked{
			Lane:      lane,
			Topic:     topics[i],
			Key:       keys[i],
			Place:     db.placeOf(c.tx, lane, topics[i], keys[i], letters[i]),
			Why:       whys[i],
			Attempts:  int(attempts[i]),
			ID:        ids[i],
			Payload:   slices.Clone(payloads[i]),
			Letter:    letters[i],
			Partition: partitions[i],
		}
		behind := p.Key != "" && (len(db.queueOf(c.tx, lane, p.Topic, p.Key)) > 0 || p.Letter == 0 && db.holds(c.tx, lane, p.Topic, p.Key))
		if delays[i] != nil && (!behind || db.is(BugDueBehind)) {
			p.NextAt = db.Now().Add(time.Duration(*delays[i] * float64(time.Second)))
		} else if db.is(BugUnparkFollowers) {
			p.NextAt = db.Now()
		}
		if err := c.refused(p.ID); err != nil {
			return err
		}
		insert(&db.parked, c.tx, p)
		c.row(p.Place)
	}
	return nil
}

// placeOf is where a row is parked: a replay before everything else of its queue, in the order of the letters.
func (db *DB) placeOf(tx *Tx, lane int, topic, key string, letter int64) int64 {
	if letter == 0 || db.is(BugReplayAtEnd) {
		db.place++
		return db.place
	}
	place, end := letter<<16-1<<62, (letter+1)<<16-1<<62
	for _, q := range db.queueOf(tx, lane, topic, key) {
		if p, _ := q.see(tx); p.Place >= place && p.Place < end {
			place = p.Place + 1
		}
	}
	return place
}

func fixHead(c *call) error {
	for i, q := range c.db.queueOf(c.tx, c.args[0].(int), c.args[1].(string), c.args[2].(string)) {
		p, _ := q.see(c.tx)
		heads := i == 0 || c.db.is(BugReplayWakesAll)
		if heads != p.NextAt.IsZero() {
			continue
		}
		if err := c.refused(p.ID); err != nil {
			return err
		}
		if p = q.lock(c.tx); heads {
			p.NextAt = c.db.Now()
		} else {
			p.NextAt = time.Time{}
		}
	}
	return nil
}

func closeLetters(c *call) error {
	ids := c.args[0].([]int64)
	blocked := false
	each(c.db.letters, c.tx, func(l *cell[Letter], row *Letter) {
		blocked = blocked || slices.Contains(ids, row.ID) && row.State == "replaying" && l.locked(c.tx)
	})
	if blocked {
		return errBlocked
	}
	each(c.db.letters, c.tx, func(l *cell[Letter], row *Letter) {
		if slices.Contains(ids, row.ID) && row.State == "replaying" {
			if l.lock(c.tx); !c.db.is(BugReplayStaysOpen) {
				l.next.State = "replayed"
			}
		}
	})
	return nil
}

func (c *call) emitParked(rows []*cell[Parked]) error {
	if err := c.anyRefused(rows); err != nil {
		return err
	}
	for _, q := range rows {
		p, _ := q.see(c.tx)
		c.row(p.Place, p.Topic, p.Key, p.Why, int64(p.Attempts), p.ID, "", "t", c.db.Now(), nil, p.Payload, p.Letter, nil)
	}
	return nil
}

// sizeOf is the bytes of an event that the statements count. It has no headers and no source here, and the type "t".
func sizeOf(id, topic, key string, payload []byte) int {
	return len(id) + len(topic) + len(key) + len("t") + len(payload)
}

// head is the head of a queue, or an event without a key, and since when it is due: less is earlier.
type head struct {
	*cell[Parked]
	since int64
}

// due are the heads that are due.
func (c *call) due() []head {
	db, lane, held, queues := c.db, c.args[0].(int), c.args[1].([]string), c.args[2].(int)
	topics, keys, places := c.args[3].([]string), c.args[4].([]string), c.args[5].([]int64)
	inMemory := func(p *Parked) bool {
		for i := range topics {
			if p.Topic == topics[i] && p.Key == keys[i] && (p.Key != "" || p.Place == places[i]) {
				return true
			}
		}
		return false
	}
	var rows []*cell[Parked]
	each(db.parked, c.tx, func(q *cell[Parked], p *Parked) {
		if p.Lane == lane && db.due(p) && !slices.Contains(held, p.Topic) && !inMemory(p) {
			rows = append(rows, q)
		}
	})
	slices.SortStableFunc(rows, func(a, b *cell[Parked]) int {
		x, _ := a.see(c.tx)
		y, _ := b.see(c.tx)
		return x.NextAt.Compare(y.NextAt)
	})
	return c.firsts(rows[:min(queues, len(rows))])
}

// firsts are the first rows of each queue, and all that have no key, of rows in the order in which they fell due.
func (c *call) firsts(rows []*cell[Parked]) (firsts []head) {
	at := map[[2]string]int{}
	for _, q := range rows {
		p, _ := q.see(c.tx)
		queue := [2]string{p.Topic, p.Key}
		if i, known := at[queue]; p.Key == "" || !known {
			at[queue] = len(firsts)
			firsts = append(firsts, head{q, p.NextAt.UnixNano()})
		} else if first, _ := firsts[i].see(c.tx); p.Place < first.Place {
			firsts[i].cell = q
		}
	}
	slices.SortStableFunc(firsts, func(a, b head) int {
		x, _ := a.see(c.tx)
		y, _ := b.see(c.tx)
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(x.Place, y.Place))
	})
	return firsts
}

func readDue(c *call) error {
	heads := c.due()
	return c.drain(heads, share(c.args[6].(int), len(heads)), c.args[7].(int))
}

func listDue(c *call) error {
	for _, q := range c.due() {
		p, _ := q.see(c.tx)
		c.row(p.Topic, p.Key, p.Place)
	}
	return nil
}

func readHeads(c *call) error {
	var heads []head
	for i, q := range c.rowsAt(c.args[1].([]string), c.args[2].([]string), c.args[3].([]int64)) {
		if q != nil {
			heads = append(heads, head{q, int64(i)})
		}
	}
	return c.drain(heads, share(c.args[4].(int), len(c.args[1].([]string))), c.args[5].(int))
}

// share is how many of so many rows each queue has.
func share(rows, queues int) int { return max(rows/max(queues, 1), 1) }

// drain returns heads, then the second rows of their queues and so on.
func (c *call) drain(heads []head, limit, most int) error {
	type row struct {
		*cell[Parked]
		nth          int
		since, place int64
	}
	var read []row
	for _, of := range heads {
		h, _ := of.see(c.tx)
		if h.Key == "" {
			read = append(read, row{of.cell, 0, of.since, h.Place})
			continue
		}
		n := 0
		for _, q := range c.db.queueOf(c.tx, c.args[0].(int), h.Topic, h.Key) {
			if p, _ := q.see(c.tx); p.Place >= h.Place && n < limit {
				read = append(read, row{q, n, of.since, p.Place})
				n++
			}
		}
	}
	slices.SortFunc(read, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.nth, b.nth), cmp.Compare(a.since, b.since), cmp.Compare(a.place, b.place))
	})
	rows := make([]*cell[Parked], len(read))
	for i, r := range read {
		rows[i] = r.cell
	}
	bytes := 0
	for i, q := range rows {
		if p, _ := q.see(c.tx); bytes >= most {
			rows = rows[:i]
			break
		} else {
			bytes += sizeOf(p.ID, p.Topic, p.Key, p.Payload)
		}
	}
	return c.emitParked(rows)
}

// rowsAt finds rows by topic, key and place.
func (c *call) rowsAt(topics, keys []string, places []int64) []*cell[Parked] {
	found := make([]*cell[Parked], len(topics))
	each(c.db.parked, c.tx, func(q *cell[Parked], p *Parked) {
		for i := range topics {
			if p.Lane == c.args[0].(int) && p.Topic == topics[i] && p.Key == keys[i] && p.Place == places[i] {
				found[i] = q
			}
		}
	})
	return found
}

// rowLocks says whether any of the rows is locked by another: only where the fence is broken.
func (c *call) rowLocks(rows []*cell[Parked]) bool {
	return slices.ContainsFunc(rows, func(q *cell[Parked]) bool { return q != nil && q.locked(c.tx) })
}

func deleteParked(c *call) error {
	rows := c.rowsAt(c.args[1].([]string), c.args[2].([]string), c.args[3].([]int64))
	if c.rowLocks(rows) {
		return errBlocked
	}
	if err := c.anyRefused(rows); err != nil {
		return err
	}
	for _, q := range rows {
		if q != nil {
			p, _ := q.see(c.tx)
			c.tx.gone = append(c.tx.gone, p.ID)
			q.remove(c.tx)
		}
	}
	return nil
}

func delayParked(c *call) error {
	rows := c.rowsAt(c.args[1].([]string), c.args[2].([]string), c.args[3].([]int64))
	if c.rowLocks(rows) {
		return errBlocked
	}
	if err := c.anyRefused(rows); err != nil {
		return err
	}
	adds, delays := c.args[4].([]int32), c.args[6].([]float64)
	for i, q := range rows {
		if q == nil {
			continue
		}
		p := q.lock(c.tx)
		p.Attempts += int(adds[i])
		p.NextAt = c.db.Now().Add(time.Duration(delays[i] * float64(time.Second)))
		for _, before := range c.db.queueOf(c.tx, p.Lane, p.Topic, p.Key) {
			if before == q || p.Key == "" {
				break
			}
			if b, _ := before.see(c.tx); b.Letter != 0 {
				p.NextAt = time.Time{}
				break
			}
		}
		if adds[i] > 0 {
			p.Why = "record"
		}
	}
	return nil
}

func deadLetterParked(c *call) error {
	db := c.db
	rows := c.rowsAt([]string{c.args[1].(string)}, []string{c.args[2].(string)}, []int64{c.args[3].(int64)})
	if rows[0] == nil {
		return nil
	}
	if c.rowLocks(rows) {
		return errBlocked
	}
	if err := c.anyRefused(rows); err != nil {
		return err
	}
	p, _ := rows[0].see(c.tx)
	gone := *p
	var letter *cell[Letter]
	each(db.letters, c.tx, func(l *cell[Letter], row *Letter) {
		if gone.Letter != 0 && row.ID == gone.Letter {
			letter = l
		}
	})
	if letter != nil && letter.locked(c.tx) {
		return errBlocked
	}
	rows[0].remove(c.tx)
	attempts, holds := gone.Attempts+c.args[4].(int), c.args[8].(bool)
	if letter != nil {
		l := letter.lock(c.tx)
		l.State = "open"
		l.Attempts += attempts
		c.tx.deadLettered = append(c.tx.deadLettered, gone)
		c.row(l.ID)
		return nil
	}
	db.letterID++
	insert(&db.letters, c.tx, Letter{
		ID:       db.letterID,
		State:    "open",
		Holds:    holds,
		EventID:  gone.ID,
		Topic:    gone.Topic,
		Key:      gone.Key,
		Payload:  gone.Payload,
		Lane:     gone.Lane,
		Attempts: attempts,
	})
	gone.Letter = db.letterID
	c.tx.deadLettered = append(c.tx.deadLettered, gone)
	c.row(db.letterID)
	return nil
}

// dueScheduled are the scheduled events of a lane that are due, in their order.
func (c *call) dueScheduled() []*cell[Scheduled] {
	db, lane := c.db, c.args[0].(int)
	var due []*cell[Scheduled]
	each(db.scheduled, c.tx, func(s *cell[Scheduled], row *Scheduled) {
		if row.Lane == lane && !row.DueAt.After(db.Now()) && !s.locked(c.tx) {
			due = append(due, s)
		}
	})
	slices.SortFunc(due, func(a, b *cell[Scheduled]) int {
		x, _ := a.see(c.tx)
		y, _ := b.see(c.tx)
		if d := x.DueAt.Compare(y.DueAt); d != 0 {
			return d
		}
		return int(x.Seq - y.Seq)
	})
	return due
}

func moveScheduled(c *call) error {
	db, due, limit, most := c.db, c.dueScheduled(), c.args[1].(int), c.args[2].(int64)
	due = due[:min(limit, len(due))]
	only := c.args[3].(*int64)
	segment, moved, bytes := db.Segment(), int64(0), int64(0)
	for _, s := range due {
		row, _ := s.see(c.tx)
		if bytes >= most || only != nil && row.Seq != *only {
			break
		}
		if err := c.refused(row.ID); err != nil {
			return err
		}
		moved, bytes = moved+1, bytes+int64(sizeOf(row.ID, row.Topic, row.Key, row.Payload))
		e := Event{Lane: row.Lane, ID: row.ID, Topic: row.Topic, Key: row.Key, Payload: row.Payload}
		s.remove(c.tx)
		c.tx.Append(segment, e)
	}
	c.row(moved, bytes)
	return nil
}

// Replay is what package dlq does: an open letter is being replayed, and its event enters the log again. False when the
// letter is not open, or locked just now.
func (db *DB) Replay(letter int64) bool {
	c, row := db.letter(letter)
	if c == nil || row.State != "open" || c.locked(nil) {
		return false
	}
	tx := db.Begin()
	c.lock(tx).State = "replaying"
	tx.Append(db.Segment(), Event{
		Lane:    row.Lane,
		ID:      row.EventID,
		Topic:   row.Topic,
		Key:     row.Key,
		Payload: row.Payload,
		Letter:  letter,
	})
	return tx.Commit() == nil
}

// Discard gives an open letter up for good.
func (db *DB) Discard(letter int64) bool {
	c, row := db.letter(letter)
	if c == nil || row.State != "open" || c.locked(nil) {
		return false
	}
	tx := db.Begin()
	c.lock(tx).State = "discarded"
	return tx.Commit() == nil
}

func (db *DB) letter(id int64) (found *cell[Letter], row Letter) {
	each(db.letters, nil, func(c *cell[Letter], l *Letter) {
		if l.ID == id {
			found, row = c, *l
		}
	})
	return found, row
}

var handlers = map[string]func(*call) error{
	"page":               func(c *call) error { return readPage(c, emitSmall) },
	"sized_page":         func(c *call) error { return readPage(c, emitSized) },
	"planned_page":       func(c *call) error { return readPlanned(c, emitSmall) },
	"sized_planned_page": func(c *call) error { return readPlanned(c, emitSized) },
	"quiet_page":         readQuiet,
	"transactions":       readTransactions, "places": readPlaces, "cuts": readCuts, "probe": probeLanes,
	"segments": readSegments, "holders": readHolders, "rotate": rotateSegments, "reclaim": reclaim, "expire_written_once": expireWrittenOnce,
	"server": readServer, "incarnation": ensureIncarnation, "heartbeat": heartbeatRelay, "leave": leaveRelay, "claim": claimLane,
	"save": saveLanes, "release": releaseLane, "fence": fenceLane,
	"held": loadHeld, "park": parkEvents, "fix_head": fixHead,
	"close_letters": closeLetters, "due": readDue, "list_due": listDue, "due_of": readHeads, "probe_held": readProbe,
	"name_head": nameHead, "name_waiting": nameWaiting, "next_row": readNext, "dead_letter_events": deadLetterEvents, "name_scheduled": nameScheduled, "dead_letter_scheduled": deadLetterScheduled,
	"hold": holdParked, "resume_held": resumeHeld, "holds": loadHolds, "list_queues": listQueues, "keyless_gone": keylessGone, "unpark": deleteParked, "delay": delayParked,
	"lease": leaseParked, "end_leases": endLeases, "begin_leases": beginLeases, "unflushed": func(*call) error { return nil },
	"dead_letter": deadLetterParked, "resume_queues": resumeQueues, "move_scheduled": moveScheduled, "paused": readPaused,
}

// Statements are the names of all statements that the fake knows.
func Statements() []string { return slices.Sorted(maps.Keys(handlers)) }
