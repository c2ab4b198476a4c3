package relay

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roomtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// The parked events of a lane are a waiting room.
func TestRoom_ParkedEventsKeepWhatAWaitingRoomPromises(t *testing.T) {
	t.Parallel()
	for name, holds := range map[string]bool{"letters hold keys": true, "letters hold nothing": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			playParked(t, holds).Random(seed.New(t))
		})
	}
}

func playParked(t *testing.T, holds bool) *roomtest.Play {
	t.Helper()
	db := migrated.New(t)
	room := &parkedRoom{T: t, db: db, r: newRelay(db.Pool, nil, Config{
		Name:    "r",
		Lease:   time.Hour,
		HoldKey: holds,
		Retry:   retry.Policy{Attempts: -1, Base: time.Hour, Cap: time.Hour},
		Logger:  noLog,
	}.withDefaults(), simStatements)}
	room.Restart()
	return roomtest.New(t, db, roomtest.Side{TakesMore: true, Superset: true, GoesAway: true, Free: !holds}, room)
}

// No dead letter holds a replay, also not that of the replay before it.
func TestRoom_AReplayGoesOnBehindOneThatIsGivenUp(t *testing.T) {
	t.Parallel()
	p := playParked(t, true)
	p.Arrive("a", true)
	p.Arrive("a", false)
	p.GiveUp("a", "", false)
	p.Replay("a1")
	p.Replay("a2")
	p.Take()
	p.Settle("a", roomtest.Dead, roomtest.Back)
	p.Take()
}

// A person who gives an event up lets its key go on, and so it is when the relay gives up its replay.
func TestRoom_AReplayThatIsGivenUpHoldsItsKeyIfItDidBefore(t *testing.T) {
	t.Parallel()
	for name, person := range map[string]bool{"a person gave it up": true, "the relay gave it up": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := playParked(t, true)
			p.Arrive("a", true)
			if person {
				p.GiveUp("a", "", false)
			} else {
				p.Retry("a")
				p.Take()
				p.Settle("a", roomtest.Dead)
			}
			p.Replay("a1")
			p.Arrive("a", false)
			p.Take()
			p.Settle("a", roomtest.Dead, roomtest.Back)
			p.Take()
		})
	}
}

// A replay may come between two events that are being sent, of which only the first is acknowledged.
func TestRoom_AReplayIsDueThoughWhatFollowsItWasTried(t *testing.T) {
	t.Parallel()
	for _, became := range []roomtest.Outcome{roomtest.Later, roomtest.Away} {
		t.Run(string(became), func(t *testing.T) {
			t.Parallel()
			p := playParked(t, false)
			p.Arrive("a", true)
			p.Arrive("a", false)
			p.Arrive("a", false)
			p.GiveUp("a", "", false)
			p.Replay("a1")
			p.Replay("a3")
			p.Take()
			p.Replay("a2")
			p.Settle("a", roomtest.Done, became)
			if became == roomtest.Away {
				p.Return()
			}
			p.Take()
		})
	}
}

// parkedRoom is a lane that reads no log: the test brings what the log would. What it takes is in its destinations, as if it were in a call.
type parkedRoom struct {
	*testing.T
	r     *Relay
	l     *lane
	db    *pgtest.DB
	taken map[string][]*pending
	aways int
}

func (r *parkedRoom) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *parkedRoom) Restart() (lost, away bool) {
	r.Helper()
	r.l = claimed(r.T, r.r)
	r.must(r.r.beginLeases(r.Context(), r.l))
	r.must(r.r.load(r.Context(), r.l))
	r.must(r.l.resumeReleased(r.Context()))
	r.taken = map[string][]*pending{}
	return false, len(r.l.holds) > 0 // what was sent is no try of the record
}

func (r *parkedRoom) Paused() {}

func (r *parkedRoom) Return() {
	r.Helper()
	for _, h := range r.l.holds {
		h.resume(false)
	}
	r.must(r.l.resumeHolds(r.Context()))
}

var errNow = retry.After(errors.New("not now"), time.Hour)

// comes is an event as the log has it.
func (r *parkedRoom) comes(key, id string, letter int64) *pending {
	return &pending{
		event: &logEvent{Event: holdfast.Event{ID: id, Source: "s", Type: "t", Topic: roomtest.Topic, Key: key, Time: time.Unix(0, 0)}, letter: letter},
		item:  item{queue{roomtest.Topic, key}, letter != 0},
	}
}

// parks has an event leave the log.
func (r *parkedRoom) parks(p *pending, d disposition, err error) {
	r.Helper()
	r.l.leave(p, d, err)
	r.must(r.l.park(r.Context(), []*pending{p}, r.l.cursor))
}

func (r *parkedRoom) Arrive(key, id string, fails bool) (tried bool) {
	r.Helper()
	p := r.comes(key, id, 0)
	d := r.l.waiting().disposition(p.item, spot{roomtest.Topic, anyPartition})
	switch {
	case d != undecided:
		r.parks(p, d, nil)
	case fails:
		r.parks(p, recordRefused, errNow)
	}
	return d == undecided
}

// Replayed brings the replay. One that would be tried at once is parked nevertheless, as behind something of its key.
func (r *parkedRoom) Replayed(key, id string) {
	r.Helper()
	p := r.comes(key, id, pgtest.Count(r, r.db, "select id from holdfast.letter where event_id = $1", id))
	d := r.l.waiting().disposition(p.item, spot{roomtest.Topic, anyPartition})
	if d == undecided {
		d = first
	}
	r.parks(p, d, nil)
}

func (r *parkedRoom) Take() map[string][]string {
	r.Helper()
	r.must(r.l.lookAtHeld(r.Context()))
	r.must(r.l.loadDue(r.Context()))
	r.must(r.l.flush(r.Context(), true)) // what waits for its partition
	r.must(r.l.endLeases(r.Context()))
	all := map[string][]string{}
	for _, d := range r.l.destinations {
		for _, p := range d.queue {
			key := p.event.Key
			r.taken[key], all[key] = append(r.taken[key], p), append(all[key], p.event.ID)
		}
		d.queue = nil
	}
	return all
}

func (r *parkedRoom) Settle(key string, outcomes []roomtest.Outcome) (had []roomtest.Outcome, next []string) {
	r.Helper()
	var c call
	all := r.taken[key]
	delete(r.taken, key)
	for i, p := range all {
		switch outcomes[i] {
		case roomtest.Done:
			c.add(p, answer{})
		case roomtest.Later:
			c.add(p, answer{publish.FaultRecord, errNow})
		case roomtest.Dead:
			c.add(p, answer{publish.FaultRecord, retry.Permanent(errNow)})
		case roomtest.Away:
			r.aways++
			c.add(p, answer{[]publish.Fault{publish.FaultTopic, publish.FaultPartition}[r.aways%2], errNow})
		case roomtest.Back:
			p.to.queue = append(p.to.queue, p)
		}
	}
	back, err := r.l.settleParked(r.Context(), c, time.Now())
	r.must(err)
	d := all[0].to
	for _, p := range slices.Concat(back, d.queue) {
		r.l.drop(p)
	}
	d.queue = nil
	r.must(r.l.flush(r.Context(), true))
	r.must(r.l.endLeases(r.Context()))
	return outcomes, nil
}
