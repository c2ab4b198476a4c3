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
	sooner := func(t time.Time) { at = soonest(at, t) }
	sooner(l.sendAt(l.r.env.now()))
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
	sooner(l.room.at())
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
