package faultproxy

import "sync/atomic"

// Counts says what a proxy did since its start: that a fault was set is no proof that it hit anything.
type Counts struct {
	Connections int64 // accepted
	Open        int64 // of them, now
	Unreachable int64 // connections that were reset because the target could not be reached
	Unanswered  int64 // new connections that a fault left without an answer for a while or for ever
	Held        int64 // bytes that a fault held, for a while or for ever
	Delayed     int64 // bytes that Slow delayed
	Resets      int64 // connections that Reset, PassAnew, ResetAfter or ResetWithin ended
	Truncated   int64 // connections that TruncateUp or TruncateDown closed
	Commits     int64 // COMMITs of Postgres that clients sent
	CutBefore   int64 // of them, those that never arrived
	CutAfter    int64 // of them, those that were carried out and whose answers were lost
	Up, Down    int64 // bytes that were passed on
}

// counters are Counts while they grow.
type counters struct {
	connections, open, unreachable, unanswered, held, delayed atomic.Int64
	resets, truncated, commits, cutBefore, cutAfter           atomic.Int64
	carried                                                   [2]atomic.Int64
}

// Counts may be called at any time, after Close too.
func (p *Proxy) Counts() Counts {
	c := &p.counters
	return Counts{
		Connections: c.connections.Load(),
		Open:        c.open.Load(),
		Unreachable: c.unreachable.Load(),
		Unanswered:  c.unanswered.Load(),
		Held:        c.held.Load(),
		Delayed:     c.delayed.Load(),
		Resets:      c.resets.Load(),
		Truncated:   c.truncated.Load(),
		Commits:     c.commits.Load(),
		CutBefore:   c.cutBefore.Load(),
		CutAfter:    c.cutAfter.Load(),
		Up:          c.carried[up].Load(),
		Down:        c.carried[down].Load(),
	}
}
