package relay

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

// plan splits the transactions of one large window, so that a page costs what it returns: the big ones are each read in
// seq order by the index and merged with the rest, which is small enough to be sorted for every page.
type plan struct {
	big   []int64 // at most maxBig transactions with more than a page of events
	small []int64
}

// maxBig is how many transactions the statement readPlanned merges.
const maxBig = 8

// planWindow makes the plan from the window's transactions and the number of events in each, counted up to a little
// more than a page.
func planWindow(xids []int64, counts []int64, page int) plan {
	var p plan
	for i, xid := range xids {
		if counts[i] > int64(page) && len(p.big) < maxBig {
			p.big = append(p.big, xid)
		} else {
			p.small = append(p.small, xid)
		}
	}
	return p
}
