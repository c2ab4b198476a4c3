package relay

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// room is what a lane knows of its events that wait in the table parked, and of what they wait for: which queues have some, which of
// them are in memory, what is held, and when to look again. It knows no clock, context or database, and remembers only what was
// committed; run's goroutine alone has it.
//
// An event of the log enters (leave) when it was refused, when its topic or partition is held, or when something of its key waits
// already (queues). The next flush writes it. From then on it is a row, which is
//
//   - due: its time has come, and nothing is before it. A look reads it and leases it (leases), and it goes out like an event of
//     the log;
//   - in memory: queued, in a call, or stuck, because neither its end nor its next time can be written;
//   - dormant: it waits for the row before it, for a dead letter of its key, or for what is held (holds). Nothing but the end of
//     that makes it due.
//
// Invariants:
//
//   - Where a row of a key waits, later events of the key wait behind it: queues has the key, or its topic as a whole.
//   - What is in memory is leased, but for what is stuck and not published. No command changes what is leased.
//   - What a row waits for, as its columns why and partition say, is in holds.
//   - What is held is tried by one event at a time, unless a person has paused it. The first that is taken ends the hold, or that none
//     which waits for it heads its queue.
type room struct {
	queues        queues                // in which something waits, or may
	wholeAt       time.Time             // when to see whether the topics that wait as a whole still have so many queues
	wholeFrom     queue                 // the first queue that was not looked at then
	heldAt        time.Time             // when it was last read which keys dead letters hold
	holds         map[spot]*hold        // topics that are missing, not permitted or paused, and partitions that are unavailable or slow
	pauses        *pausedTopics         // that holds says
	leases        leases                // parked events that are in memory
	due           dueLooks              // when to look for more of them
	moving        bool                  // scheduled events are due
	moveAt        time.Time             // none is moved before it
	dormant       []dormantRow          // parked events to be held with their topic or partition by the next flush
	dormantQueues []queue               // queues in which no row would ever fall due when they were listed
	stuck         []stuckRow            // parked events that can be neither settled nor made dead letters, in the order of their next tries
	changes       [kindsOfChange]uint64 // how many parked rows were changed so
	flushAt       time.Time             // nothing is parked before it, unless the lane is full
	flushLater    bool                  // something is to be parked then
}

func newRoom(queues int) room {
	return room{
		queues: newQueues(queues),
		holds:  map[spot]*hold{},
		leases: leases{of: map[rowKey]int{}},
	}
}

// at is when something is to be looked for or written, besides the tries of what is held; zero for never.
func (rm *room) at() (at time.Time) {
	sooner := func(t time.Time) { at = soonest(at, t) }
	if len(rm.queues.held) > 0 {
		sooner(rm.heldAt.Add(heldEvery))
	}
	if len(rm.queues.whole) > 0 {
		sooner(rm.wholeAt)
	}
	if len(rm.stuck) > 0 {
		sooner(rm.stuck[0].retryAt)
	}
	sooner(rm.due.at())
	if rm.moving {
		sooner(rm.moveAt)
	}
	if rm.flushLater {
		sooner(rm.flushAt)
	}
	return at
}

// soonest is the earlier of two times, of which zero is never.
func soonest(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// leave makes an event of the log leave with the next flush.
func (rm *room) leave(p *pending, d disposition, err error) {
	if p.event.malformed != "" {
		d = malformed
	}
	if p.state == queued && p.to != nil {
		p.to.release(p)
	}
	if p.state != leaving && d != published {
		rm.queues.enter(p.item.queue)
	}
	p.leave(d, err)
}

// stay undoes leave: the event was acknowledged before it was parked.
func (rm *room) stay(p *pending) {
	if p.disposition != published {
		rm.queues.entered(p.item.queue)
	}
	p.state, p.disposition = settled, published
}

// waiting is what comes before an event that is about to be sent.
func (rm *room) waiting() waiting {
	return waiting{
		queue:     rm.queues.has,
		topic:     func(topic string) bool { return rm.holds[spot{topic, wholeTopic}] != nil },
		partition: func(at spot) bool { return rm.holds[at] != nil },
		whole:     func(topic string) bool { return rm.queues.whole[topic] },
	}
}

// nothingWaits says in one look that every event may be sent.
func (rm *room) nothingWaits() bool {
	return rm.queues.none() && len(rm.holds) == 0
}

// paused says whether a person has paused a topic.
func (rm *room) paused(topic string) bool {
	h := rm.holds[spot{topic, wholeTopic}]
	return h != nil && h.paused
}

// resumeTopic begins to make due what waits for a topic. If it is missing, its first event shows that, and it is held again.
func (rm *room) resumeTopic(topic string) {
	h := rm.holds[spot{topic, wholeTopic}]
	if h == nil {
		return
	}
	h.paused = false
	h.resume(false)
}

// heldTopicNames are the topics whose parked events are not tried. It is never nil: a statement takes no array for null.
func (rm *room) heldTopicNames() []string {
	names := []string{}
	for at, h := range rm.holds {
		if at.partition == wholeTopic && !h.takes {
			names = append(names, at.topic)
		}
	}
	slices.Sort(names)
	return names
}

// heldSpots are what is held, in an order that is always the same.
func (rm *room) heldSpots() []spot {
	if len(rm.holds) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Keys(rm.holds), func(a, b spot) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
}

// dormantRows leaves out what would wait for something that has come back meanwhile: it stays due.
func (rm *room) dormantRows() (columns heldRows) {
	for _, d := range rm.dormant {
		at := d.to.spot
		if d.why == topicHeld {
			at.partition = wholeTopic
		}
		if rm.holds[at] == nil {
			continue
		}
		columns.addRow(d.pending, d.why)
	}
	return columns
}

// dueBehind says whether there may be a row to read at once after one of the queue has left. Of events without a key a look that finds
// none is needed, too: forgetKeyless comes with it.
func (rm *room) dueBehind(q queue) bool {
	if !q.ordered() {
		return rm.due.more || rm.queues.parked[q] && rm.leases.events == 0
	}
	return rm.due.more || !rm.leases.has(rowKey{queue: q}) && rm.queues.mayHaveRows(q)
}

// blames says whether a row is to blame for an error that came for it alone. The exception of somebody's trigger is the row's fault only if
// the same change was made to other rows since the row was first tried: the lane counts its changes of each kind, and since is the
// count at that time.
func (rm *room) blames(err error, change int, since uint64) bool {
	return blameOf(err) == aRow || raised(err) && rm.changes[change] > since
}
