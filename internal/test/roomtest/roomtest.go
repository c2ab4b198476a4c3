// Package roomtest has what a waiting room promises, whoever keeps it: a lane for its parked events (package relay), a consumer for its
// stored ones (package inbox). The events of a key are tried in their order, one at a time; what fails waits for its time, and the
// others behind it; a dead letter holds what came after it; a replay has the place of its event; and a person may do what a
// person may do at any moment.
//
// A queue is the model of one key (queue.go). Run takes random steps on a room and on the model, and compares what they say after each.
package roomtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/waiting"
)

// Topic is that of all events.
const Topic = "orders"

// Room is a waiting room on a database, with the code of its side. Each method is a step of that code, and ends the test if the step fails.
type Room interface {
	// Arrive brings an event, which fails if it is tried and fails says so: then it waits for its time. It returns whether it was tried.
	// Else it waits at the end of the queue of its key.
	Arrive(key, id string, fails bool) (tried bool)

	// Take takes what is due, by key: of each the first event, and maybe some that follow it, to be tried after it.
	Take() map[string][]string

	// Settle ends what Take has taken of a key: each event has its outcome, where nothing comes after one that is not done but what was not
	// tried. It returns the outcomes that they had in fact, and what was taken of the key in the same breath.
	Settle(key string, outcomes []Outcome) (had []Outcome, next []string)

	// Replayed runs after a person has replayed a dead letter.
	Replayed(key, id string)

	// Paused runs after a person has paused or resumed a key.
	Paused()

	// Return ends it that the topic or partition takes nothing.
	Return()

	// Restart begins anew with what the database has. Nothing is taken then. It returns whether what was taken was lost with the process that
	// had it, so that the room counts that as a try, and whether the topic or partition is still known to take nothing.
	Restart() (lost, away bool)
}

// Side says whose room it is, and what it does in its own way.
type Side struct {
	Consumer  string // empty for relays
	TakesMore bool   // it takes what follows together with the first, and then lets nobody touch the others of the key
	Superset  bool   // an event may wait though nothing is before it: it is due then
	Free      bool   // dead letters hold no key
	GoesAway  bool   // its topic or partition may take nothing
	OneByOne  bool   // people can pause a key, and give up one event or the replay of a letter
}

// filter selects all that waits in the room.
func (s Side) filter() waiting.Filter {
	if s.Consumer == "" {
		return waiting.Filter{Origin: dlq.OriginRelay}
	}
	return waiting.Filter{Consumer: s.Consumer}
}

// Run takes steps on a room.
func Run(t *testing.T, db *pgtest.DB, side Side, room Room, seed uint64, steps int) {
	t.Helper()
	w, err := waiting.New(db.Pool, waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	letters, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{T: t, db: db, side: side, room: room, people: w, letters: letters, rng: rand.New(rand.NewPCG(seed, 0)), queues: map[string]*queue{}, taken: map[string][]string{}}
	for _, key := range keys {
		r.queues[key] = &queue{letters: map[string]letter{}, free: side.Free}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("after:\n%s", strings.Join(r.log, "\n"))
		}
	})
	for range steps {
		r.step()
		r.compare()
	}
	r.drain()
}

var keys = []string{"a", "b"}

// run is a room beside its model.
type run struct {
	*testing.T
	db      *pgtest.DB
	side    Side
	room    Room
	people  *waiting.Room
	letters *dlq.DLQ
	rng     *rand.Rand

	queues map[string]*queue
	taken  map[string][]string
	ids    int
	log    []string
	left   int // events that have left by other ways than by being done
	done   int
}

func (r *run) note(format string, args ...any) { r.log = append(r.log, fmt.Sprintf(format, args...)) }

func (r *run) fail(format string, args ...any) {
	r.Helper()
	r.Fatalf(format, args...)
}

// step takes one of the steps that make a difference now, the frequent ones more often.
func (r *run) step() {
	key := keys[r.rng.IntN(len(keys))]
	q := r.queues[key]
	var steps []func()
	may := func(times int, do func()) { steps = append(steps, slices.Repeat([]func(){do}, times)...) }
	if len(q.events) < 6 {
		may(4, func() { r.arrive(key, r.rng.IntN(2) == 0) })
	}
	may(1, r.take)
	if _, due := q.next(); due != no {
		may(8, r.take)
	}
	if n := len(r.taken[key]); n > 0 {
		may(8, func() { r.settle(key, r.outcomes(n)) })
	}
	if len(q.events) > 0 && q.events[0].waits != no {
		may(2, func() { r.retry(key) })
	}
	if len(q.events) > 0 && (q.taken() == "" || !r.side.TakesMore) {
		may(1, func() { r.giveUp(key, "", r.rng.IntN(4) == 0) })
	}
	if len(q.events) > 0 && r.side.OneByOne {
		may(2, func() { r.giveUp(key, q.events[r.rng.IntN(len(q.events))].id, r.rng.IntN(4) == 0) })
	}
	if len(q.letters) > 0 {
		may(4, func() { r.letter(key, true) })
		may(1, func() { r.letter(key, false) })
	}
	if r.side.OneByOne {
		may(1, func() { r.pause(key, !q.paused) })
	}
	if q.away {
		may(6, r.comeBack)
	}
	may(1, r.restart)
	steps[r.rng.IntN(len(steps))]()
}

// outcomes are random: the later ones of a call are not tried after one that is not done.
func (r *run) outcomes(n int) (all []Outcome) {
	for len(all) < n {
		o := []Outcome{Done, Done, Done, Later, Later, Dead, Dead, Back, Away}[r.rng.IntN(9)]
		if o == Away && !r.side.GoesAway {
			o = Back
		}
		if all = append(all, o); o != Done {
			return append(all, slices.Repeat([]Outcome{Back}, n-len(all))...)
		}
	}
	return all
}

func (r *run) arrive(key string, fails bool) {
	r.Helper()
	r.ids++
	id, q := fmt.Sprintf("%s%d", key, r.ids), r.queues[key]
	tried := r.room.Arrive(key, id, fails)
	r.note("%s arrives, fails: %v; tried: %v", id, fails, tried)
	switch occupied := q.occupied(); {
	case tried && occupied:
		r.fail("%s was tried, and something of its key is before it", id)
	case !tried && !occupied && !r.side.Superset:
		r.fail("%s waits, and nothing of its key is before it", id)
	case !tried:
		q.enter(id, no)
	case fails:
		q.enter(id, yes)
	default:
		q.came++
		r.done++
	}
}

func (r *run) take() {
	r.Helper()
	got := r.room.Take()
	r.note("taken: %v", got)
	for _, key := range keys {
		id, due := r.queues[key].next()
		switch ids := got[key]; {
		case len(ids) == 0 && due == yes:
			r.fail("%s is due, and was not taken", id)
		case len(ids) == 0:
		case due == no || ids[0] != id:
			r.fail("of the key %s %v was taken, due is %q (%d)", key, ids, id, due)
		default:
			r.takes(key, ids)
		}
	}
}

// takes notes what was taken of a key.
func (r *run) takes(key string, ids []string) {
	r.Helper()
	q := r.queues[key]
	for i, id := range ids {
		if i > 0 && !q.follows(ids[i-1], id) {
			r.fail("of the key %s %v was taken, where %s does not follow", key, ids, id)
		}
	}
	for _, id := range ids {
		q.events[q.index(id)].taken = true
	}
	r.taken[key] = ids
}

func (r *run) settle(key string, outcomes []Outcome) {
	r.Helper()
	q, ids := r.queues[key], r.taken[key]
	delete(r.taken, key)
	had, next := r.room.Settle(key, outcomes)
	r.note("settled: %v, to be %v: %v, then taken: %v", ids, outcomes, had, next)
	for i, id := range ids {
		first := q.index(id) == 0
		if had[i] != outcomes[i] && (first || had[i] != Back) {
			r.fail("%s is %q, want %q", id, had[i], outcomes[i])
		}
		if !first && had[i] == Done && !r.side.TakesMore {
			r.fail("%s is done, and a replay is before it", id)
		}
		if had[i] == Done {
			r.done++
		}
		q.settle(id, had[i])
		for _, other := range r.queues {
			other.away = other.away || q.away
		}
	}
	if len(next) == 0 {
		return
	}
	if id, due := q.next(); id != next[0] || due == no {
		r.fail("of the key %s %v was taken, due is %q (%d)", key, next, id, due)
	}
	r.takes(key, next)
}

var signed = waiting.Options{By: "ann", Reason: "a test"}

// of is the filter for a key.
func (r *run) of(key string) waiting.Filter {
	f := r.side.filter()
	f.Topic, f.Key = Topic, key
	return f
}

func (r *run) retry(key string) {
	r.Helper()
	r.note("a person retries %s", key)
	if _, err := r.people.Retry(r.Context(), r.of(key), signed); err != nil && !errors.Is(err, waiting.ErrNotFound) {
		r.fail("retry %s: %v", key, err)
	}
	r.queues[key].retry()
}

// giveUp has a person give up what waits of a key, or one event of it.
func (r *run) giveUp(key, id string, discard bool) {
	r.Helper()
	q, f := r.queues[key], r.of(key)
	f.EventID = id
	do := r.people.GiveUp
	if discard {
		do = r.people.Discard
	}
	n, err := do(r.Context(), f, signed)
	r.note("a person gives up %s %s: %d events, discarded: %v", key, id, n, discard)
	if err != nil && !errors.Is(err, waiting.ErrNotFound) {
		r.fail("give up %s: %v", key, err)
	}
	for _, e := range slices.Clone(q.events) {
		if e.taken || id != "" && e.id != id {
			continue
		}
		if n--; discard {
			q.discard(e.id)
			r.left++
		} else {
			q.giveUp(e.id)
		}
	}
	if n != 0 {
		r.fail("%d more than wait without anybody working on them", n)
	}
}

// letter has a person replay or discard a dead letter of a key. A letter whose replay waits can be discarded one by one.
func (r *run) letter(key string, replay bool) {
	r.Helper()
	q := r.queues[key]
	var open []string
	for id, l := range q.letters {
		if i := q.index(id); !l.replaying || !replay && r.side.OneByOne && !q.events[i].taken {
			open = append(open, id)
		}
	}
	if len(open) == 0 {
		return
	}
	slices.Sort(open)
	id := open[r.rng.IntN(len(open))]
	letter := pgtest.Count(r, r.db, "select id from holdfast.letter where event_id = $1", id)
	r.note("a person closes the letter of %s, to be replayed: %v", id, replay)
	if !replay {
		if err := r.letters.Discard(r.Context(), letter, "ann", "a test"); err != nil {
			r.fail("discard: %v", err)
		}
		q.discard(id)
		r.left++
		return
	}
	if n, err := r.letters.Replay(r.Context(), dlq.Filter{EventID: id}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		r.fail("replay: %d, %v", n, err)
	}
	q.replay(id)
	r.room.Replayed(key, id)
}

func (r *run) pause(key string, pause bool) {
	r.Helper()
	r.note("a person pauses %s: %v", key, pause)
	do := r.people.Resume
	if pause {
		do = r.people.Pause
	}
	if changed, err := do(r.Context(), waiting.Pausable{Consumer: r.side.Consumer, Topic: Topic, Key: key}, "ann", "a test"); !changed || err != nil {
		r.fail("pause or resume: %v, %v", changed, err)
	}
	r.queues[key].paused = pause
	r.room.Paused()
}

func (r *run) restart() {
	r.Helper()
	lost, away := r.room.Restart()
	r.note("restart, and what was taken was lost: %v; away: %v", lost, away)
	clear(r.taken)
	for _, q := range r.queues {
		q.away = away
		for i := range q.events {
			e := &q.events[i]
			e.lost = e.lost || e.taken && lost
			e.taken = false
		}
	}
}

// comeBack has the topic take events again.
func (r *run) comeBack() {
	r.Helper()
	r.note("the topic takes events again")
	r.room.Return()
	for _, q := range r.queues {
		q.away = false
	}
}

// compare looks at the list that people read.
func (r *run) compare() {
	r.Helper()
	events, err := r.people.List(r.Context(), r.side.filter())
	if err != nil {
		r.fail("list: %v", err)
	}
	got := map[string][]string{}
	for i := range events {
		e := &events[i]
		if e.Head != (len(got[e.Event.Key]) == 0) {
			r.fail("%s heads its key: %v", e.Event.ID, e.Head)
		}
		got[e.Event.Key] = append(got[e.Event.Key], e.Event.ID)
		r.compareWhy(e)
	}
	for _, key := range keys {
		var want []string
		for _, e := range r.queues[key].events {
			want = append(want, e.id)
		}
		if !slices.Equal(got[key], want) {
			r.fail("of the key %s %v wait, want %v", key, got[key], want)
		}
	}
}

func (r *run) compareWhy(w *waiting.Event) {
	r.Helper()
	q := r.queues[w.Event.Key]
	i := q.index(w.Event.ID)
	if i < 0 {
		r.fail("%s waits, and should not", w.Event.ID)
	}
	e := q.events[i]
	var want waiting.Why
	switch {
	case e.taken || q.away:
		return
	case q.paused && !e.replay:
		want = waiting.Paused
	case i > 0:
		want = waiting.BehindEvent
	case q.held(e):
		want = waiting.BehindLetter
	case e.waits == either:
		return
	case e.waits == yes:
		want = waiting.Failed
	}
	if w.Why != want {
		r.fail("%s waits for %q, want %q", e.id, w.Why, want)
	}
}

// drain ends everything that waits: each event is done, or was discarded.
func (r *run) drain() {
	r.Helper()
	r.note("drain")
	for round := 0; ; round++ {
		waits := 0
		for _, key := range keys {
			q := r.queues[key]
			if q.paused {
				r.pause(key, false)
			}
			if q.away {
				r.comeBack()
			}
			for id, l := range q.letters {
				if waits++; !l.replaying {
					r.letter(key, id < "b") // replays those of a, discards the others
					break
				}
			}
			waits += len(q.events)
			r.retry(key)
		}
		if waits == 0 {
			break
		}
		if round > 1000 {
			r.fail("%d events still wait", waits)
		}
		r.take()
		for key, ids := range r.taken {
			r.settle(key, slices.Repeat([]Outcome{Done}, len(ids)))
		}
		r.compare()
	}
	if r.done+r.left != r.ids {
		r.fail("%d events were done and %d discarded, want %d together", r.done, r.left, r.ids)
	}
	if n := pgtest.Count(r, r.db, "select count(*) from holdfast.letter where state in ('open', 'replaying')"); n != 0 {
		r.fail("%d letters are still open", n)
	}
}
