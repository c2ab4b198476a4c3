package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/dependency"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/retry"
)

// This file knows which of the things that handlers need (Needs) are away. Then no handler that needs one begins on any node of the consumer.
// An event that comes in meanwhile is stored; a stored one is not claimed, except for one at a time that tries whether the dependency is
// back (trial.go). So an outage costs no attempt, and a stored event keeps its place in the queue of its key.

// Unavailable says that err came from a dependency that is away, so that the event is not to blame. A handler returns it, for a name that
// its registration Needs. The event is stored and spends no attempt, and all handlers that need the dependency pause until it is back.
// See Needs. It returns nil for nil.
//
// An error that says that the request is at fault stays what it is, such as a refused card: one that is marked by retry.Permanent, or that
// retry.Classify calls Validation, Conflict or Duplicate. So a handler may put all errors of a call into it, if retry.Classify knows
// them. A time that the dependency asks for with retry.After (a Retry-After) is kept, up to an hour. errors.Is and errors.As find err.
//
// An event is believed once. If it says so again although others of its kind were handled meanwhile, it waits alone, for up to 30 seconds
// each time, and its fifth time in a row spends an attempt.
func Unavailable(name string, err error) error {
	if err == nil || ofTheRequest(err) {
		return err
	}
	return &failure.UnavailableError{Name: name, Err: err}
}

// ofTheRequest reports that an error says that the request is at fault, and not who answers it.
func ofTheRequest(err error) bool {
	if retry.IsPermanent(err) {
		return true
	}
	if _, asked := retry.AfterOf(err); asked {
		return false
	}
	class := retry.Classify(err)
	return class == retry.Validation || class == retry.Conflict || class == retry.Duplicate
}

// Needs says what the handler needs beyond Postgres, for example the service of a payment provider. Each name has 1 to 100 letters, digits,
// ".", "_" or "-". It means the same in all registrations of a consumer.
//
// When a handler says by Unavailable that a dependency is away, the handlers that need it pause on all nodes of the consumer, on this one
// at once and on others within a second or so. Nobody's attempt is spent, and each key stays in order. New events of these types are
// stored; if as many are stored as Config.MaxStored and MaxStoredKey allow, their partitions wait. One stored event at a time tries whether the
// dependency is back: after one second, and then after up to 30, with jitter, or as late as the dependency asks. When its handler
// succeeds, all go on. Other types and keys do not notice. A dependency that comes and goes is tried less often, until it stays for some minutes.
//
// A handler that returns nil counts as proof that all it needs is there. Give events that call a dependency and events of which most do not a type each.
// Stored events are handled by Run and Consume: without a node that runs one of them nothing is tried.
func Needs(names ...string) Option {
	return func(r *registration) { r.needs = append(r.needs, names...) }
}

// maxNeed is the longest name of a dependency.
const maxNeed = 100

// checkNeed says what is wrong with a dependency's name.
func checkNeed(name string) error {
	if len(name) >= 1 && len(name) <= maxNeed && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}) < 0 {
		return nil
	}
	return fmt.Errorf(`needs %q: the name of a dependency must have 1 to %d letters, digits, ".", "_" or "-"`, name, maxNeed)
}

// dependencies is what this node knows of what its handlers need. Many goroutines may use it at once.
//
// A name is in away from the moment when a handler here says so, or when a look finds that another node has said so, until a look
// finds that it is back, or an event here has shown it. A look that began before this node knew better says nothing of that name.
type dependencies struct {
	*env
	runner *runner
	opened func() // called when something is back: stored events may have become claimable

	mu      sync.Mutex
	away    map[string]*absence
	changed map[string]time.Time // when this node knew of a name last, from an event of its own
	change  chan struct{}        // closed when away changes, or a time in it
}

// absence is a dependency that is away.
type absence struct {
	until   time.Time // by this process's clock: then an event tries it
	untold  *finding  // the database does not know yet; nil if it does
	telling bool      // it is being told
}

// finding is what a handler has said of a dependency.
type finding struct {
	why   string        // as in a log line: without what the error has of the event
	asked time.Duration // how long the dependency wants to be left alone
}

// findingOf is what the handler of an event has said by err, and of what. ok is false if it said nothing of the kind.
func (dp *dependencies) findingOf(err error, e holdfast.Event) (name string, f *finding, ok bool) {
	var said *failure.UnavailableError
	if !errors.As(err, &said) {
		return "", nil, false
	}
	asked, _ := retry.AfterOf(err)
	return said.Name, &finding{why: cmp.Or(dp.cause(said.Err, e), failure.ClassOf(said.Err)), asked: asked}, true
}

func newDependencies(env *env, runner *runner) *dependencies {
	return &dependencies{
		env:     env,
		runner:  runner,
		away:    map[string]*absence{},
		changed: map[string]time.Time{},
		change:  make(chan struct{}),
	}
}

// missing are the dependencies of a type that are away, nil if none is. The channel is closed when that may have changed.
func (dp *dependencies) missing(eventType string) (names []string, change <-chan struct{}) {
	needs := dp.kinds[eventType].needs
	if len(needs) == 0 {
		return nil, nil
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	return dp.lacks(needs), dp.change
}

// waits reports that no handler of the type may begin.
func (dp *dependencies) waits(eventType string) bool {
	names, _ := dp.missing(eventType)
	return len(names) > 0
}

// lacks are the needs that are away. The caller holds the mutex.
func (dp *dependencies) lacks(needs []string) (names []string) {
	if len(dp.away) == 0 {
		return nil
	}
	for _, name := range needs {
		if dp.away[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

// begin are those of the types whose handlers may begin.
func (dp *dependencies) begin(types []string) []string {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	if len(dp.away) == 0 {
		return types
	}
	return slices.DeleteFunc(slices.Clone(types), func(t string) bool { return len(dp.lacks(dp.kinds[t].needs)) > 0 })
}

// due are the types of which an event may try what it needs now, or else when the first comes. The channel is closed when that may have
// changed. next is zero if nothing is away.
func (dp *dependencies) due(types []string, now time.Time) (due []string, next time.Time, change <-chan struct{}) {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	for _, t := range types {
		var last time.Time // when all that is away may be tried
		for _, name := range dp.lacks(dp.kinds[t].needs) {
			if a := dp.away[name]; last.Before(a.until) {
				last = a.until
			}
		}
		switch {
		case last.IsZero():
		case !last.After(now):
			due = append(due, t)
		case next.IsZero() || last.Before(next):
			next = last
		}
	}
	return due, next, dp.change
}

// turn closes change and makes a new one. The caller holds the mutex.
func (dp *dependencies) turn() {
	close(dp.change)
	dp.change = make(chan struct{})
}

// found takes in that a handler has found a dependency away. alone says that this node did not know. An event that is not believed changes nothing.
func (dp *dependencies) found(ctx context.Context, name string, said *finding, believed bool) (alone bool) {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	if dp.away[name] != nil {
		return false
	}
	if believed {
		dp.away[name] = &absence{until: time.Now().Add(dependency.Base), untold: said}
		dp.changed[name] = time.Now()
		dp.turn()
		dp.c.Logger.Warn("dependency is away: handlers that need it wait", "consumer", dp.c.Consumer, "dependency", name, "error", said.why)
		dp.tell(ctx)
	}
	return true
}

// blamed takes in a failure if it says that a dependency is away. alone is as in failure.History. An event is believed once: see Unavailable.
func (dp *dependencies) blamed(ctx context.Context, f *failure.Error, e holdfast.Event, h failure.History) (alone bool) {
	if f.Fault != failure.FaultUnavailable {
		return false
	}
	name, said, ok := dp.findingOf(f.Err, e)
	return ok && dp.found(ctx, name, said, h.Doubts == 0)
}

// tell tells the database what this node has found, in the background: the handler's worker goes on. The caller holds the mutex.
func (dp *dependencies) tell(ctx context.Context) {
	for name, a := range dp.away {
		if a.untold == nil || a.telling {
			continue
		}
		a.telling = true
		said := a.untold
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.Patience)
			defer cancel()
			err := dp.settle(ctx, []string{name}, said.why, func(s dependency.State, now time.Time) dependency.State {
				return s.Found(now, said.asked, dp.random())
			})
			dp.mu.Lock()
			a.telling = false
			if err == nil {
				a.untold = nil
			}
			dp.mu.Unlock()
			if err != nil {
				dp.transient(err)
			}
		}()
	}
}

// settle changes the rows of some dependencies as decide says, and what this node knows of them. why is that of an outage, "" to leave the last one.
func (dp *dependencies) settle(ctx context.Context, names []string, why string, decide func(s dependency.State, now time.Time) dependency.State) error {
	after := map[string]dependency.State{}
	var now time.Time
	err := dp.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, name := range slices.Sorted(slices.Values(names)) {
			var s dependency.State
			var tries int32
			row := tx.QueryRow(ctx, dp.sql.dependency, dp.c.Consumer, name)
			if err := row.Scan(&s.Away, (*plain.Micros)(&s.Since), (*plain.Micros)(&s.Until), &tries, (*plain.Micros)(&now)); err != nil {
				return fmt.Errorf("look what is known of the dependency %s: %w", name, err)
			}
			s.Tries = int(tries)
			s = decide(s, now)
			after[name] = s
			if _, err := tx.Exec(ctx, dp.sql.dependencyIs, dp.c.Consumer, name, s.Away, now.Sub(s.Since).Microseconds(), s.Until.Sub(now).Microseconds(), int32(s.Tries), why, dp.node); err != nil {
				return fmt.Errorf("write what is known of the dependency %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	for name, s := range after {
		dp.changed[name] = time.Now()
		dp.knows(name, s.Away, time.Now().Add(s.Until.Sub(now)))
	}
	dp.turn()
	return nil
}

// knows notes whether a dependency is away, and until when nobody tries it. The caller holds the mutex.
func (dp *dependencies) knows(name string, away bool, until time.Time) {
	a := dp.away[name]
	switch {
	case away && a != nil:
		a.until = until
	case away:
		dp.away[name] = &absence{until: until}
		dp.c.Logger.Warn("dependency is away: handlers that need it wait", "consumer", dp.c.Consumer, "dependency", name)
	case a != nil:
		delete(dp.away, name)
		dp.c.Logger.Info("dependency is back", "consumer", dp.c.Consumer, "dependency", name)
		dp.opened()
	}
}

// note takes in a look that began at began: what is away, and in how many microseconds an event tries it.
func (dp *dependencies) note(ctx context.Context, names []string, in []int64, began time.Time) {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	fresh := func(name string) bool {
		return !dp.changed[name].After(began) && (dp.away[name] == nil || dp.away[name].untold == nil)
	}
	for i, name := range names {
		if dp.needed(name) && fresh(name) {
			dp.knows(name, true, began.Add(time.Duration(in[i])*time.Microsecond))
		}
	}
	for name := range dp.away {
		if !slices.Contains(names, name) && fresh(name) {
			dp.knows(name, false, time.Time{})
		}
	}
	dp.tell(ctx)
	if len(dp.away) > 0 || len(names) > 0 {
		dp.turn()
	}
}

// needed reports that a handler of this node needs it.
func (dp *dependencies) needed(name string) bool {
	for _, k := range dp.kinds {
		if slices.Contains(k.needs, name) {
			return true
		}
	}
	return false
}

// try claims the right to try some dependencies for an event of this node, for a time. It is false if another node has it, or one of them is back.
func (dp *dependencies) try(ctx context.Context, names []string, lasts time.Duration) bool {
	got := 0
	err := dp.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, dp.sql.dependencyTry, dp.c.Consumer, names, lasts.Microseconds(), dp.node)
		if err != nil {
			return fmt.Errorf("claim the try of a dependency: %w", err)
		}
		if got = int(tag.RowsAffected()); got < len(names) {
			return errNoTry
		}
		return nil
	})
	if err != nil && !errors.Is(err, errNoTry) {
		dp.transient(err)
	}
	if err == nil {
		lasts += time.Second // Others may try it first if this node does not come to tell.
	} else {
		lasts = time.Second // A look will tell.
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	for _, name := range names {
		if a := dp.away[name]; a != nil {
			a.until = time.Now().Add(lasts)
		}
	}
	dp.turn()
	return err == nil
}

var errNoTry = errors.New("another node tries it, or it is back")

// tried takes in how the event ended that tried some dependencies. If that cannot be written, another event tries them later.
func (dp *dependencies) tried(ctx context.Context, names []string, s *claimed) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.Patience)
	defer cancel()
	settle := func(names []string, why string, decide func(s dependency.State, now time.Time) dependency.State) {
		if len(names) == 0 {
			return
		}
		if err := dp.settle(ctx, names, why, decide); err != nil {
			dp.transient(err)
		}
	}
	back := func(s dependency.State, now time.Time) dependency.State { return s.Back(now) }
	untold := func(s dependency.State, now time.Time) dependency.State { return s.Untold(now) }
	name, said, found := dp.findingOf(s.unavailable, s.e)
	switch {
	case s.handled:
		settle(names, "", back)
	case found && slices.Contains(names, name): // else what it found away is told by found
		settle([]string{name}, said.why, func(s dependency.State, now time.Time) dependency.State { return s.Tried(now, said.asked, dp.random()) })
		settle(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name }), "", untold)
	default:
		settle(names, "", untold)
	}
}
