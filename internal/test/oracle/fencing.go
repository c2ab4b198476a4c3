package oracle

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/history"
)

// fencing is O6: a process that lost a lane or a partition changes nothing of it, and takes in none of its events.
//
// Triggers write the logs under the lock of the changed row: they have the order in which the changes happened. So each log
// needs one pass that compares a change with the one before, and no search for a linearization. The claims that parts
// report (Claim) are no register's history either. An entry has the time at which a claim was known, not when it was
// requested, so its place among others says nothing. Its epoch does.
func fencing(b *book, found *findings) {
	lanes(b, found)
	taken(b, found, positions(b, found))
	claims(b, found)
	removed(b, found)
}

func lanes(b *book, found *findings) {
	before := map[int]LaneChange{}
	for _, c := range inOrder(b.LaneLog, func(c LaneChange) int64 { return c.N }) {
		p, known := before[c.Lane]
		before[c.Lane] = c
		if !known {
			continue
		}
		moved := c.Done != p.Done || c.Upto != p.Upto || c.Pos != p.Pos
		if c.Epoch < p.Epoch {
			found.add(EpochFell, "change %d of lane %d: from %d to %d, by %s", c.N, c.Lane, p.Epoch, c.Epoch, somebody(c.By))
			continue
		}
		freed := c.Epoch == p.Epoch && c.Owner == "" && p.Owner != "" && !moved // which anybody may do when the lease has run out
		switch {
		case c.Epoch == p.Epoch && c.Owner != p.Owner && c.Owner != "":
			found.add(OwnerChanged, "change %d of lane %d: from %s to %s under epoch %d", c.N, c.Lane, somebody(p.Owner), c.Owner, c.Epoch)
		case c.By != "" && c.By != cmp.Or(c.Owner, p.Owner) && !freed && (c.Owner != "" || p.Owner != "" || moved):
			found.add(ChangedByOther, "change %d of lane %d: %s wrote it, and the owner under epoch %d is %s", c.N, c.Lane, c.By, c.Epoch, somebody(cmp.Or(c.Owner, p.Owner)))
		}
		if c.Early {
			found.add(TakenEarly, "change %d of lane %d: %s took it from %s", c.N, c.Lane, somebody(cmp.Or(c.Owner, c.By)), somebody(p.Owner))
		}
		if was, is := xmax(p.Done), xmax(c.Done); !c.Adopted && (is < was || c.Done == p.Done && leftWindow(p, c)) {
			found.add(CursorFell, "change %d of lane %d under epoch %d: from %s %s %d to %s %s %d, by %s", c.N, c.Lane, c.Epoch, p.Done, p.Upto, p.Pos, c.Done, c.Upto, c.Pos, somebody(c.By))
		}
	}
}

// leftWindow says whether a cursor whose done stays lost its place in the window: it went back in it, or left it before
// its end. A window that has been read to its end becomes done.
func leftWindow(p, c LaneChange) bool {
	return p.Upto != "" && (c.Upto != p.Upto || c.Pos < p.Pos)
}

// partition is a partition of a consumer.
type partition struct {
	consumer, topic string
	number          int
}

func (p partition) String() string {
	return p.consumer + " in partition " + strconv.Itoa(p.number) + " of topic " + p.topic
}

// positions returns for each partition the changes that raised its epoch, in their order.
func positions(b *book, found *findings) map[partition][]PositionChange {
	before, raised := map[partition]PositionChange{}, map[partition][]PositionChange{}
	for _, c := range inOrder(b.PositionLog, func(c PositionChange) int64 { return c.N }) {
		at := partition{c.Consumer, c.Topic, c.Partition}
		p, known := before[at]
		before[at] = c
		if !known || c.Epoch > p.Epoch { // a new owner begins where it finds the group's offset, which a person may have set back
			raised[at] = append(raised[at], c)
			continue
		}
		owner := raised[at][len(raised[at])-1].By // as database and run call it
		switch {
		case c.Epoch < p.Epoch:
			found.add(EpochFell, "change %d of %s: from %d to %d", c.N, at, p.Epoch, c.Epoch)
		case c.Owner != p.Owner:
			found.add(OwnerChanged, "change %d of %s: from %s to %s under epoch %d", c.N, at, somebody(p.Owner), somebody(c.Owner), c.Epoch)
		case c.Position < p.Position:
			found.add(CursorFell, "change %d of %s under epoch %d: from %d to %d", c.N, at, c.Epoch, p.Position, c.Position)
		case c.By != "" && owner != "" && c.By != owner:
			found.add(ChangedByOther, "change %d of %s: %s saved it, and the owner under epoch %d is %s", c.N, at, c.By, c.Epoch, owner)
		}
	}
	return raised
}

// taken compares the events that were taken in with the owners of the partition.
func taken(b *book, found *findings, raised map[partition][]PositionChange) {
	for _, t := range b.TakenLog {
		at := partition{t.Consumer, t.Topic, t.Partition}
		owners := raised[at]
		next := sort.Search(len(owners), func(i int) bool { return owners[i].N > t.N })
		switch {
		case next == 0:
			found.add(TakenByOther, "event %q of %s: %s took it in before anybody had the partition", t.ID, at, somebody(t.By))
		case t.By != "" && owners[next-1].By != "" && t.By != owners[next-1].By:
			found.add(TakenByOther, "event %q of %s: %s took it in, and the owner under epoch %d is %s", t.ID, at, t.By, owners[next-1].Epoch, owners[next-1].By)
		}
	}
}

// claims compares the claims that processes report with each other, and with the database.
func claims(b *book, found *findings) {
	type claim struct {
		lane  int
		epoch int64
	}
	given, since := map[claim]bool{}, map[int]int64{} // the lowest epoch in the log, by lane
	for _, c := range b.LaneLog {
		given[claim{c.Lane, c.Epoch}] = true
		if lowest, known := since[c.Lane]; !known || c.Epoch < lowest {
			since[c.Lane] = c.Epoch
		}
	}
	by := map[claim]Process{}
	for _, e := range b.Entries {
		if e.Op != history.Claim || b.undone(e.At) {
			continue
		}
		c, who := claim{e.Lane, e.Epoch}, Process{e.Actor, e.PID}
		if other, taken := by[c]; taken && other != who {
			found.add(ClaimedTwice, "lane %d under epoch %d: %s and %s", c.lane, c.epoch, other, who)
			continue
		}
		by[c] = who
		if lowest, logged := since[c.lane]; logged && c.epoch >= lowest && !given[c] {
			found.add(ClaimedInVain, "lane %d under epoch %d: %s", c.lane, c.epoch, who)
		}
	}
}

// removed looks for events that a person took out of what is parked while a relay was sending them. That is right only if the relay had
// lost the lane since it began: its lease has run out, or it has given the lane up.
func removed(b *book, found *findings) {
	if len(b.Removed) == 0 || b.Lanes == 0 {
		return
	}
	of := map[string][]Removal{}
	for _, r := range b.Removed {
		of[r.ID] = append(of[r.ID], r)
	}
	changes := map[int][]LaneChange{} // of owners and epochs
	before := map[int]LaneChange{}
	for _, c := range inOrder(b.LaneLog, func(c LaneChange) int64 { return c.N }) {
		if p := before[c.Lane]; p.Owner != c.Owner || p.Epoch != c.Epoch {
			changes[c.Lane] = append(changes[c.Lane], c)
		}
		before[c.Lane] = c
	}
	type call struct {
		by Process
		id string
	}
	begun := map[call]time.Time{}
	for i := range b.Entries {
		e := &b.Entries[i]
		if e.Op != history.Publish && e.Op != history.Acknowledge {
			continue
		}
		for _, id := range e.IDs {
			n, removals := b.event(id), of[id]
			if n == none || len(removals) == 0 {
				continue
			}
			c := call{Process{e.Actor, e.PID}, id}
			if e.Op == history.Publish {
				begun[c] = e.At
				continue
			}
			from, known := begun[c]
			delete(begun, c)
			for _, r := range removals {
				if !known || !r.At.After(from) || !r.At.Before(e.At) || b.undone(r.At) {
					continue
				}
				if !slices.ContainsFunc(changes[lane.Of(b.Written[n].Key, id, b.Lanes)], func(c LaneChange) bool { return c.At.After(from) && !c.At.After(r.At) }) {
					found.add(TakenFromCall, "%s: %s at %s, and %s sent it from %s to %s", b.name(n), r.By, clock(r.At), c.by, clock(from), clock(e.At))
				}
			}
		}
	}
}

// inOrder is a log by the order of its changes.
func inOrder[T any](log []T, n func(T) int64) []T {
	by := func(a, b T) int { return cmp.Compare(n(a), n(b)) }
	if slices.IsSortedFunc(log, by) {
		return log
	}
	log = slices.Clone(log)
	slices.SortStableFunc(log, by)
	return log
}

// xmax is the end of a snapshot: every transaction from there on is outside. 0 when it is no snapshot.
func xmax(snapshot string) uint64 {
	_, rest, _ := strings.Cut(snapshot, ":")
	end, _, _ := strings.Cut(rest, ":")
	n, _ := strconv.ParseUint(end, 10, 64)
	return n
}

// visible says whether a transaction had ended in a snapshot: none had if it is "" or is no snapshot.
func visible(snapshot string, xid uint64) bool {
	start, rest, _ := strings.Cut(snapshot, ":")
	_, running, _ := strings.Cut(rest, ":")
	switch xmin, _ := strconv.ParseUint(start, 10, 64); {
	case xid < xmin:
		return true
	case xid >= xmax(snapshot):
		return false
	}
	return !slices.Contains(strings.Split(running, ","), strconv.FormatUint(xid, 10))
}

func somebody(name string) string {
	if name == "" {
		return "nobody"
	}
	return name
}
