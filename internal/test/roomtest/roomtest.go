// Package roomtest has what a waiting room promises, whoever keeps it: a lane for its parked events (package relay), a consumer for its
// stored ones (package inbox). The events of a key are tried in their order, one at a time; what fails waits for its time, and the
// others behind it; a dead letter holds what came after it; a replay has the place of its event; and a person may do what a
// person may do at any moment.
//
// A queue is the model of one key (queue.go). A Play takes steps on a room and on the model, random ones or those of a test, and compares what they
// say after each.
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
	// tried. It returns the outcomes that they had, which the room may have decided otherwise, and what was taken of the key in the same breath.
	Settle(key string, outcomes []Outcome) (had []Outcome, next []string)

	// Replayed runs after a person has replayed a dead letter.
	Replayed(key, id string)

	// Paused runs after a person has paused or resumed a key.
	Paused()

	// Return ends it that the topic or partition takes nothing.
	Return()

	// Restart begins anew with what the database has. Nothing is taken then. lost says that the room counts what was taken as tried, because
	// nobody knows what became of it. away says that the topic or partition is still known to take nothing.
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

// New returns a room without events beside its model. Each of its methods takes a step on both, and fails the test if they differ then.
func New(t *testing.T, db *pgtest.DB, side Side, room Room) *Play {
	t.Helper()
	w, err := waiting.New(db.Pool, waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	letters, err := dlq.New(db.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Play{
		T:       t,
		db:      db,
		side:    side,
		room:    room,
		people:  w,
		letters: letters,
		queues:  map[string]*queue{},
		taken:   map[string][]string{},
	}
	for _, key := range keys {
		p.queues[key] = &queue{letters: map[string]letter{}, free: side.Free}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("after:\n%s", strings.Join(p.log, "\n"))
		}
	})
	return p
}

// Random takes random steps, and then has all that waits be done.
func (p *Play) Random(seed uint64) {
	p.Helper()
	steps := 3000
	if testing.Short() {
		steps = 300
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	for range steps {
		p.step(rng)
	}
	p.drain()
}

var keys = []string{"a", "b"}

// Play is a room beside its model.
type Play struct {
	*testing.T
	db      *pgtest.DB
	side    Side
	room    Room
	people  *waiting.Room
	letters *dlq.DLQ

	queues map[string]*queue
	taken  map[string][]string
	ids    int
	log    []string
	left   int // events that have left by other ways than by being done
	done   int
}

func (p *Play) note(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }

// step takes one of the steps that make a difference now, the frequent ones more often.
func (p *Play) step(rng *rand.Rand) {
	key := keys[rng.IntN(len(keys))]
	q := p.queues[key]
	var steps []func()
	may := func(times int, do func()) { steps = append(steps, slices.Repeat([]func(){do}, times)...) }
	if len(q.events) < 6 {
		may(4, func() { p.Arrive(key, rng.IntN(2) == 0) })
	}
	may(1, p.Take)
	if _, due := q.next(); due != no {
		may(8, p.Take)
	}
	if n := len(p.taken[key]); n > 0 {
		may(8, func() { p.Settle(key, p.outcomes(rng, n)...) })
	}
	if len(q.events) > 0 && q.events[0].waits != no {
		may(2, func() { p.Retry(key) })
	}
	if len(q.events) > 0 && (q.taken() == "" || !p.side.TakesMore) {
		may(1, func() { p.GiveUp(key, "", rng.IntN(4) == 0) })
	}
	if len(q.events) > 0 && p.side.OneByOne {
		may(2, func() { p.GiveUp(key, q.events[rng.IntN(len(q.events))].id, rng.IntN(4) == 0) })
	}
	if len(q.letters) > 0 {
		if open := p.open(q, false); len(open) > 0 {
			may(4, func() { p.Replay(open[rng.IntN(len(open))]) })
		}
		if open := p.open(q, p.side.OneByOne); len(open) > 0 {
			may(1, func() { p.Close(open[rng.IntN(len(open))]) })
		}
	}
	if p.side.OneByOne {
		may(1, func() { p.Pause(key, !q.paused) })
	}
	if q.away {
		may(6, p.Return)
	}
	may(1, p.Restart)
	steps[rng.IntN(len(steps))]()
}

// outcomes are random: the later ones of a call are not tried after one that is not done.
func (p *Play) outcomes(rng *rand.Rand, n int) (all []Outcome) {
	for len(all) < n {
		o := []Outcome{Done, Done, Done, Later, Later, Dead, Dead, Back, Away}[rng.IntN(9)]
		if o == Away && !p.side.GoesAway {
			o = Back
		}
		if all = append(all, o); o != Done {
			return append(all, slices.Repeat([]Outcome{Back}, n-len(all))...)
		}
	}
	return all
}

// Arrive brings the next event of a key.
func (p *Play) Arrive(key string, fails bool) {
	p.Helper()
	p.ids++
	id, q := fmt.Sprintf("%s%d", key, p.ids), p.queues[key]
	tried := p.room.Arrive(key, id, fails)
	p.note("%s arrives, fails: %v; tried: %v", id, fails, tried)
	switch occupied := q.occupied(); {
	case tried && occupied:
		p.Fatalf("%s was tried, and something of its key is before it", id)
	case !tried && !occupied && !p.side.Superset:
		p.Fatalf("%s waits, and nothing of its key is before it", id)
	case !tried:
		q.enter(id, no)
	case fails:
		q.enter(id, yes)
	default:
		q.came++
		p.done++
	}
	p.compare()
}

// Take has the room take what is due.
func (p *Play) Take() {
	p.Helper()
	got := p.room.Take()
	p.note("taken: %v", got)
	for _, key := range keys {
		id, due := p.queues[key].next()
		switch ids := got[key]; {
		case len(ids) == 0 && due == yes:
			p.Fatalf("%s is due, and was not taken", id)
		case len(ids) == 0:
		case due == no || ids[0] != id:
			p.Fatalf("of the key %s %v was taken, due is %q (%d)", key, ids, id, due)
		default:
			p.takes(key, ids)
		}
	}
	p.compare()
}

// takes notes what was taken of a key.
func (p *Play) takes(key string, ids []string) {
	p.Helper()
	q := p.queues[key]
	for i, id := range ids {
		if i > 0 && !q.follows(ids[i-1], id) {
			p.Fatalf("of the key %s %v was taken, where %s does not follow", key, ids, id)
		}
	}
	for _, id := range ids {
		q.events[q.index(id)].taken = true
	}
	p.taken[key] = ids
}

// Settle ends what was taken of a key.
func (p *Play) Settle(key string, outcomes ...Outcome) {
	p.Helper()
	q, ids := p.queues[key], p.taken[key]
	delete(p.taken, key)
	had, next := p.room.Settle(key, outcomes)
	p.note("settled: %v, to be %v: %v, then taken: %v", ids, outcomes, had, next)
	for i, id := range ids {
		first := q.index(id) == 0
		if had[i] != outcomes[i] && (first || had[i] != Back) {
			p.Fatalf("%s is %q, want %q", id, had[i], outcomes[i])
		}
		if !first && had[i] == Done && !p.side.TakesMore {
			p.Fatalf("%s is done, and a replay is before it", id)
		}
		if had[i] == Done {
			p.done++
		}
		q.settle(id, had[i])
		for _, other := range p.queues {
			other.away = other.away || q.away
		}
	}
	if len(next) > 0 {
		if id, due := q.next(); id != next[0] || due == no {
			p.Fatalf("of the key %s %v was taken, due is %q (%d)", key, next, id, due)
		}
		p.takes(key, next)
	}
	p.compare()
}

var signed = waiting.Options{By: "ann", Reason: "a test"}

// of is the filter for a key.
func (p *Play) of(key string) waiting.Filter {
	f := p.side.filter()
	f.Topic, f.Key = Topic, key
	return f
}

// Retry has a person retry a key.
func (p *Play) Retry(key string) {
	p.Helper()
	p.note("a person retries %s", key)
	if _, err := p.people.Retry(p.Context(), p.of(key), signed); err != nil && !errors.Is(err, waiting.ErrNotFound) {
		p.Fatalf("retry %s: %v", key, err)
	}
	p.queues[key].retry()
	p.compare()
}

// GiveUp has a person give up what waits of a key, or one event of it.
func (p *Play) GiveUp(key, id string, discard bool) {
	p.Helper()
	q, f := p.queues[key], p.of(key)
	f.EventID = id
	do := p.people.GiveUp
	if discard {
		do = p.people.Discard
	}
	n, err := do(p.Context(), f, signed)
	p.note("a person gives up %s %s: %d events, discarded: %v", key, id, n, discard)
	if err != nil && !errors.Is(err, waiting.ErrNotFound) {
		p.Fatalf("give up %s: %v", key, err)
	}
	for _, e := range slices.Clone(q.events) {
		if e.taken || id != "" && e.id != id {
			continue
		}
		if n--; discard {
			q.discard(e.id)
			p.left++
		} else {
			q.giveUp(e.id)
		}
	}
	if n != 0 {
		p.Fatalf("%d more than wait without anybody working on them", n)
	}
	p.compare()
}

// open are the dead letters of a key, and if replaying is true those whose replay waits too.
func (p *Play) open(q *queue, replaying bool) (open []string) {
	for id, l := range q.letters {
		if !l.replaying || replaying && !q.events[q.index(id)].taken {
			open = append(open, id)
		}
	}
	slices.Sort(open)
	return open
}

// keyOf is the key of an event: its id begins with it.
func keyOf(id string) string { return id[:1] }

func (p *Play) letterOf(id string) int64 {
	p.Helper()
	return pgtest.Count(p, p.db, "select id from holdfast.letter where event_id = $1", id)
}

// Replay has a person replay an open dead letter.
func (p *Play) Replay(id string) {
	p.Helper()
	p.note("a person replays %s", id)
	if n, err := p.letters.Replay(p.Context(), dlq.Filter{EventID: id}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		p.Fatalf("replay: %d, %v", n, err)
	}
	p.queues[keyOf(id)].replay(id)
	p.room.Replayed(keyOf(id), id)
	p.compare()
}

// Close has a person discard a dead letter that is open, or one whose replay waits where people give up events one by one.
func (p *Play) Close(id string) {
	p.Helper()
	p.note("a person discards the letter of %s", id)
	if err := p.letters.Discard(p.Context(), p.letterOf(id), "ann", "a test"); err != nil {
		p.Fatalf("discard: %v", err)
	}
	p.queues[keyOf(id)].discard(id)
	p.left++
	p.compare()
}

// Pause has a person pause a key, or resume it.
func (p *Play) Pause(key string, pause bool) {
	p.Helper()
	p.note("a person pauses %s: %v", key, pause)
	do, what := p.people.Resume, waiting.Pausable{Consumer: p.side.Consumer, Topic: Topic, Key: key}
	if pause {
		do = p.people.Pause
	}
	if changed, err := do(p.Context(), what, "ann", "a test"); !changed || err != nil {
		p.Fatalf("pause or resume: %v, %v", changed, err)
	}
	p.queues[key].paused = pause
	p.room.Paused()
	p.compare()
}

// Restart begins anew with what the database has.
func (p *Play) Restart() {
	p.Helper()
	lost, away := p.room.Restart()
	p.note("restart, and what was taken was lost: %v; away: %v", lost, away)
	clear(p.taken)
	for _, q := range p.queues {
		q.away = away
		for i := range q.events {
			e := &q.events[i]
			e.lost = e.lost || e.taken && lost
			e.taken = false
		}
	}
	p.compare()
}

// Return has the topic take events again.
func (p *Play) Return() {
	p.Helper()
	p.note("the topic takes events again")
	p.room.Return()
	for _, q := range p.queues {
		q.away = false
	}
	p.compare()
}

// compare looks at the list that people read, and at the letters.
func (p *Play) compare() {
	p.Helper()
	p.compareLetters()
	events, err := p.people.List(p.Context(), p.side.filter())
	if err != nil {
		p.Fatalf("list: %v", err)
	}
	got := map[string][]string{}
	for i := range events {
		e := &events[i]
		if e.Head != (len(got[e.Event.Key]) == 0) {
			p.Fatalf("%s heads its key: %v", e.Event.ID, e.Head)
		}
		got[e.Event.Key] = append(got[e.Event.Key], e.Event.ID)
		p.compareWhy(e)
	}
	for _, key := range keys {
		var want []string
		for _, e := range p.queues[key].events {
			want = append(want, e.id)
		}
		if !slices.Equal(got[key], want) {
			p.Fatalf("of the key %s %v wait, want %v", key, got[key], want)
		}
	}
}

// compareLetters looks at the dead letters that are open, or whose replay waits.
func (p *Play) compareLetters() {
	p.Helper()
	got := pgtest.Text(p, p.db, `select coalesce(string_agg(concat_ws(' ', event_id, state, case when holds then 'holds' end), ', ' order by event_id collate "C"), '')
		from holdfast.letter where state in ('open', 'replaying')`)
	var all []string
	for _, key := range keys {
		for id, l := range p.queues[key].letters {
			text := id + " open"
			if l.replaying {
				text = id + " replaying"
			}
			if l.holds {
				text += " holds"
			}
			all = append(all, text)
		}
	}
	slices.Sort(all)
	if want := strings.Join(all, ", "); got != want {
		p.Fatalf("the letters are %q, want %q", got, want)
	}
}

func (p *Play) compareWhy(w *waiting.Event) {
	p.Helper()
	q := p.queues[w.Event.Key]
	i := q.index(w.Event.ID)
	if i < 0 {
		p.Fatalf("%s waits, and should not", w.Event.ID)
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
		p.Fatalf("%s waits for %q, want %q", e.id, w.Why, want)
	}
}

// drain ends everything that waits: each event is done, or was discarded.
func (p *Play) drain() {
	p.Helper()
	p.note("drain")
	for round := 0; ; round++ {
		waits := 0
		for _, key := range keys {
			q := p.queues[key]
			if q.paused {
				p.Pause(key, false)
			}
			if q.away {
				p.Return()
			}
			waits += len(q.events) + len(q.letters)
			if open := p.open(q, false); len(open) > 0 && key == "a" {
				p.Replay(open[0])
			} else if len(open) > 0 {
				p.Close(open[0])
			}
			p.Retry(key)
		}
		if waits == 0 {
			break
		}
		if round > 1000 {
			p.Fatalf("%d events still wait", waits)
		}
		p.Take()
		for _, key := range keys {
			ids := p.taken[key]
			if len(ids) == 0 {
				continue
			}
			p.Settle(key, slices.Repeat([]Outcome{Done}, len(ids))...)
		}
	}
	if p.done+p.left != p.ids {
		p.Fatalf("%d events were done and %d discarded, want %d together", p.done, p.left, p.ids)
	}
	if n := pgtest.Count(p, p.db, "select count(*) from holdfast.letter where state in ('open', 'replaying')"); n != 0 {
		p.Fatalf("%d letters are still open", n)
	}
}
