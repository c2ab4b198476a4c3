package waiting

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/waitroom"
)

// room is a Room in a database of its own.
func room(t *testing.T) (*pgtest.DB, *Room) {
	t.Helper()
	db := migrated.New(t)
	r, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return db, r
}

// Of lane 3, which has an owner: the queue of one key, and one of two events without a key, are leased.
func TestLanes_WhatALanesOwnerHasLeasedIsLeftToIt(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	const owned = "update holdfast.lane set owner = 'the sidecar', lease_until = now() + interval '1 hour', epoch = 7 where lane = 3"
	const told = "insert into holdfast.parked_lease (lane, topic, key, place) values (3, '', '', 7), (3, 'gone', 'leased', 0), (3, 'gone', '', -5)"
	for name, row := range map[string]struct {
		before []string
		after  string // what happens while it waits
		want   int
		err    string
	}{
		"its owner keeps it":            {[]string{owned, told}, "", 3, `events are being sent: 3 of the topic gone, by the relays ["the sidecar"]: try again, or pause the topic first`},
		"its owner gives it back":       {[]string{owned, told}, "delete from holdfast.parked_lease where topic <> ''", 6, ""},
		"it is sent":                    {[]string{owned, told}, "delete from holdfast.parked where id in ('1', '2', '5')", 3, ""},
		"its owner's lease has run out": {[]string{owned, told, "update holdfast.lane set lease_until = now() - interval '1 second'"}, "", 6, ""},
		"nobody owns the lane":          {[]string{told}, "", 6, ""},
		"the lane was just claimed": {[]string{owned, told, "update holdfast.lane set epoch = 8 where lane = 3"},
			"update holdfast.parked_lease set place = 8 where topic = ''; delete from holdfast.parked_lease where topic <> ''", 6, ""},
		"its owner tells nothing":           {[]string{owned}, "", 0, `6 of the topic gone, by the relays ["the sidecar"]`},
		"its owner told under an old epoch": {[]string{owned, told, "update holdfast.lane set epoch = 8 where lane = 3"}, "", 0, "6 of the topic gone"},
		"its owner told under a later one":  {[]string{owned, told, "update holdfast.lane set epoch = 6 where lane = 3"}, "", 0, "6 of the topic gone"},
		"other owners tell": {[]string{owned, "insert into holdfast.parked_lease (lane, topic, key, place) values (2, '', '', 7), (4, '', '', 7), (3, 'gone', '', 7), (3, '', 'k', 7)"},
			"", 0, "6 of the topic gone"},
		"another lane's is leased":  {[]string{owned, told, "update holdfast.parked_lease set lane = 4 where topic <> ''"}, "", 6, ""},
		"another topic's is leased": {[]string{owned, told, "update holdfast.parked_lease set topic = 'orders' where topic <> ''"}, "", 6, ""},
	} {
		for verb, act := range map[string]func(r *Room) (int, error){
			"give up": func(r *Room) (int, error) {
				return r.GiveUp(t.Context(), Filter{Origin: "relay", Topic: "gone"}, Options{By: "ann"})
			},
			"redirect": func(r *Room) (int, error) {
				return r.Redirect(t.Context(), Filter{Origin: "relay", Topic: "gone"}, "orders", Options{By: "ann"})
			},
		} {
			t.Run(name+"/"+verb, func(t *testing.T) {
				t.Parallel()
				db, r := room(t)
				pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
					select 3, 'gone', case when n < 3 then 'leased' when n < 5 then 'free' else '' end, n - 10, 'topic', 'infinity', n, 's', 't', now() from generate_series(1, 6) n`)
				for _, sql := range row.before {
					pgtest.Exec(t, db.Pool, sql)
				}
				waited, after := time.Duration(0), row.after
				r.now = func() time.Time { return time.Unix(0, 0).Add(waited) }
				r.rest = func(_ context.Context, by time.Duration) error {
					if waited += by; waited > 3*time.Second {
						for sql := range strings.SplitSeq(after, "; ") {
							pgtest.Exec(t, db.Pool, sql)
						}
					}
					return nil
				}
				n, err := act(r)
				if n != row.want || (err == nil) != (row.err == "") || err != nil && (!errors.Is(err, ErrBeingSent) || !strings.Contains(err.Error(), row.err)) {
					t.Errorf("%d, %v; want %d, %s", n, err, row.want, row.err)
				}
				if row.err != "" && waited < leasedWait || waited > leasedWait+time.Second {
					t.Errorf("it waited for %v", waited)
				}
				if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.lane where lane = 3 and owner is not null and lease_until < now()"); n != 0 {
					t.Error("an owner whose lease has run out may still write")
				}
				if row.want == 3 && pgtest.Count(t, db.Pool, "select count(*) from (select event_id as id from holdfast.letter union all select id from holdfast.event) c where id in ('3', '4', '6')") != 3 {
					t.Error("others were changed than those that are free")
				}
			})
		}
	}
}

// In the first of several turns the lane's owner has a key in memory, whose event is refused then: it stays. Later turns do not meet it.
func TestLanes_WhatItsOwnerGivesBackLaterIsNotForgotten(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	t.Parallel()
	for name, gives := range map[string]string{
		"the owner gives it back": "delete from holdfast.parked_lease where topic <> ''",
		"the owner goes":          "update holdfast.lane set owner = null; delete from holdfast.parked_lease",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, r := room(t)
			pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
				select 3, 'gone', case when n <= 3000 then 'a' else 'b' || n end, n - 5000, 'topic', 'infinity', n, 's', 't', now() from generate_series(1, 4000) n`)
			pgtest.Exec(t, db.Pool, "update holdfast.lane set owner = 'the sidecar', lease_until = now() + interval '1 hour', epoch = 7 where lane = 3")
			pgtest.Exec(t, db.Pool, "insert into holdfast.parked_lease (lane, topic, key, place) values (3, '', '', 7), (3, 'gone', 'a', 0)")
			turns := 0
			o := Options{By: "ann", ProgressFunc: func(p Progress) {
				switch turns++; {
				case turns == 1 && p.Changed != 0:
					t.Errorf("the first turn changes %d of the leased key", p.Changed)
				case turns == 1:
					pgtest.Exec(t, db.Pool, gives)
				case turns == 2: // of as many events as fit into the time of a turn
					left := pgtest.Count(t, db.Pool, "select count(*) from holdfast.parked where topic = 'gone' and key = 'a'")
					if p.Changed == 0 || p.Changed > 1000 || left != 3000 {
						t.Errorf("the second turn changes %d events and leaves %d of the leased key, want some of the 1000 after it and none of its 3000", p.Changed, left)
					}
				}
			}}
			if n, err := r.Discard(t.Context(), Filter{Origin: "relay", Topic: "gone"}, o); n != 4000 || err != nil {
				t.Errorf("%d of 4000, %v", n, err)
			}
		})
	}
}

// An owner may renew its lease while a command looks.
func TestLanes_OnlyALanesOwnerThatLetItsLeaseRunOutLosesIt(t *testing.T) {
	t.Parallel()
	db, r := room(t)
	pgtest.Exec(t, db.Pool, "update holdfast.lane set owner = 'the sidecar', lease_until = now() + case when lane = 5 then interval '1 hour' else interval '-1 second' end")
	for lane, want := range map[int]int64{3: 1, 5: 0} {
		if n := pgtest.Exec(t, db.Pool, r.sql.In(disownLane), lane); n != want {
			t.Errorf("of lane %d are %d owners gone, want %d", lane, n, want)
		}
	}
	if got := pgtest.Text(t, db.Pool, "select string_agg(lane::text, ' ' order by lane) from holdfast.lane where owner is null"); got != "3" {
		t.Errorf("the lanes without an owner are %s", got)
	}
}

// While one changes what is parked in a lane, the other one waits.
func TestLanes_ALaneIsChangedByOneAtATime(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	t.Parallel()
	db, r := room(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		values (3, 'gone', 'k', -1, 'topic', 'infinity', 1, 's', 't', now())`)
	pgtest.Exec(t, pgtest.Begin(t, db), "select "+waitroom.LockLane+" from holdfast.lane l where l.lane <> 3") // Nobody waits for other lanes.
	for _, act := range []func() (int, error){
		func() (int, error) {
			return r.Retry(t.Context(), Filter{Origin: "relay", Topic: "gone"}, Options{By: "ann"})
		},
		func() (int, error) {
			return r.Discard(t.Context(), Filter{Origin: "relay", Topic: "gone"}, Options{By: "ann"})
		},
	} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "select "+waitroom.LockLane+" from holdfast.lane l where l.lane = 3")
		done := make(chan error, 1)
		go func() { _, err := act(); done <- err }()
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLanes_ALanesOwnerWaitsForAMoment(t *testing.T) {
	for _, c := range []struct {
		rows int
		took time.Duration
		want int
	}{
		{1000, 0, 2000}, {1000, 49 * time.Millisecond, 2000}, {1000, 50 * time.Millisecond, 1000}, {1000, 100 * time.Millisecond, 1000},
		{1000, 101 * time.Millisecond, 500}, {4000, 0, 5000}, {5000, time.Hour, 2500}, {150, time.Second, 100}, {100, time.Hour, 100},
	} {
		if got := paced(c.rows, c.took); got != c.want {
			t.Errorf("after %d rows in %v come %d, want %d", c.rows, c.took, got, c.want)
		}
	}
}
