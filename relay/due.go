package relay

import "time"

// dueRest is how long a lane that found nothing but what it has in memory does not ask again for the poller's sake.
const dueRest = 100 * time.Millisecond

// dueLooks decides when a lane looks for parked events that are due. A row is due until the answer for it is written, so each
// look of the poller sees the rows that the lane is trying. Where a partition answers late that would be all there is to see.
type dueLooks struct {
	asked     bool      // somebody has seen rows that are due
	surely    bool      // they are not in memory
	more      bool      // the last look found rows, or there was no room for it: there may be more
	restUntil time.Time // no look before it, unless surely
}

// hear notes what the poller or the lane itself has seen.
func (d *dueLooks) hear(due uint32) {
	d.asked = d.asked || due&(parkedDue|queueDue) != 0
	d.surely = d.surely || due&queueDue != 0
}

// take says whether to look now, and takes what was heard if so.
func (d *dueLooks) take(now time.Time) bool {
	if !d.asked || !d.surely && now.Before(d.restUntil) {
		return false
	}
	d.asked, d.surely = false, false
	return true
}

// at is when take says yes because time has passed; zero for never.
func (d *dueLooks) at() time.Time {
	if !d.asked {
		return time.Time{}
	}
	return d.restUntil
}

// looked notes what a look has found, beside so many parked events in memory before it. There is no rest after one that
// begins with none in memory.
func (d *dueLooks) looked(rows, tries int, now time.Time) {
	d.more, d.restUntil = rows > 0, time.Time{}
	if rows == 0 && tries > 0 {
		d.restUntil = now.Add(dueRest)
	}
}

// full notes that there was no room for a look.
func (d *dueLooks) full() { d.more = true }
