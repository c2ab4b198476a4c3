package relay

import (
	"time"

	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// simBug is a fault injected on purpose: in the fake of the database, or around the relay's code.
type simBug struct {
	fake   simdb.Bug
	driver string
}

const (
	bugOvertakes    = "a page does not ask what is parked: a follower overtakes its head"
	bugNoReload     = "a claim does not load what is parked"
	bugSaveAhead    = "the cursor moves before the events are published"
	bugNoDoubt      = "a lane whose COMMIT was not answered saves what it remembers"
	bugSavesInDoubt = "the saver saves a lane whose COMMIT was not answered"
	bugLeaseForever = "the relay never doubts its lease"
	bugUnknownIsAck = "an answer that was lost counts as an acknowledgement"
	bugAheadMoves   = "what overtakes a page moves the cursor past that"
	bugEndsLeases   = "a lease ends while the lane has the event"
	bugForgetsWhole = "a topic that is queued as a whole is forgotten"
	bugMeetsEarly   = "a page counts as handed out while it waits: what overtakes it may follow it"
)

// simBugs are all of them, with the number of schedules within which the simulation must find each. Some need what only
// some schedules have: with gives it to all.
var simBugs = []struct {
	simBug
	within int
	with   func(p *simPlan)
}{
	{simBug{fake: simdb.BugMaxSeq}, 200, nil},
	{simBug{fake: simdb.BugXminHorizon}, 200, nil},
	{simBug{fake: simdb.BugEmptyXip}, 200, nil},
	{simBug{fake: simdb.BugForgetsInFlight}, 200, nil},
	{simBug{fake: simdb.BugInventedCut}, 600, func(p *simPlan) { p.long, p.cutEvery, p.batch = true, 2, 2 }},
	{simBug{fake: simdb.BugUncorrectedCut}, 1000, func(p *simPlan) { p.cutEvery, p.batch = 2, 2 }},
	{simBug{fake: simdb.BugSaveWithoutFence}, 200, nil},
	{simBug{fake: simdb.BugLateSave}, 600, func(p *simPlan) { p.cuts = true }},
	{simBug{fake: simdb.BugParkWithoutEpoch}, 200, nil},
	{simBug{fake: simdb.BugClaimKeepsEpoch}, 200, nil},
	{simBug{fake: simdb.BugNoIncarnation}, 1000, func(p *simPlan) { p.crashes = true }},
	{simBug{fake: simdb.BugIgnoresStarts}, 1000, func(p *simPlan) { p.crashes, p.survives = true, true }},
	{simBug{fake: simdb.BugReclaimWithoutLock}, 3000, func(p *simPlan) { p.rotates, p.writers, p.events = true, 4, 100 }},
	{simBug{fake: simdb.BugReclaimForgetsLong}, 200, nil},
	{simBug{fake: simdb.BugNoLeaseAhead}, 200, func(p *simPlan) { p.clocks = true }},
	{simBug{fake: simdb.BugNoWake}, 200, func(p *simPlan) { p.refusals, p.keys, p.batch = true, 1, 6 }},
	{simBug{fake: simdb.BugReplayAtEnd}, 600, func(p *simPlan) { p.refusals, p.hold, p.attempts = true, true, 1 }},
	{simBug{fake: simdb.BugUnparkFollowers}, 400, func(p *simPlan) { p.refusals, p.attempts = true, 3 }},
	{simBug{fake: simdb.BugDeadLetterNoLetter}, 200, func(p *simPlan) { p.bad = true }},
	{simBug{fake: simdb.BugDeadLetterNoHold}, 400, func(p *simPlan) { p.bad, p.hold = true, true }},
	{simBug{fake: simdb.BugDeadLetterScheduled}, 400, func(p *simPlan) { p.bad, p.scheduled, p.events = true, true, 100 }},
	{simBug{fake: simdb.BugDueBehind}, 400, func(p *simPlan) { p.refusals, p.attempts = true, 3 }},
	{simBug{fake: simdb.BugEmptied}, 400, func(p *simPlan) { p.refusals, p.attempts = true, 3 }},
	{simBug{fake: simdb.BugIgnoresLeases}, 400, func(p *simPlan) {
		p.person, p.refusals, p.attempts, p.cuts, p.freezes, p.crashes, p.clocks = true, true, 3, false, false, false, false
	}},
	{simBug{fake: simdb.BugUnlockedCommand}, 1000, func(p *simPlan) { p.person, p.refusals, p.attempts, p.keys = true, true, 3, 1 }},
	{simBug{fake: simdb.BugNamesTheNext}, 200, func(p *simPlan) { p.bad = true }},
	{simBug{fake: simdb.BugNoLease}, 600, func(p *simPlan) {
		p.person, p.refusals, p.attempts, p.cuts, p.freezes, p.crashes, p.clocks = true, true, 3, false, false, false, false
	}},
	{simBug{fake: simdb.BugReplayWakesAll}, 600, func(p *simPlan) { p.refusals, p.hold, p.attempts = true, true, 1 }},
	{simBug{fake: simdb.BugResumesFollowers}, 600, func(p *simPlan) { p.pauses, p.refusals, p.keys = true, true, 2 }},
	{simBug{fake: simdb.BugResumesHeld}, 600, func(p *simPlan) { p.refusals, p.hold, p.attempts = true, true, 1 }},
	{simBug{fake: simdb.BugReplayStaysOpen}, 200, func(p *simPlan) { p.refusals, p.hold, p.attempts = true, true, 1 }},
	{simBug{fake: simdb.BugDiscardNoWake}, 400, func(p *simPlan) { p.person, p.refusals, p.attempts = true, true, 3 }},
	{simBug{driver: bugEndsLeases}, 600, func(p *simPlan) {
		p.person, p.refusals, p.attempts, p.cuts, p.freezes, p.crashes, p.clocks = true, true, 3, false, false, false, false
	}},
	{simBug{driver: bugForgetsWhole}, 400, func(p *simPlan) { p.bounds.queues, p.refusals, p.attempts = 1, true, 3 }},
	{simBug{driver: bugOvertakes}, 200, nil},
	{simBug{driver: bugNoReload}, 200, nil},
	{simBug{driver: bugSaveAhead}, 200, nil},
	{simBug{driver: bugNoDoubt}, 600, func(p *simPlan) { p.cuts, p.refusals, p.keys, p.batch = true, true, 1, 4 }},
	{simBug{driver: bugNoDoubt}, 1000, func(p *simPlan) { p.slow, p.cuts, p.refusals, p.keys, p.batch = true, false, true, 1, 4 }}, // its answer comes too late
	{simBug{driver: bugSavesInDoubt}, 1000, func(p *simPlan) { p.cuts, p.refusals, p.keys, p.batch = true, true, 1, 4 }},
	{simBug{driver: bugLeaseForever}, 200, nil},
	{simBug{driver: bugUnknownIsAck}, 200, nil},
	{simBug{driver: bugAheadMoves}, 1000, func(p *simPlan) { p.tenants, p.events, p.refusals = true, 100, true }},
	{simBug{driver: bugMeetsEarly}, 1000, func(p *simPlan) { p.tenants, p.events = true, 100 }},
}

func (b simBug) String() string { return string(b.fake) + b.driver }

// inject keeps a bug alive that sits in the lanes' memory.
func (sr *simRelay) inject() {
	for _, l := range sr.r.lanes {
		switch sr.s.plan.bug.driver {
		case bugLeaseForever:
			l.leaseUntil = sr.s.at.Add(24 * time.Hour)
		case bugSavesInDoubt:
			l.doubtful.Store(false)
		case bugEndsLeases:
			for key := range l.leases.of {
				l.leases.endOf(key)
			}
		case bugForgetsWhole:
			clear(l.queues.whole)
		}
	}
}
