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
func (w *loops) have(f func()) {
	<-w.turn
	defer func() { w.turn <- struct{}{} }()
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			w.fail("%v", v)
		case simdb.Violated:
			w.fail("schema: %v", v)
		default:
			panic(v)
		}
	}()
	f()
}

func (w *loops) fail(format string, args ...any) {
	w.failed = true
	w.t.Errorf("seed %d: "+format, append([]any{w.s.plan.seed}, args...)...)
}

// rest gives the turn away for a while.
func (w *loops) rest(most time.Duration) {
	d := time.Duration(w.s.rng.Int64N(int64(most)))
	w.turn <- struct{}{}
	time.Sleep(d) // sleep: by the clock of synctest
	<-w.turn
}

func (w *loops) play() {
	s := w.s
	w.turn = make(chan struct{}, 1)
	w.turn <- struct{}{}
	s.at = time.Now()
	s.db = simdb.New(s.plan.lanes, time.Now, s.rng)
	s.db.Up = time.Now
	s.db.CutEvery, s.db.Survives, s.db.IdleTimeout = s.plan.cutEvery, s.plan.survives, 2*time.Second
	s.oracle = newOracle(s)
	w.broker = &loopBroker{w: w, met: map[string]bool{}, refused: map[string]bool{}}
	w.have(func() {
		for range s.plan.relays {
			w.start()
		}
	})
	for range s.plan.writers {
		w.writes.Go(w.write)
	}
	for began := time.Now(); time.Since(began) < 20*time.Second && !w.failed; {
		time.Sleep(time.Duration(w.pace.IntN(200)) * time.Millisecond) // sleep: by the clock of synctest
		w.have(w.fault)
	}
	w.have(func() {
		s.chaos, s.db.Paused = false, nil
		s.oracle.calmAt = time.Now()
		w.broker.heal()
		w.start()
	})
	w.writes.Wait()
	for complete := false; !complete && !w.failed; {
		time.Sleep(100 * time.Millisecond) // sleep: by the clock of synctest
		w.have(func() {
			s.db.Tend()
			s.admin(true)
			if complete = s.oracle.complete(); !complete && time.Since(s.oracle.calmAt) > 3*time.Minute {
				s.at = time.Now()
				s.oracle.check()
			}
		})
	}
	w.end()
}

// end stops all relays in order, and looks at what they leave.
func (w *loops) end() {
	began := time.Now()
	for _, r := range w.relays {
		r.halt()
	}
	for _, r := range w.relays {
		<-r.ended
	}
	took := time.Since(began)
	w.late.Wait()
	if took > loopStop+loopCall+5*time.Second {
		w.fail("the relays stopped after %v", took)
	}
	for n := range w.s.db.Lanes() {
		if row := w.s.db.Lane(n); row.Owner != "" && !w.failed && !w.excused(row.Owner) {
			w.fail("nobody runs, and lane %d is %s's", n, row.Owner)
		}
	}
}

// excused says whether a lane may still be a relay's that has left, until the lease runs out. One that stopped during the faults may
// have lost its last statement.
func (w *loops) excused(owner string) bool {
	return slices.ContainsFunc(w.relays, func(r *loopRelay) bool { return r.name == owner && (r.stopped || r.leaves) })
}

// start starts a relay; the caller has the turn.
func (w *loops) start() {
	s, p := w.s, w.s.plan
	s.named++
	lr := &loopRelay{name: fmt.Sprint("relay ", s.named), ended: make(chan struct{})}
	lr.ctx, lr.halt = context.WithCancel(context.Background())
	conn := &simdb.Conn{DB: s.db, Hooks: simdb.Hooks{Before: w.before, After: w.after, Blocked: w.blocked,
		GivenUp: func(name string, err error, arrive func()) {
			w.givenUp(name, err, func() {
				lr.leaves = lr.leaves || name == "claim" && lr.ctx.Err() != nil
				arrive()
			})
		}}}
	r := newRelay(&loopDB{w, conn, lr}, w.broker, Config{Name: lr.name, Schema: "holdfast", Lease: p.lease, PollMin: 2 * time.Millisecond,
		PollMax: 100 * time.Millisecond, BatchSize: p.batch, HoldKey: p.hold, ParkAfter: p.parkAfter, SegmentBytes: 2000, StopTimeout: loopStop, MemoryBudget: 1 << 20,
		Observer: Observer{OnLost: func(l Lost) { w.have(func() { w.lost(l) }) }},
		Retry:    retry.Policy{Attempts: p.attempts, Base: time.Millisecond, Cap: 50 * time.Millisecond}, Logger: noLog}, simStatements)
	r.pageBytes, r.listed, r.counted = p.bytes, p.listed, p.counted
	if p.slow {
		r.statementTimeout = p.lease
	}
	r.saver.mu = make(turn, 1)
	w.relays = append(w.relays, lr)
	go func() {
		defer close(lr.ended)
		if err := r.Run(lr.ctx); err != nil {
			w.have(func() { w.fail("Run returned %v", err) })
		}
	}()
}

// lost is told of a lane that ended with an error.
func (w *loops) lost(l Lost) {
	w.s.oracle.lost++
	if w.s.plan.calm() {
		w.fail("lane %d was lost, though nothing failed: %v", l.Lane, l.Err)
	}
}

// turn is a lock on which synctest's clock goes on.
type turn chan struct{}

func (l turn) Lock()   { l <- struct{}{} }
func (l turn) Unlock() { <-l }

// fault lets something happen; the caller has the turn.
func (w *loops) fault() {
	s, p := w.s, w.s.plan
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
			w.broker.change()
		}
	case 4:
		s.admin(false)
	case 5:
		r := w.relays[s.rng.IntN(len(w.relays))]
		r.halt()
		if !r.stopped {
			r.stopped = true
			w.start()
		}
	}
}

// before is a statement's way to the server.
func (w *loops) before(name string) error {
	w.rest(2 * time.Millisecond)
	s := w.s
	if s.chaos && s.plan.slow && s.one(40) {
		s.log("%s hangs", name)
		w.rest(2 * s.plan.lease)
	}
	if s.chaos && s.plan.cuts && s.one(60) {
		return errCut
	}
	s.log("%s", name)
	return nil
}

// after is the answer's way back.
func (w *loops) after(name string) error {
	w.rest(2 * time.Millisecond)
	if s := w.s; s.chaos && s.plan.cuts && s.one(60) {
		s.log("the answer of %s is lost", name)
		return errCut
	}
	return nil
}

func (w *loops) blocked(string) error {
	w.rest(20 * time.Millisecond)
	if w.s.one(50) {
		return errCut // lock_timeout
	}
	return nil
}

// givenUp lets a statement that was given up arrive all the same, in half of the cases.
func (w *loops) givenUp(name string, err error, arrive func()) {
	s := w.s
	if !errors.Is(err, errCut) && !errors.Is(err, context.DeadlineExceeded) || s.one(2) {
		return
	}
	wait := time.Duration(s.rng.Int64N(int64(s.plan.lease)))
	w.late.Go(func() {
		time.Sleep(wait) // sleep: by the clock of synctest
		w.have(func() {
			s.log("%s arrives late", name)
			arrive()
		})
	})
}

// write is a writer.
func (w *loops) write() {
	for more := true; more; {
		w.have(func() {
			w.rest(time.Duration(1+20_000/w.s.plan.events) * time.Millisecond)
			if more = w.s.chaos && w.s.events < 3*w.s.plan.events && !w.failed; more {
				w.transact()
			}
		})
	}
}

// transact writes events of one or two keys, under their locks, in a transaction that takes its time.
func (w *loops) transact() {
	s := w.s
	tx := s.db.Begin()
	if s.one(2) {
		tx.Draw()
		w.rest(5 * time.Millisecond)
	}
	first := s.rng.IntN(s.plan.keys)
	for k := first; k < min(first+1+s.rng.IntN(2), s.plan.keys) && tx.Open(); k++ {
		key, topic := fmt.Sprint("k", k), []string{"orders", "other"}[k%2]
		for tx.Open() && !tx.Lock(key) {
			w.rest(5 * time.Millisecond)
		}
		for range 1 + s.rng.IntN(3) {
			if !tx.Open() {
				return // the server crashed
			}
			id, key := eventID(s.events), key
			if s.events++; s.one(10) {
				key = ""
			}
			s.oracle.written(id, queue{topic, key}, key != "")
			tx.Append(s.db.Segment(), simdb.Event{ID: id, Topic: topic, Key: key, Lane: hash.Of(key, id, s.plan.lanes), Payload: make([]byte, s.rng.IntN(40))})
			w.rest(3 * time.Millisecond)
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
			if FaultOf(errs[i]) == FaultRecord {
				keys[queue{e.Topic, e.Key}] = &PublishError{Topic: e.Topic, Partition: b.partition(e), Fault: FaultRecord, NotSent: true, Err: errs[i]}
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
	refuse := func(fault Fault) error {
		return &PublishError{Topic: e.Topic, Partition: b.partition(e), Fault: fault, Err: errors.New("scripted")}
	}
	switch sick := b.sick == b.partition(e); {
	case b.down:
		return refuse(FaultBroker)
	case sick && b.how == sickLeaderless:
		return refuse(FaultPartition)
	case sick && b.how == sickLate:
		w.rest(100 * time.Millisecond)
	case sick && b.how == sickLost:
		s.oracle.arrived(e)
		return refuse(FaultPartition)
	case b.refused[e.ID]:
		delete(b.refused, e.ID)
		return refuse(FaultRecord)
	}
	s.oracle.arrived(e)
	return nil
}
