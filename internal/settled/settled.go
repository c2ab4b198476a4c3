// Package settled lets callers wait until a consumer has settled an event: until its row in the inbox says what became of it.
//
// However many callers of a process wait, one statement at a time asks for all of them that are on one pool. It asks for an event when somebody
// begins to wait for it, and when an inbox of this process has just settled it (Tell). Otherwise it asks again after an eighth of the time that its last
// caller has waited, within soonest and latest: so an answer from another process comes an eighth later than it could, and a long wait costs little. Whatever
// the number of callers, statements take at most a tenth of the time: a database that is slow is asked less often.
//
// What Tell says is a hint, which may be wrong or lost. Only the row counts: it becomes visible with all that its handler has written.
package settled

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/rights"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Event names an event in a consumer.
type Event struct{ Consumer, Source, ID string }

const (
	soonest = 5 * time.Millisecond   // until the next look at an event of which nothing is told
	latest  = 100 * time.Millisecond // the same, at most
	share   = 8                      // it follows after this part of the time that the last caller has waited

	most    = 1000            // events of a look
	timeout = 5 * time.Second // of a look
)

// Stored is the result of an event that waits in the consumer. All others but "" are final.
const Stored = "stored"

// final says that a result of the table inbox will not change by itself.
func final(result string) bool { return result != "" && result != Stored }

var (
	mu      sync.Mutex
	rooms   = map[place]*room{} // each has a goroutine
	waiting atomic.Int64        // groups in all rooms
)

// place is what one statement can ask.
type place struct {
	pool   *pgxpool.Pool
	schema string
}

// room has all who wait on a place. mu guards what it holds.
type room struct {
	place
	of     map[Event]*group
	sooner map[Event]bool // those to look at before all others, and at once
	scan   time.Time      // before that none of the others is due
	wake   chan struct{}  // has an element when there is something in sooner, or nobody waits any more
	giveUp func()         // ends the look that is under way; nil if none is

	sql string // of a look
	db  plain.Pool
}

// group are the callers who wait for an event. What a look has found is as of the last one.
type group struct {
	callers int
	began   time.Time     // when the last of them began to wait
	told    time.Time     // when Tell last said that it is settled
	next    time.Time     // when to look again
	result  string        // as in the table inbox; "" if it has no row
	err     error         // of the look
	end     chan struct{} // closed when result is final, or err is
}

// Wait returns what the inbox says of an event when that is final. When ctx ends it returns what it said last, and an error that wraps the cause.
// Other errors are those that waiting does not mend. Many goroutines may call it at once.
func Wait(ctx context.Context, pool *pgxpool.Pool, schema string, e Event) (result string, err error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	r, g := enter(place{pool, schema}, e, time.Now())
	defer leave(r, e, g)
	select {
	case <-g.end:
		return g.result, g.err // Nobody changes a group that has ended.
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	switch {
	case final(g.result): // just now
		return g.result, nil
	case g.err != nil:
		return g.result, fmt.Errorf("%w; the last look at it failed: %w", context.Cause(ctx), g.err)
	}
	return g.result, context.Cause(ctx)
}

// Tell says that an inbox of this process has settled an event, or is about to. It costs next to nothing while nobody waits.
func Tell(consumer, source, id string) {
	if waiting.Load() == 0 {
		return
	}
	e := Event{consumer, source, id}
	mu.Lock()
	defer mu.Unlock()
	for _, r := range rooms {
		if g := r.of[e]; g != nil {
			g.told = time.Now()
			r.hurry(e)
		}
	}
}

// hurry has an event looked at at once. The caller holds mu.
func (r *room) hurry(e Event) {
	r.sooner[e] = true
	r.nudge()
}

func (r *room) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func newRoom(p place) *room {
	return &room{
		place:  p,
		of:     map[Event]*group{},
		sooner: map[Event]bool{},
		wake:   make(chan struct{}, 1),
		sql:    sqlschema.In(p.schema, lookUp),
		db:     plain.Of(p.pool),
	}
}

func enter(p place, e Event, now time.Time) (*room, *group) {
	mu.Lock()
	defer mu.Unlock()
	r := rooms[p]
	if r == nil {
		r = newRoom(p)
		rooms[p] = r
		defer func() { go r.run() }()
	}
	g := r.of[e]
	if g == nil {
		g = &group{end: make(chan struct{})}
		r.of[e] = g
		waiting.Add(1)
	}
	g.callers++
	g.began, g.next = now, now
	r.hurry(e)
	return r, g
}

func leave(r *room, e Event, g *group) {
	mu.Lock()
	defer mu.Unlock()
	if g.callers--; g.callers == 0 && r.of[e] == g {
		r.remove(e)
	}
}

// remove forgets a group. The caller holds mu.
func (r *room) remove(e Event) {
	delete(r.of, e)
	delete(r.sooner, e)
	waiting.Add(-1)
	if len(r.of) > 0 {
		return
	}
	r.nudge()
	if r.giveUp != nil {
		r.giveUp()
	}
}

// run looks for all who wait until nobody does.
func (r *room) run() {
	for {
		events, rest, ended := r.due(time.Now())
		switch {
		case ended:
			return
		case len(events) == 0:
			t := time.NewTimer(rest)
			select {
			case <-t.C:
			case <-r.wake:
			}
			t.Stop()
			continue
		}
		begun := time.Now()
		found, err := r.look(events)
		now := time.Now()
		r.took(events, found, err, begun, now)
		time.Sleep(between(now.Sub(begun)))
	}
}

// between is how long a room rests after a look that took so long.
func between(took time.Duration) time.Duration {
	return min(max(9*took, soonest), time.Second)
}

// due are the events to look at now, or else how long there is none. ended says that nobody waits: the room is closed.
func (r *room) due(now time.Time) (events []Event, rest time.Duration, ended bool) {
	mu.Lock()
	defer mu.Unlock()
	if len(r.of) == 0 {
		delete(rooms, r.place)
		return nil, 0, true
	}
	for e := range r.sooner {
		if len(events) == most {
			return events, 0, false
		}
		delete(r.sooner, e)
		r.of[e].next = now.Add(timeout) // until took says when
		events = append(events, e)
	}
	if len(events) == 0 && now.Before(r.scan) {
		return nil, r.scan.Sub(now), false
	}
	r.scan = now.Add(latest)
	for e, g := range r.of {
		wait := g.next.Sub(now)
		switch {
		case wait > pause(now.Sub(g.began), false)/2: // One that is nearly due goes along: many waits would have a look each otherwise.
			r.scan = earlier(r.scan, g.next)
		case len(events) == most:
			r.scan = now
		default:
			g.next = now.Add(timeout)
			events = append(events, e)
		}
	}
	return events, r.scan.Sub(now), false
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// took takes in a look. A group for which something was told since it begun is looked at again at once.
func (r *room) took(events []Event, found []finding, err error, begun, now time.Time) {
	mu.Lock()
	defer mu.Unlock()
	for i, e := range events {
		g := r.of[e]
		if g == nil {
			continue
		}
		if g.err = err; err == nil {
			g.result, g.err = found[i].result, found[i].err
		}
		if final(g.result) || g.err != nil && lasts(g.err) {
			r.remove(e)
			close(g.end)
			continue
		}
		g.next = now.Add(pause(now.Sub(g.began), err != nil))
		r.scan = earlier(r.scan, g.next)
		if g.told.After(begun) {
			r.hurry(e)
		}
	}
}

// pause is how long after a look the next one at the event follows, whose last caller has waited for some time.
func pause(waited time.Duration, failed bool) time.Duration {
	if failed {
		return latest
	}
	return min(max(waited/share, soonest), latest)
}

// lasts says that waiting does not mend an error: something is missing, the server refuses such a statement (a standby does where transactions are
// serializable by default), or nobody can ask any more.
func lasts(err error) bool {
	var server *pgconn.PgError
	return errors.Is(err, sqlschema.ErrMissing) || errors.Is(err, sqlschema.ErrVersion) || errors.Is(err, sqlschema.ErrNoRights) ||
		errors.Is(err, puddle.ErrClosedPool) || errors.As(err, &server) && server.Code == "0A000"
}

// lookUp tells what the inbox says of events: $1 their consumers, $2 sources and $3 ids. It reads a row of each by the primary key. It also tells whether the
// user may see rows of the consumer: row level security hides them without an error.
const lookUp = `-- settled.look_up
select w.n::integer, coalesce(i.result, ''), coalesce(w.consumer = any ((select holdfast.own_consumers())::text[]), true)
  from unnest($1::text[], $2::text[], $3::text[]) with ordinality w(consumer, source, event_id, n)
  left join lateral (select m.result from holdfast.inbox m where m.consumer = w.consumer and m.source = w.source and m.event_id = w.event_id offset 0) i on true`

// finding is what a look has found of an event.
type finding struct {
	result string // "" without a row
	err    error  // the user may not see the consumer's rows
}

// look asks what became of events.
func (r *room) look(events []Event) ([]finding, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // not that of a caller, who may leave
	defer cancel()
	if !r.begin(cancel) {
		return nil, errNobody
	}
	defer r.begin(nil)
	consumers, sources, ids := make([]string, len(events)), make([]string, len(events)), make([]string, len(events))
	for i, e := range events {
		consumers[i], sources[i], ids[i] = e.Consumer, e.Source, e.ID
	}
	found := make([]finding, len(events))
	rows, err := r.db.Query(ctx, r.sql, consumers, sources, ids)
	if err == nil {
		var n int32
		var result string
		var own bool
		_, err = pgx.ForEachRow(rows, []any{&n, &result, &own}, func() error {
			found[n-1].result = result
			if !own {
				found[n-1].err = fmt.Errorf("%w: the database user is bound to other consumers than %s (consumer_binding)", sqlschema.ErrNoRights, consumers[n-1])
			}
			return nil
		})
	}
	switch {
	case err == nil:
		return found, nil
	case ctx.Err() != nil: // It must not look like the caller's own time.
		return nil, fmt.Errorf("no answer within %s: %v", timeout, err)
	}
	err = sqlschema.Explain(err, "grant holdfast_consumer, or usage of the schema and select (consumer, source, event_id, result) on the table inbox")
	if errors.Is(err, sqlschema.ErrNoRights) {
		return nil, r.refused(ctx, err)
	}
	return nil, err
}

var errNobody = errors.New("nobody waits any more")

// begin notes how the look that begins can be ended, nil at its end. It is false if nobody waits any more.
func (r *room) begin(giveUp func()) bool {
	mu.Lock()
	defer mu.Unlock()
	r.giveUp = giveUp
	return len(r.of) > 0
}

// needed are the rights that a look needs.
var needed = []rights.Right{{Privileges: "select", Objects: "inbox", Columns: "consumer, source, event_id, result"}}

// checks has the *rights.Checks of each place in which a look was refused. Each keeps what it has found for a second, so that no number of callers
// without a right costs more than that.
var checks sync.Map

// refused tells a role that lacks a right from a connection that somebody has left with another role. Such a one gets its own back, and the look is made
// again.
func (r *room) refused(ctx context.Context, err error) error {
	c, _ := checks.LoadOrStore(r.place, &rights.Checks{
		Pool:   r.pool,
		Schema: r.schema,
		Rights: needed,
		Logger: slog.Default(),
	})
	lack, unknown := c.(*rights.Checks).Lacking(ctx)
	if unknown == nil && len(lack) > 0 {
		return fmt.Errorf("%w; it lacks: %s", err, strings.Join(lack, ", "))
	}
	return fmt.Errorf("a connection has another role: %v", err)
}
