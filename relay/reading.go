package relay

import "time"

// This file is the state machine by which a lane's log is read. It knows no clock, context or database: log.go asks the
// log what a state needs, and applies what this file makes of the answer.
//
//	               nothing read for longer than backlogAfter
//	           ┌────────────────────────────────────────────────┐
//	           │                                                ▼
//	     ┌─────┴────┐   no cut, page not full: it is the    ┌────────┐
//	┌───►│   live   │◄──────────────────────────────────────┤lagging │◄──────┐
//	│    └──┬────┬──┘   last one                            └───┬────┘       │
//	└───────┘    │                                              │            │
//	page not     │ page full: a window                          │ cut, or    │
//	full: it is  │ to a cut, or to now                          │ page full  │
//	the last one │                                              ▼            │ page not full:
//	             │                                         ┌──────────┐      │ the window ends
//	             └────────────────────────────────────────►│ inWindow ├─────►│
//	                                                       └────┬─────┘      │
//	                                                            │ pagesUnplanned full pages
//	                                                            ▼            │
//	                                                       ┌─────────┐       │
//	                                                       │ planned ├───────┘
//	                                                       └─────────┘
//
// A page that is full, by its events or by its bytes, leaves inWindow and planned as they are; in the drawing these edges are
// left out.

// readState says how the next page is read.
type readState uint8

const (
	lagging  readState = iota // no window is open, and much may be unread: end the next one at a cut
	live                      // no window is open: the next one ends now
	inWindow                  // a window is open: read it by its snapshots
	planned                   // a window is open that turned out large: read it by a list of its events
)

// String makes states readable in tests.
func (s readState) String() string { return [...]string{"lagging", "live", "in window", "planned"}[s] }

const (
	pagesUnplanned = 4           // full pages after which a window is planned
	backlogAfter   = time.Second // without a read, a backlog may have grown
)

// reading is how far a lane's log has been read, and how it goes on. The zero value is not valid: see startReading.
type reading struct {
	state  readState
	cursor cursor // Invariant: cursor.upto is empty in lagging and live, and is not in inWindow and planned
	pages  int    // full pages read of the window; Invariant: 0 unless state is inWindow
	plan   plan   // Invariant: empty unless state is planned
}

// startReading begins at a saved cursor. It may be old, so much may be unread.
func startReading(c cursor) reading {
	if c.upto != "" {
		return reading{state: inWindow, cursor: c}
	}
	return reading{state: lagging, cursor: c}
}

// resume is the reading after a pause in which a backlog may have grown.
func (r reading) resume(pause time.Duration) reading {
	if r.state == live && pause > backlogAfter {
		r.state = lagging
	}
	return r
}

// toCut opens a window that ends at a cut.
func (r reading) toCut(c cut) reading {
	r.state, r.cursor.upto = inWindow, c.upto
	return r
}

// exceeds says whether a window that ends now holds more than the page that was read of it. Nothing of it has been
// published yet, so it may still end earlier, at a cut: then no page has to sort the whole backlog.
func (r reading) exceeds(full bool) bool { return r.state == live && full }

// opens says whether the next page opens a window that ends now. When that page is not full, it is the last one.
func (r reading) opens() bool { return r.cursor.upto == "" }

// after is the reading after a page of the window that ends at upto. full says that the page was cut off by its limit, of
// events or of bytes, last is the seq of its last event.
func (r reading) after(upto string, full bool, last int64) reading {
	next := reading{cursor: r.cursor.after(upto, full, last)}
	switch {
	case full && r.state == planned:
		next.state, next.plan = planned, r.plan.after(last)
	case full:
		next.state, next.pages = inWindow, r.pages+1
	case r.opens():
		next.state = live // a window that ended now fitted in a page
	default:
		next.state = lagging // the end of a window says nothing about what comes after it
	}
	return next
}

// wantsPlan says whether a window has turned out so large that its transactions should be looked at.
func (r reading) wantsPlan() bool { return r.state == inWindow && r.pages >= pagesUnplanned }

// byPlan continues when the big transactions of a window are known, or what comes next is listed.
func (r reading) byPlan(p plan) reading {
	r.state, r.pages, r.plan = planned, 0, p
	return r
}

// wantsList says whether a planned page needs more of the list than there is.
func (r reading) wantsList(limit int) bool { return r.state == planned && r.plan.short(limit) }
