package relay

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// The simulation runs the relay's own code (claims, reader, lanes, parking, saver, poller, segments) on simdb, an in-memory
// fake of the database, and on a scripted broker. Every statement, request and wait hands over to a scheduler, which picks
// by a seed who goes on: one goroutine runs at a time, and a seed always makes the same history. Writers, crashes, frozen
// relays, lost answers and clocks that jump come from the same seed; the oracles of sim_oracle_test.go watch.

// sim is one schedule.
type sim struct {
	plan   simPlan
	rng    *rand.Rand
	at     time.Time     // the machines' clock, which only goes forward
	skew   time.Duration // of the database's clock against it
	db     *simdb.DB
	broker *simBroker
	oracle *simOracle
	relays []*simRelay
	// orphaned are the names of relays that have ended.
	orphaned []string
	tasks    []*task
	ready    []*task // of one step; kept for its room
	current  *task
	steps    int
	chaos    bool // faults happen
	named    int  // relays so far
	events   int  // ids so far
	busy     int  // writers in a transaction
	shared   int  // calls of many partitions
	ending   bool

	bad    map[string]string // events whose rows fail, and for which statements
	badRng *rand.Rand

	paused   pausedTopics
	pauseRng *rand.Rand

	tenantRng *rand.Rand
	overtaken int // events that were read ahead

	personRng *rand.Rand
	discards  int // of parked events

	statements []string // that relays have sent
	sent       int      // before the calm
	doomed     *task    // has sent the one with which its relay is killed
}

// simPlan is what a seed decides of a schedule before it begins.
type simPlan struct {
	seed  uint64
	bug   simBug
	steps int // of the part with faults

	lanes, relays, writers, events, keys, batch int
	attempts                                    int
	hold                                        bool // HoldKey
	parkAfter                                   time.Duration
	lease                                       time.Duration
	cutEvery                                    int
	bounds                                      bounds
	emptied                                     bool // lanes remember queues that have no rows, too
	calls                                       int  // of the publisher at a time
	wide                                        int  // partitions from which on their calls are shared

	cuts, refusals, kills, freezes, crashes, clocks, rotates, long, scheduled, repeatable, survives bool
	slow                                                                                            bool // statements may hang, and have time-outs
	bad                                                                                             bool // there are rows for which statements fail
	pauses                                                                                          bool // topics are paused and resumed
	tenants                                                                                         bool // are told apart, and one writes most
	person                                                                                          bool // discards what waits

	killAt  int  // the number of the statement with which a relay is killed; 0 for none
	arrives bool // that statement is carried out
}

// calm says that nothing ever fails: then nothing may be published twice.
func (p simPlan) calm() bool {
	return !p.slow && !p.bad && !p.cuts && !p.refusals && !p.kills && !p.freezes && !p.crashes && !p.clocks
}

func newPlan(seed uint64, bug simBug) simPlan {
	rng := rand.New(rand.NewPCG(seed, 1))
	often := func() bool { return rng.IntN(2) == 0 }
	p := simPlan{seed: seed, bug: bug, steps: 300 + rng.IntN(900), lanes: 1 + rng.IntN(3), relays: 1 + rng.IntN(3),
		writers: 1 + rng.IntN(4), events: 10 + rng.IntN(40), keys: 1 + rng.IntN(4), batch: 1 + rng.IntN(6),
		attempts: []int{-1, 1, 2, 3}[rng.IntN(4)], hold: often(),
		parkAfter: []time.Duration{-1, 30 * time.Millisecond, time.Second}[rng.IntN(3)], lease: time.Duration(200+rng.IntN(500)) * time.Millisecond,
		cutEvery: []int{0, 2, 4}[rng.IntN(3)], bounds: usualBounds}
	p.bounds.pageBytes = []int64{1, 60, 1 << 20}[rng.IntN(3)]
	for _, on := range []*bool{&p.cuts, &p.refusals, &p.kills, &p.freezes, &p.crashes, &p.clocks, &p.rotates, &p.long, &p.scheduled, &p.repeatable, &p.survives} {
		*on = often()
	}
	if rng.IntN(12) == 0 {
		p.cuts, p.refusals, p.kills, p.freezes, p.crashes, p.clocks = false, false, false, false, false, false
	}
	// Drawn apart, and not for injected bugs, so that their schedules stay as they are.
	p.slow = bug == simBug{} && !p.calm() && rand.New(rand.NewPCG(seed, 3)).IntN(2) == 0
	p.bad = bug == simBug{} && rand.New(rand.NewPCG(seed, 4)).IntN(2) == 0
	lists := rand.New(rand.NewPCG(seed, 5))
	p.bounds.listed, p.emptied = []int{1, 5, usualBounds.listed}[lists.IntN(3)], bug == simBug{} && lists.IntN(3) == 0
	if p.calls = callsInAll; bug == (simBug{}) {
		p.calls = []int{1, 2, callsInAll}[rand.New(rand.NewPCG(seed, 6)).IntN(3)]
	}
	if p.wide = wideFrom; bug == (simBug{}) {
		p.wide = []int{0, 1, wideFrom}[rand.New(rand.NewPCG(seed, 7)).IntN(3)]
	}
	if bug == (simBug{}) {
		sizes := rand.New(rand.NewPCG(seed, 14))
		for _, n := range []*int{&p.bounds.queues, &p.bounds.places, &p.bounds.parks, &p.bounds.resumes, &p.bounds.moves, &p.bounds.drainQueues} {
			*n = []int{1, 2, *n}[sizes.IntN(3)]
		}
		p.bounds.parkBytes = []int{1, 60, p.bounds.parkBytes}[sizes.IntN(3)]
		p.bounds.moveBytes = []int64{1, 60, p.bounds.moveBytes}[sizes.IntN(3)]
		p.bounds.drainEvents = []int{4, p.bounds.drainEvents}[sizes.IntN(2)]
	}
	p.tenants = bug == simBug{} && rand.New(rand.NewPCG(seed, 10)).IntN(3) == 0
	p.person = bug == simBug{} && rand.New(rand.NewPCG(seed, 12)).IntN(3) == 0
	p.pauses = bug == simBug{} && rand.New(rand.NewPCG(seed, 8)).IntN(2) == 0
	return p
}

// violation is what an oracle says.
type violation struct{ rule, text string }

func (v violation) String() string { return v.rule + ": " + v.text }

// runPlan runs one schedule and returns what was violated, nil for nothing, and the steps it took.
func runPlan(p simPlan) (found *violation, steps int) {
	found, s := runSim(p)
	return found, s.steps
}

// runSim is runPlan, and the simulation as it was left.
func runSim(p simPlan) (found *violation, s *sim) {
	s = &sim{plan: p, rng: rand.New(rand.NewPCG(p.seed, 2)), at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), chaos: true,
		bad: map[string]string{}, badRng: rand.New(rand.NewPCG(p.seed, 5)), paused: pausedTopics{}, pauseRng: rand.New(rand.NewPCG(p.seed, 9)), tenantRng: rand.New(rand.NewPCG(p.seed, 11)), personRng: rand.New(rand.NewPCG(p.seed, 13))}
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			found = &v
		case simdb.Violated:
			found = &violation{"schema", string(v)}
		default:
			panic(fmt.Sprintf("seed %d, step %d: %v", p.seed, s.steps, v))
		}
		s.ending = true
		for _, t := range s.tasks {
			t.kill()
		}
	}()
	s.db = simdb.New(p.lanes, func() time.Time { return s.at.Add(s.skew) }, s.rng)
	s.db.Up = func() time.Time { return s.at }
	s.db.Bug, s.db.CutEvery, s.db.Survives, s.db.IdleTimeout = p.bug.fake, p.cutEvery, p.survives, 2*time.Second
	if p.bad {
		s.db.Refuse, s.db.Malformed = s.refuse, s.malformed
	}
	s.oracle = newOracle(s)
	s.broker = &simBroker{s: s, stuck: map[string]int{}, met: map[string]bool{}}
	for range p.relays {
		s.startRelay()
	}
	for i := range p.writers {
		s.spawn(fmt.Sprint("writer ", i), nil, func() { s.write() })
	}
	if p.pauses {
		s.spawn("pauser", nil, s.pauseTopics)
	}
	if p.person {
		s.spawn("person", nil, s.discardParked)
	}
	for s.steps < p.steps {
		s.fault()
		s.step()
	}
	s.sent = len(s.statements)
	s.calmDown()
	for s.at.Sub(s.oracle.calmAt) < 3*time.Minute && !s.oracle.complete() {
		s.calmStep()
	}
	s.oracle.check()
	for ended := s.at; s.halting(); s.calmStep() {
		if s.at.Sub(ended) > time.Minute {
			s.fail("stop", "a relay that was told to stop has not ended")
		}
	}
	return nil, s
}

func (s *sim) calmStep() {
	if s.steps%64 == 0 {
		s.db.Tend()
		s.admin(true)
	}
	s.step()
	s.oracle.owners()
}

// halting says whether a relay is still stopping in order.
func (s *sim) halting() bool {
	return slices.ContainsFunc(s.relays, func(r *simRelay) bool { return r.stopping && !r.gone })
}

// task is a coroutine: it runs until it pauses, and goes on when the scheduler picks it.
type task struct {
	s     *sim
	name  string
	relay *simRelay
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool

	when  func() bool // it may go on
	until time.Time   // or from then on
	done  bool
	dying bool // nothing that it still does reaches anybody
	last  bool // it dies after what is on its way

	limits []*simLimit // of what it is doing
}

var errKilled = errors.New("the process is dead")

type killed struct{}

// spawn starts a task. A process that was killed starts none, though a task of it may go on to its next pause.
func (s *sim) spawn(name string, r *simRelay, run func()) *task {
	t := &task{s: s, name: name, relay: r}
	if r != nil && s.current != nil && s.current.last {
		t.done = true
		return t
	}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			t.done = true
			if v := recover(); v != nil {
				if _, ok := v.(killed); !ok {
					panic(v)
				}
			}
		}()
		run()
	})
	s.tasks = append(s.tasks, t)
	return t
}

// pause hands over to the scheduler until when says so or until has come; with neither, until it is picked.
func (s *sim) pause(when func() bool, until time.Time) {
	t := s.current
	if t.last {
		t.dying = true
		panic(killed{})
	}
	t.when, t.until = when, until
	if !t.yield(struct{}{}) {
		t.dying = true
		panic(killed{})
	}
}

// sleep pauses for a while.
func (s *sim) sleep(d time.Duration) { s.pause(nil, s.at.Add(d)) }

// kill ends a task where it stands.
func (t *task) kill() {
	if t.done {
		return
	}
	before := t.s.current
	t.s.current = t
	t.dying = true
	t.stop()
	t.done = true
	t.s.current = before
}

func (t *task) runnable() bool {
	if t.done || t.relay != nil && t.relay.frozen(t.s.at) {
		return false
	}
	switch {
	case t.when == nil && t.until.IsZero():
		return true
	case t.when != nil && t.when():
		return true
	}
	return !t.until.IsZero() && !t.s.at.Before(t.until)
}

// step lets one task go on to its next pause. Time passes by itself; when nobody can go on it jumps.
func (s *sim) step() {
	s.steps++
	s.at = s.at.Add(time.Duration(s.rng.IntN(1500)) * time.Microsecond)
	for {
		s.ready = s.ready[:0]
		alive := s.tasks[:0]
		for _, t := range s.tasks {
			if t.done {
				continue
			}
			alive = append(alive, t)
			if t.runnable() {
				s.ready = append(s.ready, t)
			}
		}
		clear(s.tasks[len(alive):])
		s.tasks = alive
		if len(s.ready) > 0 {
			break
		}
		s.jump()
	}
	t := s.ready[s.rng.IntN(len(s.ready))]
	s.current = t
	if _, more := t.next(); !more {
		t.done = true
	}
	s.current = nil
}

// jump goes to the next moment at which somebody can go on.
func (s *sim) jump() {
	var next time.Time
	for _, t := range s.tasks {
		at := t.until
		if t.relay != nil && t.relay.frozen(s.at) {
			at = t.relay.frozenUntil
		}
		if !at.IsZero() && at.After(s.at) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() {
		panic(violation{"liveness", "nobody can go on"})
	}
	s.at = next
	s.db.Tend()
}

func (s *sim) fail(rule, format string, args ...any) {
	panic(violation{rule, fmt.Sprintf("step %d: ", s.steps) + fmt.Sprintf(format, args...)})
}

// log prints the one schedule that -sim.seed repeats.
func (s *sim) log(format string, args ...any) {
	if *simTrace {
		name := "env"
		if s.current != nil {
			name = s.current.name
			if s.current.relay != nil && s.current.relay.r.c.Name != name {
				name = s.current.relay.r.c.Name + " " + name
			}
		}
		fmt.Printf("%6d %v %s: %s\n", s.steps, s.at.Format("05.0000"), name, fmt.Sprintf(format, args...))
	}
}

// one is true once in n times.
func (s *sim) one(n int) bool { return s.rng.IntN(n) == 0 }

// fault may let something happen to the environment, before a step.
func (s *sim) fault() {
	if s.doomed != nil {
		s.log("kill a relay")
		s.doomed.relay.kill()
		s.doomed = nil
	}
	switch p := s.plan; s.rng.IntN(160) {
	case 0:
		if p.kills {
			s.log("kill a relay")
			s.relays[s.rng.IntN(len(s.relays))].kill()
		}
	case 1:
		if p.freezes {
			r := s.relays[s.rng.IntN(len(s.relays))]
			r.frozenUntil = s.at.Add(time.Duration(s.rng.Int64N(int64(3 * p.lease))))
		}
	case 2:
		if p.crashes {
			s.log("crash of the database")
			s.db.Crash()
		}
	case 3:
		if p.clocks && s.one(2) {
			s.oracle.clocks = true
			s.skew += time.Duration(s.rng.Int64N(int64(20*time.Second))) - 10*time.Second
		}
	case 4, 5:
		if p.refusals {
			s.broker.change()
		}
	case 6, 7:
		s.admin(false)
	case 8:
		if s.one(2) {
			s.relays[s.rng.IntN(len(s.relays))].halt() // in order
		}
	case 9:
		if len(s.relays) < s.plan.relays || s.one(8) {
			s.startRelay()
		}
	case 10:
		if p.calm() {
			break
		}
		s.at = s.at.Add(time.Duration(s.rng.IntN(200)) * time.Millisecond)
		s.db.Tend()
	}
	live := s.relays[:0]
	for _, r := range s.relays {
		if !r.gone {
			live = append(live, r)
		}
	}
	if s.relays = live; len(live) == 0 {
		s.startRelay()
	}
}

// pauseTopics pauses and resumes topics. Each relay sees it some time later.
func (s *sim) pauseTopics() {
	for s.chaos {
		s.sleep(time.Duration(1+s.pauseRng.IntN(400)) * time.Millisecond)
		now := maps.Clone(s.paused)
		if topic := []string{"orders", "other"}[s.pauseRng.IntN(2)]; now[topic] {
			delete(now, topic)
		} else {
			now[topic] = true
		}
		if s.chaos {
			s.setPauses(now)
		}
	}
}

// discardParked discards what waits of a topic in a lane, now and then.
func (s *sim) discardParked() {
	for s.chaos {
		s.sleep(time.Duration(1+s.personRng.IntN(200)) * time.Millisecond)
		tx, ids, frees := s.db.DiscardParked(s.personRng.IntN(s.plan.lanes), []string{"orders", "other"}[s.personRng.IntN(2)], []int{1, 100}[s.personRng.IntN(2)])
		if tx == nil {
			continue
		}
		s.pause(nil, time.Time{})
		if tx.Commit() != nil {
			continue
		}
		for _, id := range ids {
			s.log("a person discards %s", id)
			s.discards++
			s.oracle.discardedParked(id, frees)
		}
	}
}

func (s *sim) setPauses(now pausedTopics) {
	s.log("paused: %v", now)
	s.paused = now
	for _, sr := range s.relays {
		late := time.Duration(s.pauseRng.IntN(100)) * time.Millisecond
		s.spawn("pauses of "+sr.r.c.Name, sr, func() {
			s.sleep(late)
			sr.r.notePauses(s.paused)
		})
	}
}

// calmDown ends all faults: what was written must arrive now.
func (s *sim) calmDown() {
	s.chaos = false
	s.setPauses(pausedTopics{})
	s.oracle.calmAt = s.at
	s.broker.heal()
	s.log("calm")
	stays := false
	for _, r := range s.relays {
		r.frozenUntil = time.Time{}
		stays = stays || !r.stopping
	}
	if !stays {
		s.startRelay()
	}
}

// admin deals with a letter, as a person would. In the end all of them are replayed.
func (s *sim) admin(all bool) {
	for _, l := range s.db.Letters() {
		if l.State != "open" || !all && s.one(2) {
			continue
		}
		if !all && s.one(4) {
			if s.db.Discard(l.ID) {
				s.log("discard letter %d of %s", l.ID, l.EventID)
				s.oracle.discarded(l.EventID)
			}
			continue
		}
		s.log("replay letter %d of %s: %v", l.ID, l.EventID, s.db.Replay(l.ID))
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// taken empties a signal and says whether there was one.
func taken(c chan struct{}) bool { return closed(c) }

// turnstile is a lock that waits by pausing.
type turnstile struct {
	s    *sim
	held bool
	got  func() // called when it is taken
}

func (t *turnstile) Lock() {
	for t.held && !t.s.current.dying {
		t.s.pause(func() bool { return !t.held }, time.Time{})
	}
	t.held = true
	t.got()
}

func (t *turnstile) Unlock() { t.held = false }
