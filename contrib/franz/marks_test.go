package franz

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func hashes(from, to int) (all []eventHash) {
	for i := from; i < to; i++ {
		all = append(all, hashOf(publish.EventName{Source: "shop", ID: fmt.Sprint(i), Topic: "orders"}))
	}
	return all
}

func TestMarks_TheLastMarkIsReadAsWritten(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	for _, n := range []int{0, 1, partMost, partMost + 1, 3*partMost - 1} {
		before := mark{epoch: 3, number: 8, events: hashes(0, partMost+5)}.records()
		want := mark{epoch: 3, number: 9, events: hashes(0, n)}
		values := append(before, want.records()...)
		got, whole, err := lastMark(values)
		if err != nil || !whole {
			t.Fatalf("%d events: whole %v, %v", n, whole, err)
		}
		if got.epoch != 3 || got.number != 9 || !cmp.Equal(got.events, want.events) {
			t.Errorf("%d events were written, and %d read, of transaction %d", n, len(got.events), got.number)
		}
		if parts := want.records(); len(parts) > 1 {
			if _, whole, err = lastMark(parts[1:]); err != nil || whole {
				t.Errorf("without its first record a mark is whole: %v, %v", whole, err)
			}
		}
	}
	if m, whole, err := lastMark(nil); m != nil || !whole || err != nil {
		t.Errorf("of nothing: %v, %v, %v", m, whole, err)
	}
}

func TestMarks_WhatIsNoMarkIsRefused(t *testing.T) {
	t.Parallel()
	good := mark{epoch: 1, number: 1, events: hashes(0, 2)}.records()[0]
	newer := append([]byte{2}, good[1:]...)
	for name, value := range map[string][]byte{"empty": {}, "short": good[:10], "cut": good[:len(good)-1], "of a newer build": newer} {
		if _, _, err := lastMark([][]byte{value}); err == nil {
			t.Errorf("a record that is %s is taken for a mark", name)
		}
	}
	other := mark{epoch: 1, number: 2, events: hashes(0, partMost+1)}.records()[1]
	if _, _, err := lastMark([][]byte{good, other}); err == nil {
		t.Error("half a mark is taken for a whole one")
	}
}

func TestMarks_ALedgerFollowsWhatKafkaAndPostgresKnow(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	names := func(from, to int) (all []publish.EventName) {
		for i := from; i < to; i++ {
			all = append(all, publish.EventName{Source: "shop", ID: fmt.Sprint(i), Topic: "orders"})
		}
		return all
	}
	t.Run("the mark of a transaction has the events before it", func(t *testing.T) {
		l := newLedger(1)
		l.committed(hashes(0, 3))
		l.settled(names(0, 2), time.Time{})
		if m := l.next(hashes(3, 4)); m.number != 2 || len(m.events) != 2 {
			t.Errorf("it is number %d, with %d events", m.number, len(m.events))
		}
	})
	t.Run("what the last owner committed is reported once", func(t *testing.T) {
		l := newLedger(2)
		if _, err := l.resolve(&mark{epoch: 1, number: 7, events: hashes(0, 2)}, at); err != nil {
			t.Fatal(err)
		}
		h := hashes(0, 1)[0]
		if !l.reported(h) || l.reported(h) || l.reported(hashes(5, 6)[0]) {
			t.Error("it is not reported exactly once")
		}
		if m := l.next(nil); len(m.events) != 2 {
			t.Errorf("before it is saved the mark has %d of 2", len(m.events))
		}
	})
	t.Run("an event that was written twice is reported as often as it was published", func(t *testing.T) {
		l := newLedger(2)
		h := hashes(0, 1)[0]
		if _, err := l.resolve(&mark{epoch: 1, number: 7, events: []eventHash{h, h}}, at); err != nil {
			t.Fatal(err)
		}
		reported := 0
		for range 3 {
			if l.reported(h) {
				reported++
			}
		}
		if reported != 2 {
			t.Errorf("it is reported %d times", reported)
		}
	})
	t.Run("what the last owner had saved is forgotten when all before is settled", func(t *testing.T) {
		l := newLedger(2)
		if _, err := l.resolve(&mark{epoch: 1, number: 7, events: hashes(0, 2)}, at); err != nil {
			t.Fatal(err)
		}
		l.reported(hashes(0, 1)[0])
		l.settled(nil, at.Add(-time.Second))
		if m := l.next(nil); len(m.events) != 2 {
			t.Errorf("it is forgotten by what was read before: %d are left", len(m.events))
		}
		l.settled(nil, at.Add(time.Second))
		if m := l.next(nil); len(m.events) != 1 {
			t.Errorf("the mark has %d events, want the one that is reported and not saved", len(m.events))
		}
	})
	t.Run("the mark resolves a doubtful transaction", func(t *testing.T) {
		for _, committed := range []bool{true, false} {
			l := newLedger(2)
			l.committed(hashes(0, 1))
			l.doubted(hashes(1, 2))
			last := &mark{epoch: 2, number: 1, events: hashes(0, 1)}
			if committed {
				last = &mark{epoch: 2, number: 2, events: hashes(0, 2)}
			}
			if got, err := l.resolve(last, at); got != committed || err != nil {
				t.Errorf("committed is %v, and said to be %v: %v", committed, got, err)
			}
			if got := l.reported(hashes(1, 2)[0]); got != committed {
				t.Errorf("committed is %v, and reported %v", committed, got)
			}
			if l.reported(hashes(0, 1)[0]) {
				t.Error("what was answered before is reported again")
			}
		}
	})
	t.Run("a producer that cannot know ends its lane", func(t *testing.T) {
		for name, last := range map[string]*mark{
			"a newer claim has published": {epoch: 3, number: 1}, "the mark is gone": nil, "an older mark is back": {epoch: 1, number: 50},
			"another producer has its epoch": {epoch: 2, number: 5},
		} {
			l := newLedger(2)
			l.committed(hashes(0, 1))
			if _, err := l.resolve(last, at); !errors.Is(err, publish.ErrLaneTaken) {
				t.Errorf("%s: %v", name, err)
			}
		}
		l := newLedger(2)
		l.doubted(hashes(0, 2))
		if _, err := l.resolve(&mark{epoch: 2, number: 1, events: hashes(5, 7)}, at); !errors.Is(err, publish.ErrLaneTaken) {
			t.Errorf("another producer has its epoch, and committed under the number of what is in doubt: %v", err)
		}
	})
}

// Owners take a lane from each other at every moment, also frozen ones that come back. Each event that they mean to publish is committed
// once, in the order of the log.
func TestMarks_OwnersOfALaneCommitEachEventOnce(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed.New(t), 1))
	for range 60 {
		model{random: random, events: 40}.run(t)
	}
}

// model is a lane of a log, its saved cursor, its marks, and owners of whom some are zombies.
type model struct {
	random *rand.Rand
	events int

	saved     int // all before it are settled in Postgres
	epoch     int64
	committed []int
	marks     []mark
	fencedBy  int64 // the number of the last fencing
}

// modelOwner publishes from its cursor on.
type modelOwner struct {
	epoch  int64
	ledger *ledger
	cursor int
	note   int // settled with the next save: those from here to cursor
	fence  int64
	open   []int // events of the transaction that is open
	lost   bool
}

func (m model) run(t *testing.T) {
	var owners []*modelOwner
	clock := time.Unix(0, 0)
	for steps := 0; m.saved < m.events; steps++ {
		if steps > 100_000 {
			t.Fatalf("it does not end: saved %d", m.saved)
		}
		clock = clock.Add(time.Second)
		if len(owners) == 0 || m.random.IntN(12) == 0 {
			m.epoch++
			owners = append(owners, &modelOwner{epoch: m.epoch, ledger: newLedger(m.epoch), cursor: m.saved, note: m.saved})
		}
		// The newest acts most of the time, and at times a zombie.
		o := owners[len(owners)-1]
		if m.random.IntN(4) == 0 {
			o = owners[m.random.IntN(len(owners))]
		}
		if o.lost {
			if o == owners[len(owners)-1] { // claimed again
				m.epoch++
				owners = append(owners, &modelOwner{epoch: m.epoch, ledger: newLedger(m.epoch), cursor: m.saved, note: m.saved})
			}
			continue
		}
		m.act(o, clock)
	}
	want := make([]int, m.events)
	for i := range want {
		want[i] = i
	}
	if diff := cmp.Diff(want, m.committed); diff != "" {
		t.Fatalf("committed: %s", diff)
	}
}

func (m *model) act(o *modelOwner, now time.Time) {
	owns := o.fence != 0 && o.fence == m.fencedBy
	switch m.random.IntN(5) {
	case 0: // saves
		if o.epoch != m.epoch {
			return
		}
		var settled []publish.EventName
		for ; o.note < o.cursor; o.note++ {
			settled = append(settled, publish.EventName{Source: "shop", ID: fmt.Sprint(o.note), Topic: "orders"})
		}
		if m.saved = o.cursor; m.random.IntN(3) > 0 { // else it dies before it knows
			o.ledger.settled(settled, time.Time{})
		}
	case 1: // crashes
		if m.random.IntN(5) == 0 {
			o.lost = true
		}
	case 2: // begins
		if o.open != nil || o.cursor >= m.events {
			return
		}
		if !owns {
			m.fencedBy++
			o.fence = m.fencedBy
			var last *mark
			if n := len(m.marks); n > 0 {
				last = &m.marks[n-1]
			}
			if _, err := o.ledger.resolve(last, now); err != nil {
				o.lost = true
				return
			}
		}
		for e := o.cursor; e < min(o.cursor+1+m.random.IntN(4), m.events); e++ {
			if len(o.open) == 0 && o.ledger.reported(hashes(e, e+1)[0]) {
				o.cursor = e + 1
				continue
			}
			o.open = append(o.open, e)
		}
	default: // commits, and may not get an answer
		if o.open == nil {
			return
		}
		var of []eventHash
		for _, e := range o.open {
			of = append(of, hashes(e, e+1)...)
		}
		if owns {
			m.marks = append(m.marks, o.ledger.next(of))
			m.committed = append(m.committed, o.open...)
		}
		if owns && m.random.IntN(3) > 0 {
			o.ledger.committed(of)
			o.cursor = o.open[len(o.open)-1] + 1
		} else {
			o.ledger.doubted(of)
			o.fence = 0
		}
		o.open = nil
	}
}
