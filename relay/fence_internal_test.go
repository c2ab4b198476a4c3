package relay

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Every statement that changes a lane names its owner, its epoch and the incarnation: late writes touch no row.
func TestFence_WhoLostALaneTouchesNoRowOfIt(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	done := "9:9:"
	upto := ""
	for _, c := range []struct {
		name  string
		owner string
		epoch int64
		token string
		want  int64
	}{
		{"the owner", "heir", 2, r.token, 1},
		{"the owner before", "zombie", 1, r.token, 0},
		{"the owner's name under an older epoch", "heir", 1, r.token, 0},
		{"another's name under the right epoch", "zombie", 2, r.token, 0},
		{"the owner, with a token of before a crash", "heir", 2, "00000000-0000-4000-8000-000000000000", 0},
	} {
		pgtest.Exec(t, pool, "update holdfast.lane set owner = 'heir', epoch = 2, save = 6, done = '5:5:', upto = null, pos = 0, lease_until = now() + interval '1 minute'")
		if n := pgtest.Exec(t, pool, r.sql.In(fenceLane), 0, c.owner, c.epoch, c.token); n != c.want {
			t.Errorf("%s: the fence let %d rows through, want %d", c.name, n, c.want)
		}
		if n := pgtest.Exec(t, pool, r.sql.In(saveLanes), c.owner, time.Second, []int16{0}, []int64{c.epoch}, []*string{&done}, []*string{&upto}, []int64{0}, c.token, 7, []int64{0}); n != c.want {
			t.Errorf("%s: a save touched %d rows, want %d", c.name, n, c.want)
		}
		if c.token == r.token { // handing back needs no incarnation: it only says that the lane is free
			if n := pgtest.Exec(t, pool, r.sql.In(releaseLane), 0, c.owner, c.epoch); n != c.want {
				t.Errorf("%s: a release touched %d rows, want %d", c.name, n, c.want)
			}
		}
	}
}

// A relay gives a save up after a lease, and goes on. What it has sent may be carried out much later: by a server process that
// stood still, or its link lost packets.
func TestFence_ASaveThatArrivesAfterALaterOneWritesNothing(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	pgtest.Exec(t, pool, "update holdfast.lane set owner = 'me', epoch = 2, done = '5:5:', upto = null, pos = 0, lease_until = now() + interval '1 minute'")
	done, window, over := "5:5:", "9:9:", ""
	save := func(epoch int64, done, upto *string, pos, number int64) int64 {
		t.Helper()
		return pgtest.Exec(t, pool, r.sql.In(saveLanes), "me", time.Minute, []int16{0}, []int64{epoch}, []*string{done}, []*string{upto}, []int64{pos}, r.token, number, []int64{100 * number})
	}
	if save(2, &done, &window, 40, 1) != 1 || save(2, &window, &over, 0, 3) != 1 {
		t.Fatal("a save in its turn wrote nothing")
	}
	for name, late := range map[string]func() int64{
		"the whole cursor":                        func() int64 { return save(2, &done, &window, 70, 2) },
		"the same number again":                   func() int64 { return save(2, &done, &over, 0, 3) },
		"a place in a window that is over by now": func() int64 { return save(2, nil, nil, 70, 2) },
	} {
		if n := late(); n != 0 {
			t.Errorf("%s: it touched %d rows", name, n)
		}
		if pgtest.Count(t, pool, "select count(*) from holdfast.lane where done::text = '9:9:' and upto is null and pos = 0 and published = 300") != 1 {
			t.Errorf("%s: the cursor went back, or what is published", name)
		}
	}
	pgtest.Exec(t, pool, "update holdfast.lane set lease_until = '-infinity'")
	if n := pgtest.Exec(t, pool, r.sql.In(claimLane), "me", time.Minute, r.token, []int16{}); n != 1 {
		t.Fatalf("%d lanes were claimed", n)
	}
	if n := save(2, &done, &window, 70, 9); n != 0 {
		t.Errorf("a save of the epoch before touched %d rows", n)
	}
	if n := save(3, &window, &over, 0, 1); n != 1 { // of a process that has just begun to count
		t.Errorf("the first save of an epoch touched %d rows", n)
	}
}

func TestFence_AClaimTakesWhatIsFreeAndNothingElse(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 1, 10)
	for _, c := range []struct {
		name     string
		set      string
		inMemory []int16
		token    string
		want     int64
	}{
		{"another's lease runs", "owner = 'other', lease_until = now() + interval '4 seconds'", nil, r.token, 0},
		{"another's lease ends in a moment", "owner = 'other', lease_until = now() + interval '300 milliseconds'", nil, r.token, 0},
		{"another's lease ran out", "owner = 'other', lease_until = now() - interval '1 second'", nil, r.token, 1},
		{"another's lease is further away than a clock can have given it", "owner = 'other', lease_until = now() + interval '11 seconds'", nil, r.token, 1},
		{"handed back", "owner = null, lease_until = '-infinity'", nil, r.token, 1},
		{"ours in the table only: it was dropped", "owner = 'me', lease_until = now() + interval '4 seconds'", nil, r.token, 1},
		{"ours and at work", "owner = 'me', lease_until = now() + interval '4 seconds'", []int16{0}, r.token, 0},
		{"handed back a moment ago, and still in our memory", "owner = null, lease_until = '-infinity'", []int16{0}, r.token, 0},
		{"free, but the database was restarted after a crash", "owner = null, lease_until = '-infinity'", nil, "00000000-0000-4000-8000-000000000000", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			pgtest.Exec(t, pool, "update holdfast.lane set epoch = 3, "+c.set)
			inMemory := c.inMemory
			if inMemory == nil {
				inMemory = []int16{}
			}
			if n := pgtest.Exec(t, pool, r.sql.In(claimLane), "me", 5*time.Second, c.token, inMemory); n != c.want {
				t.Errorf("%d lanes were claimed, want %d", n, c.want)
			}
			if epoch := pgtest.Count(t, pool, "select epoch from holdfast.lane"); epoch != 3+c.want {
				t.Errorf("the epoch is %d, it was 3", epoch)
			}
		})
	}
}
