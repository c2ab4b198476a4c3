package roomtest

import "slices"

// Outcome is what becomes of an event that was taken.
type Outcome string

const (
	Done  Outcome = "done"  // it leaves
	Later Outcome = "later" // it failed, and is tried again after a time that no test lives to see
	Dead  Outcome = "dead"  // it is given up: a dead letter, which holds its key where letters do, or if it did before its replay
	Away  Outcome = "away"  // its topic or its partition takes nothing, until Return
	Back  Outcome = "back"  // it was not tried: as if nobody had taken it
)

// maybe is an answer that may be left open.
type maybe int

const (
	no maybe = iota
	yes
	either
)

// event is one that waits. seq is its place among all events of its key, in the order in which they came: a replay has the place of its
// event.
type event struct {
	id     string
	seq    int
	replay bool
	waits  maybe // for the time of its next try
	taken  bool  // somebody works on it
	lost   bool  // somebody has taken it, and nobody knows what became of that: one such event is tried at a time
}

// letter is a dead letter that is open, or whose replay waits.
type letter struct {
	seq       int
	holds     bool // events that came after it
	replaying bool
}

// queue is what a room promises of the events of one key.
type queue struct {
	events  []event // in the order of seq
	letters map[string]letter
	free    bool // dead letters hold nothing
	paused  bool // events wait, but no replay
	away    bool // nothing is tried
	came    int
}

// occupied says whether an event that comes now has to wait.
func (q *queue) occupied() bool {
	return len(q.events) > 0 || q.paused || q.away || q.holds(q.came+1)
}

// holds says whether a dead letter is before the place seq, and holds what comes after it.
func (q *queue) holds(seq int) bool {
	for _, l := range q.letters {
		if l.holds && l.seq < seq {
			return true
		}
	}
	return false
}

// held says whether something else than an earlier event, or its time, keeps an event from being tried.
func (q *queue) held(e event) bool { return !e.replay && (q.paused || q.holds(e.seq)) }

// next is the event that is tried next: the first, unless it waits or is held. It is the only one: nothing overtakes it.
func (q *queue) next() (id string, due maybe) {
	if len(q.events) == 0 || q.away {
		return "", no
	}
	e := q.events[0]
	switch {
	case q.held(e) || e.waits == yes || q.taken() != "":
		return "", no
	case e.waits == either || e.lost:
		return e.id, either
	}
	return e.id, yes
}

// follows says whether an event may be taken together with the one before it, which would be done then.
func (q *queue) follows(before, id string) bool {
	i := q.index(before)
	if i < 0 || i+1 == len(q.events) {
		return false
	}
	e := q.events[i+1]
	return e.id == id && !q.held(e) && e.waits != yes && !e.lost
}

// taken is the first event that somebody works on.
func (q *queue) taken() string {
	for _, e := range q.events {
		if e.taken {
			return e.id
		}
	}
	return ""
}

func (q *queue) index(id string) int {
	return slices.IndexFunc(q.events, func(e event) bool { return e.id == id })
}

// enter puts an event at the end.
func (q *queue) enter(id string, waits maybe) {
	q.came++
	q.events = append(q.events, event{id: id, seq: q.came, waits: waits})
}

// replay puts the event of an open letter back in its place. Those behind it wait for it: whether one waits for its time as well is not said.
func (q *queue) replay(id string) {
	l := q.letters[id]
	l.replaying = true
	q.letters[id] = l
	i, _ := slices.BinarySearchFunc(q.events, l.seq, func(e event, seq int) int { return e.seq - seq })
	q.events = slices.Insert(q.events, i, event{id: id, seq: l.seq, replay: true})
	for i++; i < len(q.events); i++ {
		if q.events[i].waits == yes {
			q.events[i].waits = either
		}
	}
}

// settle says what became of an event that somebody worked on.
func (q *queue) settle(id string, o Outcome) {
	i := q.index(id)
	e := &q.events[i]
	e.taken = false
	if o != Back {
		e.lost = false
	}
	switch o {
	case Done:
		delete(q.letters, id)
		q.events = slices.Delete(q.events, i, i+1)
	case Away:
		e.waits, q.away = no, true
	case Later:
		if e.waits = yes; i > 0 {
			e.waits = either
		}
	case Dead:
		l := letter{seq: e.seq, holds: !q.free}
		if e.replay {
			l.holds = q.letters[id].holds
		}
		q.letters[id] = l
		q.events = slices.Delete(q.events, i, i+1)
	}
}

// giveUp is what a person does: the event becomes a dead letter that holds nothing. A replay's letter is as it was before.
func (q *queue) giveUp(id string) {
	i := q.index(id)
	q.letters[id] = letter{seq: q.events[i].seq, holds: q.letters[id].holds}
	q.events = slices.Delete(q.events, i, i+1)
}

// discard removes an event, or a letter with its replay.
func (q *queue) discard(id string) {
	delete(q.letters, id)
	if i := q.index(id); i >= 0 {
		q.events = slices.Delete(q.events, i, i+1)
	}
}

// retry ends the first event's wait for its time.
func (q *queue) retry() {
	if len(q.events) > 0 && !q.held(q.events[0]) && !q.events[0].taken {
		q.events[0].waits = no
	}
}
