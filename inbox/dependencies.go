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
	"github.com/holdfast-go/holdfast/internal/foreign"
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
// An event is believed once for each of its attempts, and whenever another one says the same and none was handled on this node between them. If
// it says so again on its own, although others that need the dependency were handled meanwhile, it waits alone, for up to 30 seconds each
// time, and its fifth time in a row spends an attempt.
func Unavailable(name string, err error) error {
	if err == nil || ofTheRequest(err) {
		return err
	}
	return &failure.UnavailableError{Name: name, Err: foreign.Error(err)}
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
// finds that it is back, or an event here has shown it. A look that began before this node knew better says nothing of that name, and a
// handler that began before it was back says nothing of what is now.
//
// An event that says so on its own is believed if nothing speaks against it (failure.History.Doubts), or if another one says so too and
// none was handled between them (worked). So bad events do not confirm each other while good ones come. It goes behind the first try
// (behind), so that it is not its own witness while there are others.
type dependencies struct {
	*env
	runner *runner
	opened func() // called when something is back: stored events may have become claimable

	mu      sync.Mutex
	away    map[string]*absence
	changed map[string]time.Time // when this node knew of a name last, from an event of its own
	doubted map[string]word      // who has said last that it is away, and was not believed, since an event was handled here that needs it
	last    map[string]word      // who has said last that it is away, and was
	change  chan struct{}        // closed when away changes, or a time in it
	news    []func()             // what unlock does without the mutex
	telling int                  // goroutines that tell the database
}

// absence is a dependency that is away.
type absence struct {
	until   time.Time // by this process's clock: then an event tries it
	admits  time.Time // then an event may be stored beyond MaxStored to try it
	untold  *finding  // the database does not know yet; nil if it does
	telling bool      // it is being told
	refused int       // how often in a row it was not told
}

// word is that of an event which has said that something is away.
type word struct {
	source, id string
	at         time.Time
}

// by reports that the word is that of the event.
func (w word) by(e holdfast.Event) bool { return w.source == e.Source && w.id == e.ID }

// finding is what a handler has said of a dependency.
type finding struct {
	why   string        // as in a log line: without what the error has of the event
	asked time.Duration // how long the dependency wants to be left alone
}

const (
	// seconded is how long the word of an event that was not believed speaks for another's.
	seconded = time.Minute

	// admitAfter is how long a try may be overdue before an event may be stored beyond MaxStored: none that is stored can make it.
	admitAfter = 2 * time.Second

	// maxUntold is how often the database may refuse what this node has found. From then on this node believes the database.
	maxUntold = 5
)

func newDependencies(env *env, runner *runner) *dependencies {
	return &dependencies{
		env:     env,
		runner:  runner,
		away:    map[string]*absence{},
		changed: map[string]time.Time{},
		doubted: map[string]word{},
		last:    map[string]word{},
		change:  make(chan struct{}),
	}
}

// unlock unlocks the mutex, and then does what must not be done under it: a log may be slow.
func (dp *dependencies) unlock() {
	news := dp.news
	dp.news = nil
	dp.mu.Unlock()
	for _, f := range news {
		f()
	}
}

// turn closes change and makes a new one. The caller holds the mutex.
func (dp *dependencies) turn() {
	close(dp.change)
	dp.change = make(chan struct{})
}

// goes notes that a dependency is away. said is what a handler here has found, nil if another node has. The caller holds the mutex, and
// calls unlock.
func (dp *dependencies) goes(name string, until time.Time, said *finding) {
	dp.away[name] = &absence{until: until, admits: until.Add(admitAfter), untold: said}
	delete(dp.doubted, name)
	dp.turn()
	attrs := []any{"consumer", dp.c.Consumer, "dependency", name}
	if said != nil {
		attrs = append(attrs, "error", said.why)
	}
	dp.news = append(dp.news, func() { dp.c.Logger.Warn("dependency is away: handlers that need it wait", attrs...) })
}

// returns notes that a dependency is back, if it was away. The caller holds the mutex, and calls unlock.
func (dp *dependencies) returns(name string) {
	if dp.away[name] == nil {
		return
	}
	delete(dp.away, name)
	dp.changed[name] = time.Now()
	dp.turn()
	dp.news = append(dp.news, dp.opened, func() {
		dp.c.Logger.Info("dependency is back", "consumer", dp.c.Consumer, "dependency", name)
	})
}

// waitsUntil notes when a dependency that is away is tried next. The caller holds the mutex.
func (dp *dependencies) waitsUntil(a *absence, until time.Time) {
	if !a.until.Equal(until) {
		a.until, a.admits = until, until.Add(admitAfter)
		dp.turn()
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
		switch last := dp.tryAt(t); {
		case last.IsZero():
		case !last.After(now):
			due = append(due, t)
		case next.IsZero() || last.Before(next):
			next = last
		}
	}
	return due, next, dp.change
}

// tryAt is when an event of the type may try what it needs: all that is away. It is zero if nothing is. The caller holds the mutex.
func (dp *dependencies) tryAt(eventType string) (last time.Time) {
	for _, name := range dp.lacks(dp.kinds[eventType].needs) {
		if a := dp.away[name]; last.Before(a.until) {
			last = a.until
		}
	}
	return last
}

// behind is how long an event of the type waits that has found something away: until others may have tried it.
func (dp *dependencies) behind(eventType string) time.Duration {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	at := dp.tryAt(eventType)
	if at.IsZero() {
		return 0
	}
	return max(time.Until(at), 0) + dependency.Base
}

// admits reports that an event of the type may be stored though too many are: it needs something that is away, and none that is stored has
// tried it. The next one may later.
func (dp *dependencies) admits(eventType string) bool {
	dp.mu.Lock()
	defer dp.mu.Unlock()
	names, now := dp.lacks(dp.kinds[eventType].needs), time.Now()
	if len(names) == 0 || slices.ContainsFunc(names, func(name string) bool { return now.Before(dp.away[name].admits) }) {
		return false
	}
	for _, name := range names {
		dp.away[name].admits = now.Add(2 * admitAfter)
	}
	return true
}

// blamed takes in a failure if it says that a dependency is away. es are the events of its transaction. alone is as in failure.History:
// nobody knew, and what the handler saw is not over.
func (dp *dependencies) blamed(ctx context.Context, f *failure.Error, es []holdfast.Event, h failure.History) (alone bool) {
	if f.Fault != failure.FaultUnavailable {
		return false
	}
	name, said, began := dp.findingOf(f.Err, es)
	e := es[0]
	dp.mu.Lock()
	defer dp.unlock()
	now := time.Now()
	if a := dp.away[name]; a != nil {
		if asked := now.Add(min(said.asked, dependency.MaxAsked)); a.untold == nil && asked.After(a.until.Add(dependency.Base)) {
			a.untold = said
			dp.waitsUntil(a, asked)
			dp.tell(ctx)
		}
		return false
	}
	if began.Before(dp.changed[name]) {
		return false // It was away, and is back.
	}
	other, known := dp.doubted[name]
	if h.Doubts > 0 && (!known || other.by(e) || now.Sub(other.at) > seconded) {
		dp.doubted[name] = word{e.Source, e.ID, now}
		return true
	}
	dp.last[name] = word{e.Source, e.ID, now}
	dp.goes(name, now.Add(dependency.Base), said)
	dp.changed[name] = now
	dp.tell(ctx)
	return true
}

// worked notes that a handler of the type has succeeded which began at began: all that it needs was there then. So the word that an event
// had said before, and that was not believed, speaks for no other's any more.
func (dp *dependencies) worked(eventType string, began time.Time) {
	needs := dp.kinds[eventType].needs
	if len(needs) == 0 {
		return
	}
	dp.mu.Lock()
	defer dp.mu.Unlock()
	for _, name := range needs {
		if !dp.doubted[name].at.After(began) {
			delete(dp.doubted, name)
		}
	}
}

// findingOf is what a handler has said by err of events, of which dependency, and when it began.
func (dp *dependencies) findingOf(err error, es []holdfast.Event) (name string, said *finding, began time.Time) {
	var u *failure.UnavailableError
	if !errors.As(err, &u) {
		return "", nil, began
	}
	said = &finding{}
	said.asked, _ = retry.AfterOf(err)
	if len(es) == 1 {
		said.why = dp.cause(u.Err, es[0])
	} else { // Nobody knows whose values it has.
		said.why = oneLine(WithholdError(u.Err))
	}
	said.why = cmp.Or(said.why, failure.ClassOf(u.Err))
	var h *failure.HandlerError
	if errors.As(err, &h) {
		began = h.Began
	}
	return u.Name, said, began
}

// tell tells the database what this node has found, in the background: the handler's worker goes on. The caller holds the mutex.
func (dp *dependencies) tell(ctx context.Context) {
	for name, a := range dp.away {
		if a.untold == nil || a.telling {
			continue
		}
		a.telling = true
		said := a.untold
		dp.telling++
		go func() {
			longer, end := loop.WithGrace(ctx, finishTimeout)
			defer end()
			bounded, cancel := context.WithTimeout(longer, loop.Patience)
			defer cancel()
			err := dp.settle(bounded, []string{name}, func(_ string, s dependency.State, now time.Time) (dependency.State, string) {
				return s.Found(now, said.asked, dp.random()), said.why
			})
			dp.mu.Lock()
			a.telling = false
			switch {
			case err == nil && a.untold == said:
				a.untold, a.refused = nil, 0
			case err != nil:
				if a.refused++; a.refused >= maxUntold {
					a.untold = nil
				}
			}
			dp.telling--
			dp.turn()
			dp.unlock()
			if err != nil {
				dp.transient(err)
			}
		}()
	}
}

// told waits until what this node has found is told, or given up: finishTimeout after a stop at the latest.
func (dp *dependencies) told() {
	for {
		dp.mu.Lock()
		busy, change := dp.telling > 0, dp.change
		dp.mu.Unlock()
		if !busy {
			return
		}
		<-change
	}
}

// settle changes the rows of some dependencies as decide says, and what this node knows of them. The text is why one is away, "" to leave the last one.
func (dp *dependencies) settle(ctx context.Context, names []string, decide func(name string, s dependency.State, now time.Time) (dependency.State, string)) error {
	after := map[string]dependency.State{}
	var now time.Time
	err := dp.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, name := range slices.Sorted(slices.Values(names)) { // the order of dependencyTry
			var s dependency.State
			var tries int32
			row := tx.QueryRow(ctx, dp.sql.dependency, dp.c.Consumer, name)
			if err := row.Scan(&s.Away, (*plain.Micros)(&s.Since), (*plain.Micros)(&s.Until), &tries, (*plain.Micros)(&now)); err != nil {
				return fmt.Errorf("look what is known of the dependency %s: %w", name, err)
			}
			s.Tries = int(tries)
			s, why := decide(name, s, now)
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
	defer dp.unlock()
	for name, s := range after {
		dp.changed[name] = time.Now()
		dp.knows(name, s.Away, time.Now().Add(s.Until.Sub(now)))
	}
	return nil
}

// knows notes what the database says of a dependency. The caller holds the mutex, and calls unlock.
func (dp *dependencies) knows(name string, away bool, until time.Time) {
	switch a := dp.away[name]; {
	case !away:
		dp.returns(name)
	case a != nil:
		dp.waitsUntil(a, until)
	default:
		dp.goes(name, until, nil)
	}
}

// note takes in a look that began at began: what is away, and in how many microseconds an event tries it.
func (dp *dependencies) note(ctx context.Context, names []string, in []int64, began time.Time) {
	dp.mu.Lock()
	defer dp.unlock()
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
	err := dp.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, dp.sql.dependencyTry, dp.c.Consumer, names, lasts.Microseconds(), dp.node)
		switch {
		case err != nil:
			return fmt.Errorf("claim the try of a dependency: %w", err)
		case int(tag.RowsAffected()) < len(names):
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
	defer dp.unlock()
	for _, name := range names {
		if a := dp.away[name]; a != nil {
			dp.waitsUntil(a, time.Now().Add(lasts))
		}
	}
	return err == nil
}

var errNoTry = errors.New("another node tries it, or it is back")

// tried writes how the event ended that tried some dependencies: failed is its handler's error, nil if it was handled. If that cannot be
// written, another event tries them when the claim of the try has ended.
func (dp *dependencies) tried(ctx context.Context, names []string, e holdfast.Event, failed error, handled bool) {
	longer, end := loop.WithGrace(ctx, finishTimeout)
	defer end()
	ctx, cancel := context.WithTimeout(longer, loop.Patience)
	defer cancel()
	name, said, _ := dp.findingOf(failed, []holdfast.Event{e})
	dp.mu.Lock()
	alone := dp.last[name].by(e)
	if said != nil {
		dp.last[name] = word{e.Source, e.ID, time.Now()}
	}
	dp.mu.Unlock()
	for wait := 0; ; wait++ {
		err := dp.settle(ctx, names, func(of string, s dependency.State, now time.Time) (dependency.State, string) {
			switch {
			case handled:
				return s.Back(now), ""
			case said != nil && of == name:
				return s.Tried(now, said.asked, alone, dp.random()), said.why
			default:
				return s.Unproven(now), ""
			}
		})
		if err == nil || poolClosed(err) {
			return
		}
		dp.transient(err)
		if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait+1, dp.random())) != nil {
			return
		}
	}
}
