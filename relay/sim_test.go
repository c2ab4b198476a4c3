package relay

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

var (
	simFor   = flag.Duration("sim.for", 0, "how long the simulation runs schedules; 0 is a fixed number of them")
	simTrace = flag.Bool("sim.trace", false, "print every step")
	simSeed  = flag.Uint64("sim.seed", 0, "the one schedule to run")
)

func TestSim_TheLaneProtocolKeepsItsPromisesInEverySchedule(t *testing.T) {
	if *simSeed != 0 {
		if v, steps := runPlan(newPlan(*simSeed, simBug{})); v != nil {
			t.Errorf("seed %d, %d steps: %v\n%+v", *simSeed, steps, v, newPlan(*simSeed, simBug{}))
		}
		return
	}
	const schedulesWithoutFor = 300
	seed := seed.New(t)
	began := time.Now()
	steps, schedules := 0, 0
	more := func() bool {
		if *simFor > 0 {
			return time.Since(began) < *simFor
		}
		return schedules < schedulesWithoutFor
	}
	for ; more(); schedules++ {
		v, n := runPlan(newPlan(seed, simBug{}))
		if v != nil {
			t.Fatalf("seed %d: %v\n%+v\nto repeat it: go test ./relay -run TestSim_TheLaneProtocol -sim.seed %d", seed, v, newPlan(seed, simBug{}), seed)
		}
		steps += n
		seed++
	}
	t.Logf("%d schedules, %d steps in %v, %.1f million a minute; last seed %d", schedules, steps, time.Since(began).Round(time.Millisecond), float64(steps)/time.Since(began).Minutes()/1e6, seed-1)
}

// What a seed draws depends on all that has happened: were anything left to the machine's clock or to the order of a map, the
// numbers that come next would differ.
func TestSim_ASeedMakesTheSameHistoryAgain(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	shared, overtaken, discards := 0, 0, 0
	history := func(seed uint64) string {
		found, s := runSim(newPlan(seed, simBug{}))
		shared += s.shared
		overtaken += s.overtaken
		discards += s.discards
		return fmt.Sprint(found, s.steps, s.at, s.events, s.rng.Uint64())
	}
	for seed := range uint64(200) {
		if first, again := history(seed+1), history(seed+1); first != again {
			t.Fatalf("seed %d: %s, and again: %s", seed+1, first, again)
		}
	}
	if shared < 1000 {
		t.Errorf("partitions shared %d calls in all these schedules", shared)
	}
	if discards < 200 {
		t.Errorf("a person discarded %d parked events in all these schedules", discards)
	}
	if overtaken < 300 {
		t.Errorf("%d events overtook others in all these schedules", overtaken)
	}
}

// A relay is killed at each of its statements in turn: before that is carried out, and before its answer comes. Those that only look are left out.
func TestSim_AKillBetweenAnyTwoStatementsKeepsThePromises(t *testing.T) {
	t.Parallel()
	looks := map[string]bool{"server": true, "heartbeat": true, "probe": true, "segments": true, "holders": true, "cuts": true, "page": true}
	schedules, kills := uint64(24), map[string]int{}
	if testing.Short() {
		schedules = 1
	}
	for seed := range schedules {
		p := simPlan{seed: seed + 1, steps: 900, lanes: 1, relays: 1 + int(seed%2), writers: 2, events: 40, keys: 2, batch: 3, attempts: 1 + int(seed%3), hold: seed%4 != 3,
			parkAfter: 30 * time.Millisecond, lease: 300 * time.Millisecond, cutEvery: 2, bounds: usualBounds, calls: callsInAll, wide: wideFrom,
			refusals: true, pauses: true, person: true, scheduled: true, rotates: true, bad: seed%2 > 0}
		run := func(p simPlan) *sim {
			v, s := runSim(p)
			if v != nil {
				t.Fatalf("seed %d, killed at statement %d (carried out: %v): %v\n%+v", p.seed, p.killAt, p.arrives, v, p)
			}
			return s
		}
		s := run(p)
		for n, name := range s.statements[:s.sent] {
			for _, p.arrives = range []bool{false, true} {
				if p.killAt = n + 1; !looks[name] {
					run(p)
					kills[name]++
				}
			}
		}
	}
	t.Log(kills)
	for _, statement := range []string{"begin", "fence", "save", "park", "lease", "end_leases", "due", "unpark", "delay", "hold", "resume_queues", "resume_held", "probe_held", "dead_letter", "dead_letter_events", "fix_head", "close_letters", "commit"} {
		if kills[statement] == 0 && !testing.Short() {
			t.Errorf("no relay was killed at %s", statement)
		}
	}
}

// The seeds are fixed: whether a bug is found must not depend on the day. A change of the simulation moves them. The schedule
// that finds it is run without it too: what is red then was not the bug.
func TestSim_TheSimulationFindsEveryInjectedBug(t *testing.T) {
	t.Parallel()
	for _, b := range simBugs {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			steps := 0
			for seed := range b.within {
				plan := newPlan(uint64(seed)+1, b.simBug)
				if b.with != nil {
					b.with(&plan)
				}
				v, n := runPlan(plan)
				steps += n
				if v != nil {
					t.Logf("found in schedule %d, %d steps: %v", seed+1, steps, v)
					plan.bug = simBug{}
					if v, _ := runPlan(plan); v != nil {
						t.Errorf("without the bug that schedule is red as well: %v", v)
					}
					return
				}
			}
			t.Errorf("not found in %d schedules, %d steps", b.within, steps)
		})
	}
}
