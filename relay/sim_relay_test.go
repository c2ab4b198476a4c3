package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/retry"
)

// simRelay is a process with one relay. What Run, lane.run and lane.read do with channels it does with tasks; all they
// call is the relay's own.
type simRelay struct {
	s           *sim
	r           *Relay
	ctx, work   context.Context // Run's, and that of the lanes
	shutdown    context.CancelFunc
	cut         context.CancelCauseFunc
	frozenUntil time.Time
	stopping    bool // it stops in order
	resting     bool // its lanes have ended
	gone        bool
	background  []*task
}

var (
	simStatements = sqlschema.For("holdfast")
	noLog         = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))
	errCut        = errors.New("the connection was cut")

	errStopTookLong = errors.New("the stop took too long")
)

// simLimit is a time-out of a statement, by the schedule's clock.
type simLimit struct {
	until time.Time
	end   context.CancelCauseFunc
}

// limit bounds what the current task does from here on, until the function that it returns is called. Without slow statements it
// leaves a schedule alone.
func (sr *simRelay) limit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	s := sr.s
	if !s.plan.slow {
		return context.WithCancel(ctx)
	}
	t := s.current
	ctx, end := context.WithCancelCause(ctx)
	l := &simLimit{s.at.Add(d), end}
	t.limits = append(t.limits, l)
	return ctx, func() {
		t.limits = slices.DeleteFunc(t.limits, func(other *simLimit) bool { return other == l })
		end(nil)
	}
}

// hang lets a statement take long now and then: until it goes on, or its client gives it up.
func (sr *simRelay) hang(name string) {
	s := sr.s
	if s.chaos && s.plan.slow && s.one(80) {
		until := s.at.Add(time.Duration(s.rng.Int64N(int64(3 * s.plan.lease))))
		for _, l := range s.current.limits {
			if l.until.Before(until) {
				until = l.until
			}
		}
		s.log("%s hangs until %v", name, until.Format("05.0000"))
		s.pause(nil, until)
	}
	for _, l := range s.current.limits {
		if !s.at.Before(l.until) {
			s.log("the time of %s is over", name)
			l.end(context.DeadlineExceeded)
		}
	}
}

func (s *sim) startRelay() {
	s.named++
	name := fmt.Sprint("relay ", s.named)
	if n := len(s.orphaned); n > 0 && s.one(3) { // as a pod that is started again
		name, s.orphaned = s.orphaned[n-1], s.orphaned[:n-1]
	}
	sr := &simRelay{s: s}
	conn := &simdb.Conn{DB: s.db, Hooks: simdb.Hooks{Before: sr.before, After: sr.after, Blocked: sr.blocked, Lost: sr.lost, GivenUp: sr.givenUp}}
	p := s.plan
	r := newRelay(conn, s.broker, Config{Name: name, Schema: "holdfast", Lease: p.lease, PollMin: 2 * time.Millisecond,
		PollMax: 100 * time.Millisecond, BatchSize: p.batch, HoldKey: p.hold, ParkAfter: p.parkAfter, SegmentBytes: 2000, Observer: Observer{OnLost: func(lane int, _ bool, err error) { s.oracle.lost++; s.log("lost lane %d: %v", lane, err) }},
		Retry: retry.Policy{Attempts: p.attempts, Base: time.Millisecond, Cap: 50 * time.Millisecond}, Logger: noLog}, simStatements)
	r.bounds = p.bounds
	r.calls, r.shared.from = newCallSlots(p.calls), p.wide
	if p.slow {
		r.statementTimeout = p.lease
	}
	if p.tenants {
		r.c.TenantSeparator, r.noisyCalls = "/", newCallSlots(1+s.tenantRng.IntN(3))
	}
	r.saver.mu = &turnstile{s: s, got: sr.inject}
	r.env = env{now: func() time.Time { return s.at }, chance: s.rng.Float64, start: sr.startLane, call: sr.call, after: sr.later, await: sr.await, limit: sr.limit,
		lacking: func(context.Context) ([]string, error) { return nil, nil }}
	sr.r = r
	r.notePauses(s.paused)
	sr.ctx, sr.shutdown = context.WithCancel(context.Background())
	sr.work, sr.cut = context.WithCancelCause(context.Background())
	s.relays = append(s.relays, sr)
	s.spawn(r.c.Name, sr, sr.manage)
	sr.background = []*task{s.spawn("saver", sr, sr.save), s.spawn("poller", sr, sr.poll)}
	if p.rotates {
		sr.background = append(sr.background, s.spawn("segments", sr, sr.segments))
	}
}

func (sr *simRelay) frozen(now time.Time) bool { return now.Before(sr.frozenUntil) }

// before is a statement's way to the server.
func (sr *simRelay) before(name string) error {
	s := sr.s
	if s.current.dying {
		return errKilled
	}
	if s.statements = append(s.statements, name); len(s.statements) == s.plan.killAt {
		s.doomed = s.current
	}
	s.pause(nil, time.Time{})
	if s.chaos && s.plan.cuts && s.one(60) {
		s.log("%s is cut off", name)
		return errCut
	}
	sr.hang(name)
	s.log("%s", name)
	return nil
}

// givenUp lets a statement that was cut off, or given up for its time, arrive all the same, in half of the cases, when the relay has done other things.
func (sr *simRelay) givenUp(name string, err error, arrive func()) {
	s := sr.s
	if !errors.Is(err, errCut) && !errors.Is(err, context.DeadlineExceeded) || s.one(2) {
		return
	}
	wait := time.Duration(s.rng.Int64N(int64(3 * sr.r.c.Lease)))
	if s.one(2) {
		wait /= 50 // before the next save, or between two
	}
	s.spawn("late "+name, nil, func() {
		s.sleep(wait)
		s.log("it arrives")
		arrive()
	})
}

// after is the answer's way back.
func (sr *simRelay) after(name string) error {
	s := sr.s
	if s.current.dying {
		return errKilled
	}
	if s.current.last || s.one(3) {
		s.pause(nil, time.Time{})
	}
	if s.chaos && s.plan.cuts && s.one(60) {
		s.log("the answer of %s is lost", name)
		return errCut
	}
	sr.hang("the answer of " + name)
	sr.inject()
	return nil
}

func (sr *simRelay) blocked(string) error {
	s := sr.s
	if s.current.dying {
		return errKilled
	}
	s.sleep(20 * time.Millisecond)
	if s.one(50) {
		return errCut // lock_timeout
	}
	return nil
}

// lost is the server's end of a transaction whose client is gone: it notices at once, or when the transaction has idled.
func (sr *simRelay) lost(tx *simdb.Tx) {
	if sr.s.one(2) {
		tx.Rollback()
	}
}

// kill ends the process. What was on its way to a server may still arrive there.
func (sr *simRelay) kill() {
	if !sr.gone {
		sr.s.orphaned = append(sr.s.orphaned, sr.r.c.Name)
	}
	sr.gone = true
	for _, t := range sr.s.tasks {
		switch {
		case t.relay != sr || t.done:
		case t == sr.s.doomed && sr.s.plan.arrives, t != sr.s.doomed && t.when == nil && t.until.IsZero() && sr.s.one(2):
			t.last = true
		default:
			t.kill()
		}
	}
}

// halt stops the relay in order.
func (sr *simRelay) halt() {
	sr.stopping = true
	sr.shutdown()
}

// manage is Relay.manage and the end of Relay.Run.
func (sr *simRelay) manage() {
	r, s := sr.r, sr.s
	stopping := func() bool { return sr.stopping }
	for failures := 0; !sr.stopping; {
		wait := r.c.Lease / 3
		switch err := r.maintainClaims(sr.ctx, sr.work); {
		case sr.stopping:
		case err == nil:
			failures = 0
		case fatal(err):
			s.fail("honesty", "a relay gave up: %v", err)
		default:
			failures++
			wait = max(holdPolicy.Delay(min(failures, 3), s.rng.Float64()), 50*time.Millisecond)
		}
		s.pause(func() bool { return stopping() || len(r.changed) > 0 }, s.at.Add(wait))
		if taken(r.changed) {
			s.pause(stopping, s.at.Add(100*time.Millisecond))
		}
	}
	timeout := 10 * time.Second
	if s.one(3) {
		timeout = time.Duration(s.rng.Int64N(int64(r.c.Lease)))
	}
	s.spawn("deadline", sr, func() {
		if s.pause(sr.rests, s.at.Add(timeout)); !sr.resting {
			s.log("the stop takes too long")
			sr.cut(errStopTookLong)
		}
	})
	r.stopLanes(r.owned())
	s.pause(func() bool { return len(r.owned()) == 0 }, time.Time{})
	sr.resting = true
	s.pause(func() bool {
		for _, t := range sr.background {
			if !t.done {
				return false
			}
		}
		return true
	}, time.Time{})
	r.leave(context.Background())
	sr.gone = true
	s.orphaned = append(s.orphaned, r.c.Name)
}

func (sr *simRelay) rests() bool { return sr.resting }

// save is saver.run.
func (sr *simRelay) save() {
	r, s := sr.r, sr.s
	heartbeat := r.c.Lease / 5
	for {
		s.pause(func() bool { return sr.resting || len(r.saver.dirty) > 0 }, s.at.Add(heartbeat))
		if taken(r.saver.dirty); sr.resting {
			return
		}
		began := s.at
		_ = r.saver.save(sr.work, r.owned())
		s.pause(sr.rests, s.at.Add(min(saveInterval(s.at.Sub(began)), heartbeat)))
		if sr.resting {
			return
		}
	}
}

// poll is poller.run.
func (sr *simRelay) poll() {
	r, s := sr.r, sr.s
	for pause := r.c.PollMin; !sr.resting; {
		s.pause(func() bool { return sr.resting || len(r.poller.poked) > 0 }, s.at.Add(pause))
		poked := taken(r.poller.poked)
		if poked {
			pause = r.c.PollMin
		}
		switch found, err := r.poller.look(sr.work, poked); {
		case err != nil:
			pause = r.c.PollMax
		case found:
			pause = r.c.PollMin
		default:
			pause = min(2*pause, r.c.PollMax)
		}
	}
}

// segments is Relay.maintainSegments.
func (sr *simRelay) segments() {
	r, s := sr.r, sr.s
	var known segments
	for !sr.resting {
		s.pause(sr.rests, s.at.Add(time.Duration(20+s.rng.IntN(150))*time.Millisecond))
		if token, owner := r.ownsLaneZero(); owner && !sr.resting {
			_, _ = r.maintainSegmentsOnce(sr.work, token, &known)
		}
	}
}

// simLane is a lane while it is run.
type simLane struct {
	*lane
	sr     *simRelay
	ctx    context.Context
	page   *page // handed over by the reader
	ahead  *page // the same, of those who overtake others
	failed error // of the reader
	ended  bool  // the reader has to stop
	over   bool  // it has
}

// startLane is Relay.start.
func (sr *simRelay) startLane(work context.Context, l *lane) {
	ctx, lost := context.WithCancelCause(work)
	l.lost = lost
	sr.r.enter(l)
	if sr.s.plan.bug.driver == bugNoReload {
		l.queues.parked, l.queues.held = map[queue]bool{}, map[queue]bool{}
	}
	if sr.s.plan.emptied {
		for k := range sr.s.plan.keys {
			l.remember(queueOf(k, sr.s.plan.tenants))
		}
	}
	sl := &simLane{lane: l, sr: sr, ctx: ctx}
	sr.s.spawn(fmt.Sprint("lane ", l.number), sr, func() {
		err := sl.run()
		if err != nil && context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
		if sr.s.plan.bug.driver == bugNoDoubt {
			l.doubtful.Store(false)
		}
		sr.r.end(work, l, err)
		lost(nil)
	})
}

// run is lane.run.
func (sl *simLane) run() error {
	s, l := sl.sr.s, sl.lane
	l.applyPauses()
	if err := l.resumeReleased(sl.ctx); err != nil {
		return err
	}
	s.spawn(fmt.Sprint("reader ", l.number), sl.sr, func() {
		sl.failed = sl.read()
		sl.over = true
	})
	defer l.r.calls.leave(l) // as giveBack does
	defer l.r.noisyCalls.leave(l)
	defer func() {
		if sl.ended = true; !s.current.dying {
			s.pause(func() bool { return sl.over }, time.Time{})
		}
	}()
	for {
		if err := l.turn(sl.ctx); err != nil {
			return err
		}
		sl.keepsPauses()
		due := func() bool { return !l.dueAt().IsZero() && !s.at.Before(l.dueAt()) }
		mayTake := func() bool { return sl.page != nil && l.takesPages() }
		mayOvertake := func() bool { return sl.ahead != nil && l.blocked == nil }
		s.pause(func() bool {
			return closed(l.stop) || sl.ctx.Err() != nil || sl.failed != nil || mayTake() || mayOvertake() || len(l.answered.some) > 0 || len(l.tasksDue) > 0 || due()
		}, l.dueAt())
		var ready []func() error // as a select does: any of those that are ready
		add := func(is bool, do func() error) {
			if is {
				ready = append(ready, do)
			}
		}
		stopped := false
		add(closed(l.stop), func() error { stopped = true; return nil })
		add(sl.ctx.Err() != nil, func() error { return context.Cause(sl.ctx) })
		add(sl.failed != nil, func() error { return sl.failed })
		add(mayTake(), func() error { sl.accept(); return nil })
		add(mayOvertake(), func() error {
			p := *sl.ahead
			sl.ahead = nil
			s.overtaken += len(p.events)
			l.accept(p)
			return nil
		})
		add(len(l.answered.some) > 0, func() error { taken(l.answered.some); return l.settleAll(sl.ctx) })
		add(len(l.tasksDue) > 0 || due(), func() error { taken(l.tasksDue); return l.runTasks(sl.ctx) })
		if len(ready) == 0 {
			continue
		}
		if err := ready[s.rng.IntN(len(ready))](); err != nil {
			return err
		}
		if stopped {
			return l.finish(sl.ctx)
		}
	}
}

// keepsPauses checks that nothing has ended the hold of a topic that is paused, as far as the lane knows.
func (sl *simLane) keepsPauses() {
	if sl.pauses == nil {
		return
	}
	for topic := range *sl.pauses {
		if h := sl.holds[spot{topic, wholeTopic}]; h == nil || !h.paused || h.takes || h.resuming {
			sl.sr.s.fail("pause", "lane %d lets events of %s pass, which is paused: %+v", sl.number, topic, h)
		}
	}
}

func (sl *simLane) accept() {
	p := *sl.page
	sl.page = nil
	switch sl.sr.s.plan.bug.driver {
	case bugOvertakes:
		clear(sl.queues.parked)
		clear(sl.queues.held)
	case bugSaveAhead:
		sl.cursor = p.after
		sl.sr.r.saver.note()
	}
	sl.lane.accept(p)
}

// call is env.call.
func (sr *simRelay) call(l *lane, publish func()) {
	sr.s.spawn(fmt.Sprint("call of lane ", l.number), sr, publish)
}

// later is env.after.
func (sr *simRelay) later(d time.Duration, do func()) {
	sr.s.spawn("timer", sr, func() {
		sr.s.sleep(d)
		do()
	})
}

// await is env.await.
func (sr *simRelay) await(ctx context.Context, l *lane) error {
	sr.s.pause(func() bool { return ctx.Err() != nil || len(l.answered.some) > 0 }, time.Time{})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	taken(l.answered.some)
	return nil
}

// read is lane.read.
func (sl *simLane) read() error {
	s, l := sl.sr.s, sl.lane
	done := func() bool { return sl.ended || sl.ctx.Err() != nil }
	for !done() {
		p, err := l.reader.next(sl.ctx)
		if err != nil {
			return err
		}
		if !p.moves {
			l.met(p)
		} else if sl.hand(p, done); done() {
			break
		}
		if p.last {
			l.r.poller.idle(l, p.after.done)
			s.pause(func() bool { return len(l.wake) > 0 || done() }, time.Time{})
			taken(l.wake)
			l.reader.skip(l.emptyUpTo.Swap(nil))
		}
	}
	return context.Canceled
}

// hand is lane.hand.
func (sl *simLane) hand(p page, done func() bool) {
	s, l := sl.sr.s, sl.lane
	fair, next := l.reader.fair, p
	early := s.plan.bug.driver == bugMeetsEarly
	if early {
		next = fair.left(p)
		l.met(p)
	}
	for began := s.at; !done(); {
		var due time.Time
		if fair != nil {
			if fair.due(s.at) {
				if ahead, found := l.reader.readAhead(sl.ctx, began); found {
					if s.plan.bug.driver == bugAheadMoves {
						ahead.after = p.after
					}
					sl.ahead = &ahead
					s.pause(func() bool { return sl.ahead == nil || done() }, time.Time{})
				}
			}
			if !early {
				next = fair.left(p)
			}
			if fair.noisy != nil {
				due = fair.nextAt
			}
		}
		if done() {
			return
		}
		sl.page = &next
		s.pause(func() bool { return sl.page == nil || done() || !due.IsZero() && !s.at.Before(due) }, due)
		if sl.page == nil {
			if !early {
				l.met(p)
			}
			return
		}
		sl.page = nil
	}
}
