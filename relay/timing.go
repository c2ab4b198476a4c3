package relay

import "time"

// timer fires when something is to be done that no answer, page or poll announces.
func (l *lane) timer() (fires <-chan time.Time, stop func()) {
	at := l.dueAt()
	if at.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(at.Sub(l.r.env.now()))
	return timer.C, func() { timer.Stop() }
}

// dueAt is when timer fires; zero for never.
func (l *lane) dueAt() (at time.Time) {
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	sooner(l.sendAt())
	for at, h := range l.holds {
		if l.mayProbe(at, h) {
			sooner(h.nextAt)
		}
	}
	if l.r.c.ParkAfter >= 0 {
		for _, d := range l.destinations {
			if d.toBlame() && l.holds[d.spot] == nil {
				sooner(d.checkAt)
			}
		}
	}
	for _, d := range l.destinations {
		if d.call != nil && d.slot != nil {
			sooner(d.began.Add(slowAfter)) // its slot is for others then
		}
	}
	if len(l.queues.held) > 0 {
		sooner(l.heldAt.Add(heldEvery))
	}
	if len(l.queues.whole) > 0 {
		sooner(l.wholeAt)
	}
	if len(l.stuck) > 0 {
		sooner(l.stuck[0].retryAt)
	}
	sooner(l.due.at())
	if l.moving {
		sooner(l.moveAt)
	}
	if l.flushLater {
		sooner(l.flushAt)
	}
	return at
}

// sendAt is when dispatch can send something that it could not send before; zero when no time but an answer says so.
func (l *lane) sendAt() time.Time {
	retryAt, waits := l.firstRetry()
	switch {
	case !waits, l.refused: // its turn is announced
		return time.Time{}
	case l.outage != nil && l.calls > 0:
		return time.Time{}
	case l.outage != nil:
		return latest(l.outage.nextAt, retryAt)
	case l.slots(l.r.env.now()) == 0:
		return l.nextSlow()
	}
	return retryAt
}

// firstRetry is the time from which on the first of the destinations that have something to send, and no call, may send
// it; zero for at once. waits is false if there is none.
func (l *lane) firstRetry() (at time.Time, waits bool) {
	for _, d := range l.destinations {
		if len(d.queue) > 0 && d.call == nil && !(l.refusedNoisy && l.isNoisy(d.queue[0])) && (!waits || d.retryAt.Before(at)) {
			at, waits = d.retryAt, true
		}
	}
	return at, waits
}

// slots is how many calls may be started now. Those that take so long that their partition is slow do not count.
func (l *lane) slots(now time.Time) int {
	slots := maxCalls - (l.calls - l.sharing)
	for _, d := range l.destinations {
		if d.call != nil && d.share == nil && now.Sub(d.began) >= slowAfter {
			slots++
		}
	}
	return slots
}

// nextSlow is when the oldest call that counts ceases to.
func (l *lane) nextSlow() (at time.Time) {
	now := l.r.env.now()
	for _, d := range l.destinations {
		if d.call == nil || d.share != nil || now.Sub(d.began) >= slowAfter {
			continue
		}
		if slow := d.began.Add(slowAfter); at.IsZero() || slow.Before(at) {
			at = slow
		}
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// nextMost is how many events the next call of a destination may have, after one that was allowed most, had sent and took took; a most of 0
// is whole, the most of all. A call that ends without an acknowledgement after a while may have been too much at once: its records are in
// Kafka later, and are sent again. So the next one has half as many, and each that is acknowledged is followed by one with a
// quarter more.
func nextMost(most, sent, whole int, took time.Duration, said summary) int {
	switch more := most + most/4 + 1; {
	case !said.trouble.acknowledged() && took >= slowAfter:
		return max(sent/2, 1)
	case !said.trouble.acknowledged():
		return most // It was refused at once: not for its size.
	case most == 0 || more >= whole:
		return 0
	default:
		return more
	}
}
