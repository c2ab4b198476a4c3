package inbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roomtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/retry"
)

// The stored events of a consumer are a waiting room.
func TestRoom_StoredEventsKeepWhatAWaitingRoomPromises(t *testing.T) {
	for name, holds := range map[string]bool{"letters hold keys": true, "letters hold nothing": false} {
		t.Run(name, func(t *testing.T) { playStored(t, holds).Random(seed.New(t)) })
	}
}

func playStored(t *testing.T, holds bool) *roomtest.Play {
	t.Helper()
	b := setup(t)
	room := &storedRoom{bundle: b, holds: holds, says: map[string]error{}}
	room.Restart()
	return roomtest.New(t, b.db, roomtest.Side{Consumer: "billing", OneByOne: true, Free: !holds}, room)
}

// storedRoom is that of one node, whose workers it is itself.
type storedRoom struct {
	*bundle
	in    *Inbox
	holds bool
	says  map[string]error // what a handler returns, by event
	taken map[string]*work // by key
	turns int
}

// work is what a worker has: a claimed event, and whether a claim took it.
type work struct {
	*claimed
	fresh bool
}

// Restart hands back what is claimed, or loses it every other time: its lease runs out.
func (r *storedRoom) Restart() (lost, away bool) {
	r.Helper()
	r.turns++
	if lost = r.turns%2 == 0; lost {
		pgtest.Exec(r, r.db, "update holdfast.stored set lease_until = now() where lease_until > now()")
	} else {
		for _, key := range slices.Sorted(maps.Keys(r.taken)) {
			r.in.backlog.handBack(r.T.Context(), r.taken[key].claimed, 0)
		}
	}
	r.taken = map[string]*work{}
	r.in = r.inbox(func(c *Config) {
		c.HoldKey = r.holds
		c.Retry = retry.Policy{Attempts: 1000, Base: time.Hour, Cap: time.Hour}
	})
	r.in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { return r.says[e.ID] })
	r.in.registry.start()
	pgtest.Exec(r, r.db, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'order.placed', 'n', now() + interval '1 hour') on conflict do nothing")
	r.Paused()
	return lost, false
}

func (r *storedRoom) Paused() {
	r.Helper()
	if err := r.in.pauses.look(r.T.Context(), r.in.pool); err != nil {
		r.Fatal(err)
	}
}

func (r *storedRoom) Replayed(string, string) {}

func (r *storedRoom) Return() {}

var errNow = retry.After(errors.New("not now"), time.Hour)

func (r *storedRoom) Arrive(key, id string, fails bool) (tried bool) {
	r.Helper()
	if fails {
		r.says[id] = errNow
	}
	out, err := r.in.Receive(r.T.Context(), event(id, key))
	if err != nil {
		r.Fatal(err)
	}
	return out != Stored
}

func (r *storedRoom) Take() map[string][]string {
	r.Helper()
	got, err := r.in.claims.claim(r.T.Context(), 100)
	if err != nil {
		r.Fatal(err)
	}
	all := map[string][]string{}
	for _, s := range got {
		r.taken[s.e.Key] = &work{s, true}
		all[s.e.Key] = append(all[s.e.Key], s.e.ID)
	}
	return all
}

func (r *storedRoom) Settle(key string, outcomes []roomtest.Outcome) (had []roomtest.Outcome, after []string) {
	r.Helper()
	w := r.taken[key]
	delete(r.taken, key)
	r.turns++
	delete(r.says, w.e.ID)
	var next *claimed
	switch outcomes[0] {
	case roomtest.Back:
		r.in.backlog.handBack(r.T.Context(), w.claimed, 0)
		r.in.claims.ended(w.claimed)
		return outcomes, nil
	case roomtest.Later:
		r.says[w.e.ID] = errNow
	case roomtest.Dead:
		r.says[w.e.ID] = retry.Permanent(errNow)
	}
	next, err := r.in.backlog.workOne(r.T.Context(), w.claimed, w.fresh, r.turns%2 == 0)
	if err != nil {
		r.Fatal(err)
	}
	r.in.claims.leave(w.claimed)
	if next == nil {
		r.in.claims.ended(w.claimed)
	} else {
		r.taken[key], after = &work{next, false}, []string{next.e.ID}
	}
	return []roomtest.Outcome{r.became(w.e.ID)}, after
}

// became reads what became of an event.
func (r *storedRoom) became(id string) roomtest.Outcome {
	r.Helper()
	switch now := pgtest.Text(r, r.db, `select i.result || case when s.place is null then '' when s.next_at > now() + interval '10 minutes' then ' later' else ' back' end
		from holdfast.inbox i left join holdfast.stored s using (event_id) where i.event_id = $1`, id); now {
	case "handled":
		return roomtest.Done
	case "dead":
		return roomtest.Dead
	case "stored later":
		return roomtest.Later
	case "stored back":
		return roomtest.Back
	default:
		r.Fatalf("%s: %s", id, now)
		return ""
	}
}
