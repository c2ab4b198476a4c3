package relay

import "slices"

// cursor is how far a lane has been read: a pair of snapshots, in Postgres's text form. Everything visible in done has
// been read. The window holds what is visible in upto and not in done, and has been read up to seq pos; without a
// window (upto is empty) pos is 0.
type cursor struct {
	done, upto string
	pos        int64
}

// after returns the cursor after a page of the window that ends at upto. full says that the page was cut off by its
// limit, last is the seq of its last event. A page that is not full ends the window.
func (c cursor) after(upto string, full bool, last int64) cursor {
	if full {
		return cursor{done: c.done, upto: upto, pos: last}
	}
	return cursor{done: upto}
}

// cut is a snapshot that the log holds, corrected, and the seq of its event.
type cut struct {
	upto string
	seq  int64
}

// chooseCut returns the cut that ends the next window of a backlog: the last one within span events of the first, so
// that a window holds several pages of every lane but no page has to sort much more than it returns. A backlog may be cut
// only at snapshots in the log. An invented one ("everything below xid X") is no moment that ever existed, and breaks the
// order of keys.
func chooseCut(cuts []cut, span int64) (cut, bool) {
	if len(cuts) == 0 {
		return cut{}, false
	}
	chosen := cuts[0]
	for _, c := range cuts[1:] {
		if c.seq-cuts[0].seq > span {
			break
		}
		chosen = c
	}
	return chosen, true
}

// plan says where the rest of one large window is, so that a page costs what it returns and not what the window holds: the
// big transactions are each read in seq order by the index, and merged with the next events of all others, whose places are
// listed in advance, many pages at a time. Without the list every page would sort the rest of the window, as often as the
// window has pages.
type plan struct {
	big   []int64 // transaction ids; at most 8, which readTransactions lists
	next  places  // of the events of the others, in seq order; all lie after the cursor
	whole bool    // next goes on to the end of the window
}

// places are where events are in the log: their transaction ids and seqs, in step.
type places struct{ xids, seqs []int64 }

// short says that the list may end before the page does.
func (p plan) short(limit int) bool { return !p.whole && len(p.next.seqs) < limit }

// listed is the plan with a new list, for which want places were asked.
func (p plan) listed(next places, want int) plan {
	p.next, p.whole = next, len(next.seqs) < want
	return p
}

// page is what a page of limit events may need of the list.
func (p plan) page(limit int) places {
	n := min(limit, len(p.next.seqs))
	return places{p.next.xids[:n], p.next.seqs[:n]}
}

// after is the plan after a page whose last event has the seq last.
func (p plan) after(last int64) plan {
	n, found := slices.BinarySearch(p.next.seqs, last)
	if found {
		n++
	}
	p.next = places{p.next.xids[n:], p.next.seqs[n:]}
	return p
}
