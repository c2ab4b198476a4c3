package inbox

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file decides where claims begin to look for what is due. It is pure: values in, values out.
//
// Claims look in the order of next_at. While another session holds a snapshot, the index keeps an entry for everything that was handled
// since, and all these entries come first. So once it has become slow to look at everything, claims begin where the last one ended,
// and look at everything now and then only.
//
// So whatever makes an event claimable that claims may have passed makes it due again, by the clock (package internal/waitroom): the
// next claim takes it. Two things cannot do that, a transaction that commits late and a node that died. They are why
// the looks at everything are at most wholeAtLeast apart, however long a look takes on a busy machine.

const (
	// quickLook is how long a look at everything may take for the next claim to be one again.
	quickLook = time.Millisecond / 2

	// wholeRest is how many times as long as a look at everything took claims look only from the mark on, up to wholeAtLeast.
	wholeRest    = 200
	wholeAtLeast = 10 * time.Second

	// lateCommit is how far the mark stays back. What is stored gets its next_at before its transaction commits. What commits later
	// than that waits for the next look at everything, as does what a node had that died.
	lateCommit = time.Second
)

// claimMark is where claims begin to look. The zero value looks at everything.
type claimMark struct {
	at    time.Time // by the database's clock; zero: not known
	place int64
	took  time.Duration // by the last look at everything
	ended time.Time     // when that was
}

// whole reports that the next claim looks at everything.
func (m claimMark) whole(now time.Time) bool {
	return m.at.IsZero() || m.took <= quickLook || now.Sub(m.ended) >= loop.Rest(m.took, wholeRest, 0, wholeAtLeast)
}

// after is the mark after a claim that lasted from begun to ended; whole says that it looked at everything.
func (m claimMark) after(got []*claimed, whole bool, begun, ended time.Time) claimMark {
	if whole {
		m = m.looked(begun, ended)
	}
	if len(got) > 0 {
		last := slices.MaxFunc(got, func(a, b *claimed) int { return cmp.Or(a.nextAt.Compare(b.nextAt), cmp.Compare(a.place, b.place)) })
		m = m.claimed(last.nextAt, last.place, last.overdue)
	}
	return m
}

// looked is the mark after a look at everything that began at begun.
func (m claimMark) looked(begun, ended time.Time) claimMark {
	m.took, m.ended = ended.Sub(begun), ended
	return m
}

// claimed is the mark after a claim, whose last event came due at the given time and place, overdue before. All that was due before
// it was claimed, or may not be claimed.
func (m claimMark) claimed(at time.Time, place int64, overdue time.Duration) claimMark {
	m.at, m.place = at, place
	if overdue < lateCommit {
		m.at, m.place = at.Add(overdue-lateCommit), 0
	}
	return m
}
