package relay

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	hash "github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// The simulation replaces what Run, lane.run, lane.read, poller.run and saver.run do with channels by tasks of its own. Here
// these loops run as they are, with real goroutines and time-outs, on the simulation's database and under its oracles. The
// clock is synctest's. A seed decides what happens, but not which goroutine comes first: it does not repeat a history.

var loopsSeed = flag.Uint64("loops.seed", 0, "the one seed for TestLoops_TheLoopsOfARelay…")

func TestLoops_TheLoopsOfARelayKeepItsPromises(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	seeds := []uint64{*loopsSeed}
	if *loopsSeed == 0 {
		n := 60
		if testing.Short() {
			n = 15
		}
		random := rand.New(rand.NewPCG(seed.New(t), 0))
		for seeds = nil; len(seeds) < n; {
			seeds = append(seeds, random.Uint64())
		}
	}
	arrived, duplicates := 0, 0
	for _, seed := range seeds {
		w := newLoops(t, newPlan(seed, simBug{}))
		synctest.Test(t, func(*testing.T) { w.play() })
		if t.Failed() {
			t.Fatalf("to try it again: go test ./relay -run TestLoops_TheLoopsOfARelay -loops.seed %d\n%+v", seed, w.s.plan)
		}
		arrived, duplicates = arrived+len(w.s.oracle.events), duplicates+w.s.oracle.duplicates
	}
	t.Logf("%d seeds, %d events, %d duplicates", len(seeds), arrived, duplicates)
}

// loops is one such world. Whoever touches the database, the oracle or the seed's generator has the turn. It is passed on by
// a channel: on a mutex synctest's clock would stand still.
type loops struct {
	t      *testing.T
	s      *sim // its plan, generator, database and oracle; its tasks are not used
	turn   chan struct{}
	pace   *rand.Rand // when faults come
	broker *loopBroker
	writes sync.WaitGroup
	late   sync.WaitGroup // statements that arrive when they were given up
	relays []*loopRelay
	failed bool
}

// loopRelay is a running relay.
type loopRelay struct {
	name    string
	ctx     context.Context // ends when it is asked to stop
	halt    context.CancelFunc
	ended   chan struct{}
	stopped bool // during the faults
	leaves  bool // a lane, for its lease: its last statement waited too long for a lock, or a claim that it had given up arrived later
}

const loopStop = 5 * time.Second // Config.StopTimeout

func newLoops(t *testing.T, p simPlan) *loops {
	p.kills, p.freezes, p.clocks = false, false, false // a goroutine cannot be killed, nor one relay's clock stand still
	if p.seed%4 == 0 {
		p.slow, p.cuts, p.refusals, p.crashes = false, false, false, false
	}
	return &loops{t: t, s: &sim{plan: p, rng: rand.New(rand.NewPCG(p.seed, 2)), chaos: true}, pace: rand.New(rand.NewPCG(p.seed, 12))}
}

// have runs f with the turn. What an oracle says is the test's failure.
func (lo *loops) have(f func()) {
	<-lo.turn
	defer func() { lo.turn <- struct{}{} }()
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			lo.fail("%v", v)
		case simdb.Violated:
			lo.fail("schema: %v", v)
		default:
			panic(v)
		}
	}()
	f()
}

func (lo *loops) fail(format string, args ...any) {
	lo.failed = true
	lo.t.Errorf("seed %d: "+format, append([]any{lo.s.plan.seed}, args...)...)
}

// rest gives the turn away for a while.
func (lo *loops) rest(most time.Duration) {
	d := time.Duration(lo.s.rng.Int64N(int64(most)))
	lo.turn <- struct{}{}
	time.Sleep(d) // sleep: by the clock of synctest
	<-lo.turn
}

func (lo *loops) play() {
	s := lo.s
	lo.turn = make(chan struct{}, 1)
	lo.turn <- struct{}{}
	s.at = time.Now()
	s.db = simdb.New(s.plan.lanes, time.Now, s.rng)
	s.db.Up = time.Now
	s.db.CutEvery, s.db.Survives, s.db.IdleTimeout = s.plan.cutEvery, s.plan.survives, 2*time.Second
	s.oracle = newOracle(s)
	lo.broker = &loopBroker{w: lo, met: map[string]bool{}, refused: map[string]bool{}}
	lo.have(func() {
		for range s.plan.relays {
			lo.start()
		}
	})
	for range s.plan.writers {
		lo.writes.Go(lo.write)
	}
	for began := time.Now(); time.Since(began) < 20*time.Second && !lo.failed; {
		time.Sleep(time.Duration(lo.pace.IntN(200)) * time.Millisecond) // sleep: by the clock of synctest
		lo.have(lo.fault)
	}
	lo.have(func() {
		s.chaos, s.db.Paused = false, nil
		s.oracle.calmAt = time.Now()
		lo.broker.heal()
		lo.start()
	})
	lo.writes.Wait()
	for complete := false; !complete && !lo.failed; {
		time.Sleep(100 * time.Millisecond) // sleep: by the clock of synctest
		lo.have(func() {
			s.db.Tend()
			s.admin(true)
			if complete = s.oracle.complete(); !complete && time.Since(s.oracle.calmAt) > 3*time.Minute {
				s.at = time.Now()
				s.oracle.check()
			}
		})
	}
	lo.end()
}

// end stops all relays in order, and looks at what they leave.
func (lo *loops) end() {
	began := time.Now()
	for _, r := range lo.relays {
		r.halt()
	}
	for _, r := range lo.relays {
		<-r.ended
	}
	took := time.Since(began)
	lo.late.Wait()
	if took > loopStop+loopCall+5*time.Second {
		lo.fail("the relays stopped after %v", took)
	}
	for n := range lo.s.db.Lanes() {
		if row := lo.s.db.Lane(n); row.Owner != "" && !lo.failed && !lo.excused(row.Owner) {
			lo.fail("nobody runs, and lane %d is %s's", n, row.Owner)
		}
	}
}

// excused says whether a lane may still be a relay's that has left, until the lease runs out. One that stopped during the faults may
// have lost its last statement.
func (lo *loops) excused(owner string) bool {
	return slices.ContainsFunc(lo.relays, func(r *loopRelay) bool { return r.name == owner && (r.stopped || r.leaves) })
}

// start starts a relay; the caller has the turn.
func (lo *loops) start() {
	s, p := lo.s, lo.s.plan
	s.named++
	lr := &loopRelay{name: fmt.Sprint("relay ", s.named), ended: make(chan struct{})}
	lr.ctx, lr.halt = context.WithCancel(context.Background())
	conn := &simdb.Conn{DB: s.db, Hooks: simdb.Hooks{Before: lo.before, After: lo.after, Blocked: lo.blocked,
		GivenUp: func(name string, err error, arrive func()) {
			lo.givenUp(name, err, func() {
				lr.leaves = lr.leaves || name == "claim" && lr.ctx.Err() != nil
				arrive()
			})
		}}}
	r := newRelay(&loopDB{lo, conn, lr}, lo.broker, Config{Name: lr.name, Schema: "holdfast", Lease: p.lease, PollMin: 2 * time.Millisecond,
		PollMax: 100 * time.Millisecond, BatchSize: p.batch, HoldKey: p.hold, ParkAfter: p.parkAfter, SegmentBytes: 2000, StopTimeout: loopStop, MemoryBudget: 1 << 20,
		Observer: Observer{OnLost: func(lane int, _ bool, err error) { lo.have(func() { lo.lost(lane, err) }) }},
		Retry:    retry.Policy{Attempts: p.attempts, Base: time.Millisecond, Cap: 50 * time.Millisecond}, Logger: noLog}, simStatements)
	r.bounds = p.bounds
	if start := r.env.start; p.emptied {
		r.env.start = func(work context.Context, l *lane) {
			for k := range p.keys {
				l.remember(queueOf(k, false))
			}
			start(work, l)
		}
	}
	if p.slow {
		r.statementTimeout = p.lease
	}
	r.saver.mu = make(turn, 1)
	lo.relays = append(lo.relays, lr)
	go func() {
		defer close(lr.ended)
		if err := r.Run(lr.ctx); err != nil {
			lo.have(func() { lo.fail("Run returned %v", err) })
		}
	}()
}

// lost is told of a lane that ended with an error.
func (lo *loops) lost(lane int, err error) {
	lo.s.oracle.lost++
	if lo.s.plan.calm() {
		lo.fail("lane %d was lost, though nothing failed: %v", lane, err)
	}
}

// turn is a lock on which synctest's clock goes on.
type turn chan struct{}

func (t turn) Lock()   { t <- struct{}{} }
func (t turn) Unlock() { <-t }

// fault lets something happen; the caller has the turn.
func (lo *loops) fault() {
	s, p := lo.s, lo.s.plan
	s.db.Tend()
	if p.pauses && s.one(4) {
		s.db.Paused = [][]string{nil, {"orders"}, {"other"}, {"orders", "other"}}[s.rng.IntN(4)]
	}
	switch s.rng.IntN(12) {
	case 0:
		if p.crashes {
			s.log("crash of the database")
			s.db.Crash()
		}
	case 1, 2, 3:
		if p.refusals {
			lo.broker.change()
		}
	case 4:
		s.admin(false)
	case 5:
		r := lo.relays[s.rng.IntN(len(lo.relays))]
		r.halt()
		if !r.stopped {
			r.stopped = true
			lo.start()
		}
	}
}

// before is a statement's way to the server.
func (lo *loops) before(name string) error {
	lo.rest(2 * time.Millisecond)
	s := lo.s
	if s.chaos && s.plan.slow && s.one(40) {
		s.log("%s hangs", name)
		lo.rest(2 * s.plan.lease)
	}
	if s.chaos && s.plan.cuts && s.one(60) {
		return errCut
	}
	s.log("%s", name)
	return nil
}

// after is the answer's way back.
func (lo *loops) after(name string) error {
	lo.rest(2 * time.Millisecond)
	if s := lo.s; s.chaos && s.plan.cuts && s.one(60) {
		s.log("the answer of %s is lost", name)
		return errCut
	}
	return nil
}

func (lo *loops) blocked(string) error {
	lo.rest(20 * time.Millisecond)
	if lo.s.one(50) {
		return errCut // lock_timeout
	}
	return nil
}

// givenUp lets a statement that was given up arrive all the same, in half of the cases.
func (lo *loops) givenUp(name string, err error, arrive func()) {
	s := lo.s
	if !errors.Is(err, errCut) && !errors.Is(err, context.DeadlineExceeded) || s.one(2) {
		return
	}
	wait := time.Duration(s.rng.Int64N(int64(s.plan.lease)))
	lo.late.Go(func() {
		time.Sleep(wait) // sleep: by the clock of synctest
		lo.have(func() {
			s.log("%s arrives late", name)
			arrive()
		})
	})
}

// write is a writer.
func (lo *loops) write() {
	for more := true; more; {
		lo.have(func() {
			lo.rest(time.Duration(1+20_000/lo.s.plan.events) * time.Millisecond)
			if more = lo.s.chaos && lo.s.events < 3*lo.s.plan.events && !lo.failed; more {
				lo.transact()
			}
		})
	}
}

// transact writes events of one or two keys, under their locks, in a transaction that takes its time.
func (lo *loops) transact() {
	s := lo.s
	tx := s.db.Begin()
	if s.one(2) {
		tx.Draw()
		lo.rest(5 * time.Millisecond)
	}
	first := s.rng.IntN(s.plan.keys)
	for k := first; k < min(first+1+s.rng.IntN(2), s.plan.keys) && tx.Open(); k++ {
		of := queueOf(k, false)
		for tx.Open() && !tx.Lock(of.key) {
			lo.rest(5 * time.Millisecond)
		}
		for range 1 + s.rng.IntN(3) {
			if !tx.Open() {
				return // the server crashed
			}
			id, q := eventID(s.events), of
			if s.events++; s.one(10) {
				q.key = ""
			}
			s.oracle.written(id, q, q.ordered())
			tx.Append(s.db.Segment(), simdb.Event{ID: id, Topic: q.topic, Key: q.key, Lane: hash.Of(q.key, id, s.plan.lanes), Payload: make([]byte, s.rng.IntN(40))})
			lo.rest(3 * time.Millisecond)
		}
	}
	switch {
	case !tx.Open():
	case s.one(4):
		tx.Rollback()
	default:
		_ = tx.Commit()
	}
}

// loopBroker is a Publisher whose calls last. It has the simulation's partitions.
type loopBroker struct {
	w       *loops
	refused map[string]bool // events that are refused for themselves, once
	sick    int             // a partition; 0 for none
	how     int             // what it does
	down    bool

	mu  sync.Mutex // never held while time passes
	met map[string]bool
}

const (
	sickLate = iota
	sickLeaderless
	sickLost

	loopCall = 3 * time.Second // of a call, at most
)

func (b *loopBroker) change() {
	switch rng := b.w.s.rng; rng.IntN(4) {
	case 0:
		b.down = !b.down
	case 1:
		b.heal()
	case 2:
		b.sick, b.how = 1+rng.IntN(simPartitions), rng.IntN(3)
	default:
		if b.w.s.events > 0 {
			b.refused[eventID(max(0, b.w.s.events-5+rng.IntN(8)))] = true
		}
	}
}

func (b *loopBroker) heal() { b.sick, b.down = 0, false }

func (b *loopBroker) partition(e holdfast.Event) int { return (&simBroker{}).partition(e) }

func (b *loopBroker) Partition(e holdfast.Event) (partition, partitions int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.met[e.Topic] {
		return 0, 0
	}
	return b.partition(e) - 1, simPartitions
}

func (b *loopBroker) Publish(_ context.Context, events []holdfast.Event) []error {
	errs := make([]error, len(events))
	b.w.have(func() {
		b.w.s.oracle.publishing(events)
		b.mu.Lock()
		for _, e := range events {
			b.met[e.Topic] = true
		}
		b.mu.Unlock()
		broken, keys := map[int]error{}, map[queue]error{}
		for i, e := range events {
			if errs[i] = broken[b.partition(e)]; errs[i] == nil && e.Key != "" {
				errs[i] = keys[queue{e.Topic, e.Key}]
			}
			if errs[i] != nil {
				continue
			}
			b.w.rest(time.Millisecond)
			if errs[i] = b.take(e); errs[i] == nil {
				continue
			}
			if publish.FaultOf(errs[i]) == publish.FaultRecord {
				keys[queue{e.Topic, e.Key}] = &publish.Error{Topic: e.Topic, Partition: b.partition(e), Fault: publish.FaultRecord, NotSent: true, Err: errs[i]}
			} else {
				broken[b.partition(e)] = errs[i]
			}
		}
	})
	return errs
}

// take writes one event, or says why it was not acknowledged.
func (b *loopBroker) take(e holdfast.Event) error {
	w, s := b.w, b.w.s
	refuse := func(fault publish.Fault) error {
		return &publish.Error{Topic: e.Topic, Partition: b.partition(e), Fault: fault, Err: errors.New("scripted")}
	}
	switch sick := b.sick == b.partition(e); {
	case b.down:
		return refuse(publish.FaultBroker)
	case sick && b.how == sickLeaderless:
		return refuse(publish.FaultPartition)
	case sick && b.how == sickLate:
		w.rest(100 * time.Millisecond)
	case sick && b.how == sickLost:
		s.oracle.arrived(e)
		return refuse(publish.FaultPartition)
	case b.refused[e.ID]:
		delete(b.refused, e.ID)
		return refuse(publish.FaultRecord)
	}
	s.oracle.arrived(e)
	return nil
}
