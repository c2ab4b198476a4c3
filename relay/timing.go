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
	if l.outage != nil && l.calls == 0 && l.anyQueued() {
		sooner(l.outage.nextAt)
	}
	for _, h := range l.topics {
		if !h.probing {
			sooner(h.nextAt)
		}
	}
	for at, h := range l.partitions {
		if d := l.bySpot[at]; !h.probing && (d == nil || d.idle()) {
			sooner(h.nextAt)
		}
	}
	for _, d := range l.destinations {
		if len(d.queue) > 0 && d.call == nil && l.outage == nil {
			sooner(d.retryAt)
		}
		if !d.since.IsZero() && l.partitions[d.spot] == nil && l.r.c.ParkAfter >= 0 {
			sooner(d.checkAt)
		}
	}
	if len(l.held) > 0 {
		sooner(l.heldAt.Add(heldEvery))
	}
	if len(l.whole) > 0 {
		sooner(l.recountAt)
	}
	if l.flushLater {
		sooner(l.flushAt)
	}
	return at
}
