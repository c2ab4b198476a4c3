package relay

import (
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// simOracle watches a schedule. It knows every event that was written, in the order that the locks of the writers gave.
type simOracle struct {
	s      *sim
	events map[string]*simEvent
	keys   map[queue][]*simEvent // of ordered keys, committed, in their order
	calmAt time.Time
	owned  []time.Time // when each lane was last seen with an owner that lives
	clocks bool        // the database's clock was set: leases may end early

	lost       int // lanes
	pending    int // committed, and not arrived or discarded
	duplicates int
	handedOver bool // a lane was, to another relay or a later life
}

// simEvent is what is known of one event.
type simEvent struct {
	id                        string
	queue                     queue
	index                     int // among those of its key
	ordered                   bool
	committed                 bool
	arrived                   int
	deadLettered, isDiscarded bool
	covered                   bool // a saved cursor is past some row of it
	never                     bool // may it arrive: a person has discarded it while it waited
}

func newOracle(s *sim) *simOracle {
	o := &simOracle{s: s, events: map[string]*simEvent{}, keys: map[queue][]*simEvent{}}
	s.db.Watch = simdb.Watch{Saved: o.saved, Wrote: o.wrote, Committed: o.committed, Truncated: o.truncated,
		DeadLettered: func(id, _, _ string, _ int64) { o.events[id].deadLettered = true }}
	return o
}

// wrote: no write by a lower epoch.
func (o *simOracle) wrote(lane int, by, current int64) {
	if by != current {
		o.s.fail("fencing", "lane %d was written by epoch %d in epoch %d", lane, by, current)
	}
}

func (o *simOracle) written(id string, q queue, ordered bool) *simEvent {
	t := &simEvent{id: id, queue: q, ordered: ordered}
	o.events[id] = t
	return t
}

// commit records an event that was committed, after all others of its key.
func (o *simOracle) commit(t *simEvent) {
	o.s.log("%s of %q is committed", t.id, t.queue.key)
	t.committed = true
	o.pending++
	if t.ordered {
		t.index = len(o.keys[t.queue])
		o.keys[t.queue] = append(o.keys[t.queue], t)
	}
}

func (o *simOracle) committed(tx *simdb.Tx) {
	for _, e := range tx.Events {
		if t := o.events[e.ID]; !t.committed { // else a replay, or one that was scheduled
			o.commit(t)
		}
	}
}

func (o *simOracle) discarded(id string) {
	t := o.events[id]
	if t.arrived == 0 && !t.isDiscarded {
		o.pending--
	}
	t.isDiscarded = true
}

// discardedParked: what a person has discarded, which had not arrived, never arrives. Else a call that nobody waits for any more may have it: of a
// relay that lost its lane, also to this person (frees). And what overtook a backlog, and was parked, is read from the log again by the lane's next owner.
func (o *simOracle) discardedParked(id string, frees bool) {
	p := o.s.plan
	o.events[id].never = o.events[id].arrived == 0 && !frees && !p.cuts && !p.freezes && !p.crashes && !p.clocks && !p.slow && !p.bad && !p.tenants
	o.discarded(id)
}

// arrived: an event is in Kafka. It must have been committed, and be the next of its key.
func (o *simOracle) arrived(e holdfast.Event) {
	t := o.events[e.ID]
	o.s.log("%s of %q arrives", e.ID, e.Key)
	if t == nil || !t.committed {
		o.s.fail("no ghost", "%s arrived, and was never committed", e.ID)
	}
	if t.never {
		o.s.fail("discarded", "%s arrived, and a person had discarded it before", e.ID)
	}
	if t.arrived++; t.arrived > 1 {
		o.duplicates++
		if o.s.plan.calm() && o.lost == 0 && !(o.s.plan.tenants && o.handedOver) { // what overtook a backlog is repeated by a lane's next owner
			o.s.fail("duplicates", "%s arrived twice, though nothing failed", e.ID)
		}
		return
	}
	if !t.isDiscarded {
		o.pending--
	}
	if !t.ordered || t.deadLettered && o.s.bad[t.id] != "" { // it was given up before those that it followed
		return
	}
	for _, before := range o.keys[t.queue][:t.index] {
		if before.arrived == 0 && !before.isDiscarded && !(before.deadLettered && !o.s.plan.hold) {
			o.s.fail("order", "%s of key %q arrived before %s", t.id, t.queue.key, before.id)
		}
	}
}

func (o *simOracle) arriveAll(events []holdfast.Event) {
	for _, e := range events {
		o.arrived(e)
	}
}

// publishing: what a saved cursor covers is published again only by who was just sending it when the cursor was saved.
func (o *simOracle) publishing(events []holdfast.Event) {
	if o.clocks {
		return
	}
	for _, e := range events {
		t := o.events[e.ID]
		if t != nil && t.covered && !t.deadLettered && t.arrived > 0 && !o.s.db.ParkedRow(e.ID) {
			o.s.fail("duplicates", "%s is published again, though a saved cursor covers it", e.ID)
		}
	}
}

// saved: what a cursor covers has arrived, is parked, or is a letter; and no cursor goes back.
func (o *simOracle) saved(lane int, before, after simdb.Lane) {
	if after.Epoch < before.Epoch {
		o.s.fail("fencing", "lane %d goes from epoch %d to %d", lane, before.Epoch, after.Epoch)
	}
	if after.Published < before.Published {
		o.s.fail("published", "lane %d had published %d events, and now %d", lane, before.Published, after.Published)
	}
	o.handedOver = o.handedOver || after.Epoch > 1
	if before.Done == after.Done && before.Upto == after.Upto && before.Pos == after.Pos {
		return
	}
	o.s.log("lane %d: %+v", lane, after)
	db := o.s.db
	done := db.Parse(after.Done)
	var upto *simdb.Snapshot
	if after.Upto != "" {
		upto = db.Parse(after.Upto)
	}
	covers := func(e *simdb.Event) bool {
		return done.Sees(e.Xid) || upto != nil && upto.Sees(e.Xid) && e.Seq <= after.Pos
	}
	db.Events(func(e *simdb.Event) {
		if e.Lane != lane {
			return
		}
		now := covers(e)
		switch {
		case e.Covered && !now:
			o.s.fail("cursor truth", "lane %d goes back before %s: %+v after %+v", lane, e.ID, after, before)
		case now && !e.Covered:
			e.Covered = true
			t := o.events[e.ID]
			t.covered = true
			if t.arrived == 0 && !t.deadLettered && !db.ParkedRow(e.ID) {
				o.s.fail("cursor truth", "lane %d covers %s (xid %d, seq %d), which is nowhere: %+v", lane, e.ID, e.Xid, e.Seq, after)
			}
		}
	})
	db.Uncommitted(func(e *simdb.Event) {
		if e.Lane == lane && covers(e) {
			o.s.fail("cursor truth", "lane %d covers %s, which is not committed: %+v", lane, e.ID, after)
		}
	})
}

// truncated: reclaim takes only what is covered.
func (o *simOracle) truncated(segment int, events []*simdb.Event) {
	for _, e := range events {
		if !e.Covered {
			o.s.fail("reclaim", "segment %d was emptied with %s, which is unread", segment, e.ID)
		}
	}
}

// complete says that all is where it belongs.
func (o *simOracle) complete() bool {
	if o.pending > 0 || o.s.busy > 0 || o.s.db.Scheduled() > 0 || len(o.s.db.Parked()) > 0 {
		return false
	}
	for _, l := range o.s.db.Letters() {
		if l.State == "open" || l.State == "replaying" {
			return false
		}
	}
	return true
}

// owners: in calm every lane is soon a living relay's, whatever the clocks said before.
func (o *simOracle) owners() {
	if o.s.steps%32 != 0 {
		return
	}
	for n := range o.s.db.Lanes() {
		if n == len(o.owned) {
			o.owned = append(o.owned, o.calmAt)
		}
		row := o.s.db.Lane(n)
		for _, r := range o.s.relays {
			if !r.gone && r.r.c.Name == row.Owner {
				o.owned[n] = o.s.at
			}
		}
		if o.s.at.Sub(o.owned[n]) > 5*time.Second+4*o.s.plan.lease {
			o.s.fail("liveness", "lane %d has had no owner for %v of calm: %+v", n, o.s.at.Sub(o.owned[n]), row)
		}
	}
}

func (o *simOracle) check() {
	if o.complete() {
		return
	}
	for _, t := range o.events {
		if t.committed && t.arrived == 0 && !t.isDiscarded && !t.deadLettered && !o.s.db.ParkedRow(t.id) {
			o.s.fail("no loss", "%s was committed and never arrived", t.id)
		}
	}
	o.s.fail("liveness", "after %v of calm: %d events pending, %d writers, parked %+v, letters %+v", o.s.at.Sub(o.calmAt), o.pending, o.s.busy, o.s.db.Parked(), o.s.db.Letters())
}
