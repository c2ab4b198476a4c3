// Package relay moves committed events from the log to Kafka: every one, at least once, in the order of each key.
//
//	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: brokers}, kafkago.PublisherConfig{})
//	r, err := relay.New(pool, publisher, relay.Config{})
//	err = r.Run(ctx) // until ctx is done
//
// Package kafkago has the Publisher for Kafka; package publish is for who writes another one, or middleware around one. Run
// any number of relays: they share the lanes. To stop one, end the context of Run: it finishes what is in progress, releases
// its lanes and returns nil. Wake makes a relay look at the log at once: call it after a commit, if the relay runs in the
// process that writes. docs/guides/run-a-relay.md is the guide.
//
// # Reading order
//
// A Relay claims lanes of the log, and for each reads pages by cursor (log.go), publishes them (lane.go), decides what
// becomes of every event (decide.go), and saves how far it got (saver.go). What the broker refuses waits with its key in
// a table of its own (park.go, drain.go; room.go knows what waits there). A topic or a partition that takes nothing is
// held (holds.go), also by a person (pauses.go). Any number of relays share the lanes (claim.go). Nothing is ever updated or
// deleted in the log itself. Segments that are read, so that their events are published or parked, are emptied whole
// (segments.go).
package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/internal/quiet"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Relay publishes the events of one schema. Make it with New and call Run.
type Relay struct {
	pool             database
	log              database // the same, for what reads the log: see interpret.go
	publisher        Publisher
	partitioner      publish.Partitioner // the publisher, if it says where events go
	system           string              // the publisher's messaging system
	env              env
	c                Config
	sql              *sqlschema.Statements
	poller           *poller
	saver            *saver
	statementTimeout time.Duration // of a statement of a lane: without it a connection that never answers would stall the lane for ever
	bounds           bounds
	budget           *budget
	calls            *callSlots
	noisyCalls       *callSlots // of noisy tenants, while others overtake them
	shared           *sharedCalls

	mu      sync.Mutex
	lanes   map[int]*lane
	failing failing
	broken  error // why Run must return
	token   string
	working sync.WaitGroup               // a goroutine for each lane, and for each call of the publisher
	answers atomic.Int64                 // when the publisher last said that an event was acknowledged or refused for itself, in nanoseconds
	prompt  atomic.Int64                 // when it last did so promptly
	back    atomic.Int64                 // when it first did so after an outage
	notices notices                      // of topics and partitions that take nothing
	lines   noticeQuota                  // of lines about topics, partitions and events
	paused  atomic.Pointer[pausedTopics] // nil until it was read
	vitals  vitals                       // what Health tells
	said    quiet.Limiter                // what was logged of late
	changed chan struct{}                // a lane has ended: look at the claims now
	running atomic.Bool                  // a call of Run has not returned
}

// New returns a Relay, or one error that names every problem of the configuration. It does not touch the database.
//
// The relay uses a few connections of pool at a time, for single statements or short transactions; 4 are enough. It
// needs no session state: it works through PgBouncer in transaction pooling, in any of pgx's exec modes.
func New(pool *pgxpool.Pool, p Publisher, c Config) (*Relay, error) {
	c = c.withDefaults()
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: it must be connected to the primary"))
	}
	if p == nil {
		problems = append(problems, errors.New("publisher is nil: it must be one like kafkago.NewPublisher's"))
	}
	if _, ofLanes := p.(publish.LanePublisher); ofLanes && c.TenantSeparator != "" {
		problems = append(problems, fmt.Errorf("tenant separator is %q: it must be empty with a publisher that publishes each lane by a producer of its own, "+
			"because what overtakes a backlog is repeated by the lane's next owner", c.TenantSeparator))
	}
	if err := errors.Join(append(problems, c.validate())...); err != nil {
		return nil, fmt.Errorf("relay config: %w", err)
	}
	r := newRelay(plain.Of(pool), p, c, sqlschema.For(c.Schema))
	r.log = interpreted{plain.Of(pool)}
	return r, nil
}

// newRelay makes a Relay of a configuration without problems.
func newRelay(db database, p Publisher, c Config, sql *sqlschema.Statements) *Relay {
	r := &Relay{
		pool:             db,
		log:              db,
		publisher:        p,
		c:                c,
		sql:              sql,
		lanes:            map[int]*lane{},
		changed:          make(chan struct{}, 1),
		statementTimeout: time.Minute,
		bounds:           usualBounds,
		budget:           newBudget(c.MemoryBudget, inMemory*usualBounds.pageBytes),
		calls:            newCallSlots(callsInAll),
		noisyCalls:       newCallSlots(noisyCallsInAll),
	}
	r.partitioner, _ = p.(publish.Partitioner)
	r.system = wire.System(p)
	r.env = envOf(r)
	r.shared = newSharedCalls(p, &r.env)
	if _, ok := p.(publish.LanePublisher); ok {
		r.shared.publisher = nil
	}
	r.poller = newPoller(r)
	r.saver = newSaver(r)
	return r
}

// Wake makes the relay look at the log now: call it after a commit if the relay runs in the process that writes. It never
// blocks and may be called from many goroutines. It is optional, because the relay polls.
func (r *Relay) Wake() { r.poller.poke() }

// Run publishes until ctx is done, then finishes what is in progress, hands its lanes back and returns nil. That takes at
// most Config.StopTimeout and the publisher's own bound.
//
// It returns an error if running would be wrong, or can never work: the schema or a part of it is missing
// (holdfast.ErrSchemaMissing) or does not fit this build (holdfast.ErrSchemaVersion), its role lacks a right, the
// server is a standby (ErrStandby), the default isolation is not READ COMMITTED (ErrIsolation), or the database is a restored copy whose
// cursors mean nothing (ErrRestored), or the pool was closed. The error says what to do. An outage never ends it: while Postgres or Kafka
// cannot be reached it waits, with backoff and jitter, and logs that.
//
// A Relay runs once at a time: a call beside another returns an error at once, because both would publish each event. It may run again
// afterwards.
func (r *Relay) Run(ctx context.Context) (err error) {
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("relay %s runs already: call Run again when it has returned, or make another relay with New", r.c.Name)
	}
	defer r.running.Store(false)
	r.vitals.begin(r.env.now())
	defer r.usePool()()
	defer func() { r.vitals.end(err) }()
	work, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	var parts sync.WaitGroup
	background, stopBackground := context.WithCancel(work)
	parts.Go(func() { r.poller.run(background) })
	parts.Go(func() { r.saver.run(background) })
	parts.Go(func() { r.maintainSegments(background) })
	parts.Go(func() { r.expireDedupeKeys(background) })
	parts.Go(func() { r.watchPauses(background) })
	parts.Go(func() { r.reachBroker(background) })

	err = r.manage(ctx, work)

	// Stop in order: lanes finish what is in progress while the saver keeps their leases, then everything is saved.
	deadline := time.AfterFunc(r.c.StopTimeout, func() { cut(fmt.Errorf("the stop took longer than %v", r.c.StopTimeout)) })
	defer deadline.Stop()
	r.stopLanes(r.owned())
	r.working.Wait()
	stopBackground()
	parts.Wait()
	r.leave(context.WithoutCancel(ctx))
	return err
}

// manage claims and hands over lanes until ctx is done.
func (r *Relay) manage(ctx, work context.Context) error {
	failures, fits, said := 0, false, false
	for ctx.Err() == nil {
		if broken := r.whyBroken(); broken != nil {
			return broken
		}
		r.vitals.turn(r.env.now())
		var err error
		if !fits {
			err = r.fit(ctx)
			fits = err == nil
		}
		if fits && err == nil && r.paused.Load() == nil {
			err = r.readPauses(ctx)
		}
		if fits && err == nil {
			err = r.maintainClaims(ctx, work)
		}
		var away time.Time
		if ctx.Err() == nil {
			away = r.vitals.turned(err, r.env.now())
		}
		wait, end := r.nextClaim(r.c.Lease/3), r.fatal(err)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			if said {
				r.c.Logger.Info("database back", "relay", r.c.Name, "waited", r.env.now().Sub(away))
			}
			failures, said = 0, false
		case end != nil:
			return end
		default:
			failures++
			wait = max(holdPolicy.Delay(failures, rand.Float64()), 50*time.Millisecond)
			if attrs, say := r.againSince("database "+private.Kind(private.Text(err)), away, "relay", r.c.Name, "wait", wait, "error", private.Text(err)); say {
				said = true
				r.c.Logger.Warn("relay waits for the database", attrs...)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.changed:
			// A lane was dropped. Wait a little: others may be about to be. One that fails at every start waits longer.
			select {
			case <-ctx.Done():
			case <-time.After(100*time.Millisecond + time.Duration(rand.Int64N(int64(100*time.Millisecond)))):
			}
		}
		timer.Stop()
	}
	return nil
}

// fit says why this build must not run on the schema.
func (r *Relay) fit(ctx context.Context) error {
	ctx, cancel := r.env.limit(ctx, max(r.c.Lease, 2*time.Second))
	defer cancel()
	return explain(sqlschema.Fits(ctx, r.pool, r.c.Schema))
}

// start runs a claimed lane until it ends, then saves and releases it.
func (r *Relay) start(work context.Context, l *lane) {
	ctx, lost := context.WithCancelCause(work)
	l.lost = lost
	r.enter(l)
	r.working.Go(func() {
		defer lost(nil)
		err := l.run(ctx)
		if err != nil && context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
		r.end(work, l, err)
	})
}

// enter makes a claimed lane one of ours: from here on the saver keeps its lease.
func (r *Relay) enter(l *lane) {
	r.mu.Lock()
	r.lanes[l.number] = l
	r.mu.Unlock()
	if observe := r.c.Observer.OnClaimed; observe != nil {
		observe(l.number, l.epoch)
	}
}

// end gives a lane back. It first saves what was published, so that the next owner repeats as little as possible. It does
// not if a transaction of the lane may have been committed unknown to us: its cursor is ahead of ours then.
func (r *Relay) end(ctx context.Context, l *lane, err error) {
	ctx, cancel := r.env.limit(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if !l.doubtful.Load() && !errors.Is(err, errLost) && !errors.Is(err, errCrashed) && !errors.Is(err, errAhead) {
		r.yield(ctx, l)
	}
	if l.producer != nil {
		l.producer.Close()
	}
	r.poller.forget(l)
	times := 0
	if err != nil {
		times = r.failed(l, err)
	}
	r.mu.Lock()
	delete(r.lanes, l.number) // from here on it may be claimed again
	r.mu.Unlock()
	if err != nil {
		if attrs, say := r.again("dropped "+private.Kind(private.Text(err)), "lane", l.number, "epoch", l.epoch, "times", times, "error", private.Text(err)); say {
			r.c.Logger.Warn("lane dropped, will be claimed again when it is free", attrs...)
		}
		if observe := r.c.Observer.OnLost; observe != nil {
			observe(l.number, errors.Is(err, errFenced), err)
		}
	} else if observe := r.c.Observer.OnReleased; observe != nil {
		observe(l.number)
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// yield saves a lane and releases it.
func (r *Relay) yield(ctx context.Context, l *lane) {
	failpoint.Hit(failpoint.RelayStopping)
	if err := r.saver.save(ctx, []*lane{l}); err != nil {
		r.c.Logger.Warn("lane not saved: its next owner repeats what was published since the last save", "lane", l.number, "error", private.Text(err))
		return
	}
	if l.behind() { // It is lost, or its row is locked.
		return
	}
	r.saver.exclude(l) // it would find the row locked by the release
	defer r.saver.include(l)
	failpoint.Hit(failpoint.RelayYielding)
	if _, err := r.pool.Exec(ctx, r.sql.In(releaseLane), l.number, r.c.Name, l.epoch); err != nil {
		r.c.Logger.Warn("lane not released: it is free when its lease runs out", "lane", l.number, "error", private.Text(err))
	}
	failpoint.Hit(failpoint.RelayYielded)
}

// stopLanes asks lanes to finish what is in progress. start's goroutine does the rest.
func (r *Relay) stopLanes(lanes []*lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lanes {
		if !l.stopping() {
			close(l.stop)
		}
	}
}

// reachable lets every lane try the broker at once: one has just got an answer after an outage.
func (r *Relay) reachable() {
	for _, l := range r.owned() {
		signal(l.tasksDue)
	}
}

// owned are the lanes that are ours, by number.
func (r *Relay) owned() []*lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	lanes := make([]*lane, 0, len(r.lanes))
	for _, l := range r.lanes {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b *lane) int { return a.number - b.number })
	return lanes
}

func (r *Relay) lanesOwned() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.lanes)
}

func (r *Relay) leave(ctx context.Context) {
	r.logMore(true)
	ctx, cancel := r.env.limit(ctx, 5*time.Second)
	defer cancel()
	failpoint.Hit(failpoint.RelayDeregistering)
	// Best effort: a relay that stays registered is counted until its lease runs out.
	if _, err := r.pool.Exec(ctx, r.sql.In(leaveRelay), r.c.Name); err != nil && !r.vitals.read().beatAt.IsZero() { // else it was not registered
		r.c.Logger.Warn("relay not deregistered: its lanes are free when their leases run out", "relay", r.c.Name, "error", private.Text(err))
	}
}

// fatal returns an error if it says that running would be wrong, rather than impossible for now. A missing right is looked for:
// somebody else may have left a connection with another role, which is put right.
func (r *Relay) fatal(err error) error {
	switch {
	case !fatal(err):
		return nil
	case errors.Is(err, puddle.ErrClosedPool):
		return fmt.Errorf("%w: close the pool after Run has returned", err)
	case !errors.Is(err, sqlschema.ErrNoRights):
		return err
	}
	lacking, unknown := r.env.lacking(context.Background())
	if unknown == nil && len(lacking) > 0 {
		return fmt.Errorf("%w; it lacks: %s", err, strings.Join(lacking, ", "))
	}
	return nil
}

// fatal says whether an error ends Run, if what it says is so.
func fatal(err error) bool {
	return errors.Is(err, ErrStandby) || errors.Is(err, ErrRestored) || errors.Is(err, ErrIsolation) ||
		errors.Is(err, holdfast.ErrSchemaMissing) || errors.Is(err, holdfast.ErrSchemaVersion) || errors.Is(err, sqlschema.ErrNoRights) ||
		errors.Is(err, puddle.ErrClosedPool)
}

// failed records that a lane ended with an error, and says how often it has in a row.
func (r *Relay) failed(l *lane, err error) (times int) {
	r.giveUpIfFatal(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing.failed(l.number, r.env.now(), r.env.chance())
}

// nextClaim is when to look at the claims again: after wait, or when a lane that has failed may be claimed.
func (r *Relay) nextClaim(wait time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing.next(r.env.now(), wait)
}

// giveUpIfFatal makes Run return err if it will never go away by itself, whatever part of the relay met it.
func (r *Relay) giveUpIfFatal(err error) {
	if err = r.fatal(explain(err)); err == nil {
		return
	}
	r.mu.Lock()
	if r.broken == nil {
		r.broken = err
	}
	r.mu.Unlock()
	signal(r.changed)
}

func (r *Relay) whyBroken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken
}
