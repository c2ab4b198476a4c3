package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/internal/waitroom"
)

// The lanes of these tests are 0 to 4, and ours is 2, of the owner b in the epoch 5. Those below and above have the same owner and epoch. A lease
// has five seconds.
const (
	ownedLanes = "update holdfast.lane set owner = 'b', epoch = 5, save = 7, done = '30:30:', upto = '40:40:', pos = 3, published = 30, lease_until = now() + interval '4 seconds'"
	ourLane    = 2
	aLease     = 5 * time.Second
)

// likeOurs are changes of our lane, and whether it is then b's in the epoch 5.
var likeOurs = map[string]struct {
	change string
	ours   bool
}{
	"ours":                                 {"update holdfast.lane set save = 7 where lane = 2", true},
	"another's, whose name is before ours": {"update holdfast.lane set owner = 'a' where lane = 2", false},
	"another's, whose name is after ours":  {"update holdfast.lane set owner = 'c' where lane = 2", false},
	"nobody's":                             {"update holdfast.lane set owner = null, lease_until = '-infinity' where lane = 2", false},
	"of an earlier epoch":                  {"update holdfast.lane set epoch = 4 where lane = 2", false},
	"of a later epoch":                     {"update holdfast.lane set epoch = 6 where lane = 2", false},
}

// wordsOf is what a statement returns: a word for each row, its columns with slashes between them.
func wordsOf(t *testing.T, tx pgx.Tx, statement string, args ...any) string {
	t.Helper()
	rows, err := tx.Query(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	words, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		columns := make([]string, len(values))
		for i, v := range values {
			columns[i] = fmt.Sprint(v)
		}
		return strings.Join(columns, "/"), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(words, " ")
}

// sortedWordsOf is wordsOf for a statement that returns its rows in any order.
func sortedWordsOf(t *testing.T, tx pgx.Tx, statement string, args ...any) string {
	t.Helper()
	words := strings.Fields(wordsOf(t, tx, statement, args...))
	slices.Sort(words)
	return strings.Join(words, " ")
}

// doneBy says what f did to the rows that a statement names.
func doneBy(t *testing.T, tx pgx.Tx, named string, f func()) string {
	t.Helper()
	var changes []string
	for _, row := range effect.Changed(t, tx, named, f) {
		switch name := strings.TrimLeft(row, "+-"); row[0] {
		case '+':
			changes = append(changes, name+" new")
		case '-':
			changes = append(changes, name+" gone")
		default:
			changes = append(changes, name+" changed")
		}
	}
	slices.Sort(changes)
	return strings.Join(changes, ", ")
}

const (
	lanesByName  = "select 'lane ' || lane, l::text from holdfast.lane l"
	leasesByName = lanesByName + " union all select concat_ws(' ', 'lease', lane, topic, key, place), p::text from holdfast.parked_lease p"
	relaysByName = lanesByName + " union all select 'relay ' || name, r::text from holdfast.relay r"
)

// tokens are the incarnation's, and two that it is not: one that is before it, and one that is after it.
func tokens(t *testing.T, db *pgtest.DB) (now string, others []string) {
	t.Helper()
	return pgtest.Text(t, db.Pool, "select token from holdfast.current_incarnation"), []string{"", "z"}
}

// Who has a lane begins its leases anew, and those of no other lane, nor under another's name, epoch or incarnation.
func TestNeighbours_ALaneBeginsItsLeasesAndNoOthers(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, others := tokens(t, db)
	const leases = `insert into holdfast.parked_lease (lane, topic, key, place)
		select l, t, k, p from unnest('{1,2,3}'::int[]) l, (values ('', '', 4), ('', '', 5), ('', '', 6), ('t', 'k', 0), ('t', '', 5)) v (t, k, p)`
	begin := func(leases, change, token, want string) {
		t.Helper()
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, ownedLanes)
			pgtest.Exec(t, tx, leases)
			pgtest.Exec(t, tx, change)
			if got := doneBy(t, tx, leasesByName, func() {
				pgtest.Exec(t, tx, sqlschema.In("", beginLeases), ourLane, "b", 5, token)
			}); got != want {
				t.Errorf("%s: %q, want %q", change, got, want)
			}
		})
	}
	for _, c := range likeOurs {
		want := ""
		if c.ours {
			want = "lease 2   4 gone, lease 2   6 gone, lease 2 t  5 gone, lease 2 t k 0 gone"
		}
		begin(leases, c.change, token, want)
	}
	for _, other := range others {
		begin(leases, "select 1", other, "")
	}
	begin("select 1", "select 1", token, "lease 2   5 new")
}

// Who has a lane hands it back with its leases, and no other lane, nor under another's name or epoch.
func TestNeighbours_ALaneIsHandedBackAndNoOther(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	for name, c := range likeOurs {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, ownedLanes)
			pgtest.Exec(t, tx, "insert into holdfast.parked_lease (lane, topic, key, place) select l, 't', 'k', 0 from unnest('{1,2,3}'::int[]) l")
			pgtest.Exec(t, tx, c.change)
			want := ""
			if c.ours {
				want = "lane 2 changed, lease 2 t k 0 gone"
			}
			if got := doneBy(t, tx, leasesByName, func() { pgtest.Exec(t, tx, sqlschema.In("", releaseLane), ourLane, "b", 5) }); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		})
	}
}

// The fence of a lane lets its owner through, and then keeps the lane and what is parked in it, and no other.
func TestNeighbours_AFenceLetsTheOwnerOfItsLaneThrough(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, others := tokens(t, db)
	pgtest.Exec(t, db.Pool, ownedLanes)
	fence := func(change, token string, through bool) {
		t.Helper()
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, change)
			want := ""
			if through {
				want = "1"
			}
			if got := wordsOf(t, tx, sqlschema.In("", fenceLane), ourLane, "b", 5, token); got != want {
				t.Errorf("%s: %q, want %q", change, got, want)
			}
			if !through {
				return
			}
			effect.Undone(t, db, func(other pgx.Tx) {
				if got := wordsOf(t, other, "select lane from holdfast.lane order by lane for update skip locked"); got != "0 1 3 4" {
					t.Errorf("the lanes %s are free", got)
				}
				free := "select l.lane from holdfast.lane l where " + strings.Replace(waitroom.LockLane, "pg_advisory", "pg_try_advisory", 1) + " order by l.lane"
				if got := wordsOf(t, other, free); got != "0 1 3 4" {
					t.Errorf("what is parked in the lanes %s may be changed", got)
				}
			})
		})
	}
	for _, c := range likeOurs {
		fence(c.change, token, c.ours)
	}
	fence("select 1", token, true)
	for _, other := range others {
		fence("select 1", other, false)
	}
}

// freeOrNot are changes of our lane, and whether a relay b whose leases last five seconds may then take it. The moment is that of the
// transaction, so that a lease can end in it.
var freeOrNot = map[string]struct {
	change string
	free   bool
}{
	"a lease that runs":                       {"owner = 'a', lease_until = now() + interval '4 seconds'", false},
	"the lease of one whose name is after":    {"owner = 'c', lease_until = now() + interval '4 seconds'", false},
	"a lease that has run out":                {"owner = 'a', lease_until = now() - interval '1 microsecond'", true},
	"a lease that ends now":                   {"owner = 'a', lease_until = now()", false},
	"a lease of two lengths":                  {"owner = 'a', lease_until = now() + interval '10 seconds'", false},
	"a lease that no right clock has given":   {"owner = 'a', lease_until = now() + interval '10.000001 seconds'", true},
	"nobody's":                                {"owner = null, lease_until = '-infinity'", true},
	"it has our name, and its lease runs":     {"owner = 'b', lease_until = now() + interval '4 seconds'", true},
	"it has our name, and its lease ends now": {"owner = 'b', lease_until = now()", true},
}

// A claim takes the lowest lane that is free, and none that is in our memory or leased by another.
func TestNeighbours_AClaimTakesTheLowestLaneThatIsFree(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, others := tokens(t, db)
	const leased = "update holdfast.lane set owner = 'c', epoch = 5, lease_until = now() + interval '4 seconds', done = '30:30:', upto = null, pos = 0, published = 30"
	claim := func(before []string, memory []int16, token, answer, changed string) {
		t.Helper()
		effect.Undone(t, db, func(tx pgx.Tx) {
			for _, sql := range append([]string{leased}, before...) {
				pgtest.Exec(t, tx, sql)
			}
			if got := doneBy(t, tx, lanesByName, func() {
				if got := wordsOf(t, tx, sqlschema.In("", claimLane), "b", aLease, token, memory); got != answer {
					t.Errorf("%q: the answer is %q, want %q", before, got, answer)
				}
			}); got != changed {
				t.Errorf("%q: %q, want %q", before, got, changed)
			}
		})
	}
	for _, c := range freeOrNot {
		answer, changed := "", ""
		if c.free {
			answer, changed = "2/6/30:30://0/30", "lane 2 changed"
		}
		claim([]string{"update holdfast.lane set " + c.change + " where lane = 2"}, []int16{1, 3}, token, answer, changed)
	}
	const free = "update holdfast.lane set owner = null, lease_until = '-infinity' where lane > 1"
	claim([]string{free}, []int16{}, token, "2/6/30:30://0/30", "lane 2 changed")
	claim([]string{free}, []int16{2}, token, "3/6/30:30://0/30", "lane 3 changed")
	claim([]string{free}, []int16{2, 4}, token, "3/6/30:30://0/30", "lane 3 changed")
	for _, other := range others {
		claim([]string{free}, []int16{}, other, "", "")
	}
}

// A heartbeat counts the other relays that run, and the lanes that are free for us.
func TestNeighbours_AHeartbeatCountsWhoRunsAndWhatIsFree(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	beat := func(before string, memory []int16, want string) {
		t.Helper()
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, "update holdfast.lane set owner = case when lane < 2 then 'a' else 'c' end, lease_until = now() + interval '4 seconds'")
			pgtest.Exec(t, tx, before)
			if got := wordsOf(t, tx, sqlschema.In("", heartbeatRelay), "b", aLease, memory, "", time.Minute); got != want {
				t.Errorf("%s: %s, want %s", before, got, want)
			}
			if got := wordsOf(t, tx, "select seen_until = now() + interval '5 seconds' from holdfast.relay where name = 'b'"); got != "true" {
				t.Errorf("%s: ours is seen until then: %s", before, got)
			}
			if got := wordsOf(t, tx, "select started_at = now() - interval '1 minute' from holdfast.relay where name = 'b'"); got != "true" {
				t.Errorf("%s: ours has run for a minute: %s", before, got)
			}
		})
	}
	for _, c := range freeOrNot {
		beat("update holdfast.lane set "+c.change+" where lane = 2", []int16{1, 3}, map[bool]string{true: "1/5/1", false: "1/5/0"}[c.free])
	}
	beat("update holdfast.lane set owner = 'b' where lane between 1 and 3", []int16{1, 3}, "1/5/1")
	beat("update holdfast.lane set owner = 'b' where lane between 1 and 3", []int16{2}, "1/5/2")
	for until, n := range map[string]int{
		"now()":                               1,
		"now() + interval '1 microsecond'":    2,
		"now() + interval '9.999999 seconds'": 2,
		"now() + interval '10 seconds'":       1,
		"now() - interval '1 day'":            1,
		"'infinity'":                          1,
	} {
		for _, name := range []string{"a", "c"} {
			beat(fmt.Sprintf("insert into holdfast.relay (name, seen_until) values ('%s', %s)", name, until), []int16{}, fmt.Sprintf("%d/5/0", n))
		}
		beat("insert into holdfast.relay (name, seen_until) values ('b', "+until+")", []int16{}, "1/5/0")
	}
}

// A relay that leaves removes itself and those that have not been seen for a day, and gives back what it owns.
func TestNeighbours_ARelayThatLeavesTakesNobodyAlong(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, "update holdfast.lane set owner = case lane when 0 then null when 1 then 'a' when 2 then 'b' when 3 then 'c' else 'b' end")
		pgtest.Exec(t, tx, `insert into holdfast.relay (name, seen_until) values ('a', now()), ('b', now() + interval '1 second'), ('c', now() + interval '1 second'),
			('d', now() - interval '1 day'), ('e', now() - interval '1 day 0.000001 seconds'), ('aa', now() - interval '2 days')`)
		want := "lane 2 changed, lane 4 changed, relay aa gone, relay b gone, relay e gone"
		if got := doneBy(t, tx, relaysByName, func() { pgtest.Exec(t, tx, sqlschema.In("", leaveRelay), "b") }); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := wordsOf(t, tx, "select lane from holdfast.lane where owner is null and lease_until = '-infinity' order by lane"); got != "0 2 4" {
			t.Errorf("free are %s", got)
		}
	})
}

// A paused topic is paused for relays; what is paused of a consumer is none of theirs.
func TestNeighbours_APauseOfAConsumerIsNoPauseOfATopic(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, "insert into holdfast.pause (consumer, topic, key, by, reason) values ('', 'bills', '', 'ann', ''), ('mail', '', '', 'ann', ''), ('mail', 'orders', 'k', 'ann', '')")
		if got := wordsOf(t, tx, sqlschema.In("", readPaused)); got != "bills" {
			t.Errorf("paused are %s", got)
		}
	})
}

// A save writes the cursors of its own lanes and renews their leases, and says of which of them that is so.
func TestNeighbours_ASaveWritesItsOwnLanes(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, others := tokens(t, db)
	type saved struct {
		lanes       []int16
		epochs      []int64
		dones, upto []*string
		pos         []int64
	}
	texts := func(all ...string) (pointers []*string) {
		for _, text := range all {
			pointers = append(pointers, &text)
		}
		return pointers
	}
	three := func() saved {
		return saved{[]int16{1, 2, 3}, []int64{5, 5, 5}, texts("31:31:", "32:32:", "33:33:"), texts("41:41:", "", "43:43:"), []int64{11, 0, 13}}
	}
	const cursors = "select concat_ws(' ', 'lane', lane, owner, epoch), concat_ws(' ', done, coalesce(upto::text, 'no window'), pos, save, published, 'renewed', lease_until = now() + interval '5 seconds' and saved_at = now()) from holdfast.lane"
	save := func(name, before string, s saved, token, answer string, want map[string]string) {
		t.Helper()
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, ownedLanes)
			pgtest.Exec(t, tx, before)
			was := effect.State(t, tx, cursors)
			if got := sortedWordsOf(t, tx, sqlschema.In("", saveLanes), "b", aLease, s.lanes, s.epochs, s.dones, s.upto, s.pos, token, 8, []int64{61, 62, 63}); got != answer {
				t.Errorf("%s: the answer is %q, want %q", name, got, answer)
			}
			is := effect.State(t, tx, cursors)
			for lane, row := range is {
				if was[lane] == row {
					delete(is, lane)
				}
			}
			if fmt.Sprint(is) != fmt.Sprint(want) {
				t.Errorf("%s: saved are %v, want %v", name, is, want)
			}
		})
	}
	all := map[string]string{"lane 1 b 5": "31:31: 41:41: 11 8 61 renewed t", "lane 2 b 5": "32:32: no window 0 8 62 renewed t", "lane 3 b 5": "33:33: 43:43: 13 8 63 renewed t"}
	without := map[string]string{"lane 1 b 5": all["lane 1 b 5"], "lane 3 b 5": all["lane 3 b 5"]}
	for name, c := range likeOurs {
		if c.ours {
			save(name, c.change, three(), token, "1/true 2/true 3/true", all)
		} else {
			save(name, c.change, three(), token, "1/true 3/true", without)
		}
	}
	for _, other := range others {
		save("another incarnation", "select 1", three(), other, "", nil)
	}
	save("after the same one", "update holdfast.lane set save = 8 where lane = 2", three(), token, "1/true 3/true", without)
	save("after a later one", "update holdfast.lane set save = 9 where lane = 2", three(), token, "1/true 3/true", without)
	for _, epoch := range []int64{4, 6} {
		s := three()
		s.epochs[1] = epoch
		save("under another epoch", "select 1", s, token, "1/true 3/true", without)
	}
	for _, ahead := range []func(s saved){
		func(s saved) { s.dones[1] = texts("99999999999:99999999999:")[0] },
		func(s saved) { s.upto[1] = texts("99999999999:99999999999:")[0] },
	} {
		s := three()
		ahead(s)
		save("ahead of the server", "select 1", s, token, "1/true 3/true", without)
	}
	s := three()
	s.dones[1], s.upto[1], s.pos[1] = nil, nil, 12
	save("only the place in a window", "select 1", s, token, "1/true 2/true 3/true",
		map[string]string{"lane 1 b 5": all["lane 1 b 5"], "lane 2 b 5": "30:30: 40:40: 12 8 62 renewed t", "lane 3 b 5": all["lane 3 b 5"]})
}

// A save waits for no lane that another session has locked. It says so of those that are ours, and locks no lane that it does not save.
func TestNeighbours_ASavePassesOverALockedLane(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, others := tokens(t, db)
	done, upto := "31:31:", "41:41:"
	save := func(name, token, answer, free string) {
		t.Helper()
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, "set local lock_timeout = '1s'")
			args := []any{"b", aLease, []int16{1, 2, 3}, []int64{5, 5, 5}, []*string{&done, &done, &done}, []*string{&upto, &upto, &upto}, []int64{1, 2, 3}, token, 8, []int64{61, 62, 63}}
			if got := sortedWordsOf(t, tx, sqlschema.In("", saveLanes), args...); got != answer {
				t.Errorf("%s: the answer is %q, want %q", name, got, answer)
			}
			effect.Undone(t, db, func(other pgx.Tx) {
				if got := wordsOf(t, other, "select lane from holdfast.lane order by lane for update skip locked"); free != "" && got != free {
					t.Errorf("%s: the lanes %s are free, want %s", name, got, free)
				}
			})
		})
	}
	for name, c := range likeOurs {
		pgtest.Exec(t, db.Pool, ownedLanes)
		pgtest.Exec(t, db.Pool, c.change)
		effect.Undone(t, db, func(locker pgx.Tx) {
			pgtest.Exec(t, locker, "select from holdfast.lane where lane = 2 for update")
			if c.ours {
				save(name+", and locked", token, "1/true 2/false 3/true", "0 4")
			} else {
				save(name+", and locked", token, "1/true 3/true", "0 4")
			}
			for _, other := range others {
				save(name+", in another incarnation", other, "", "")
			}
		})
		if !c.ours && !strings.Contains(c.change, "epoch") {
			save(name, token, "1/true 3/true", "0 2 4")
		}
	}
}

// A segment says its own size, and the log which one is written to.
func TestNeighbours_EachSegmentSaysItsOwnSize(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, "insert into holdfast.event_1 (lane, id, type, topic) values (1, 'e', 't', 'orders')")
		pgtest.Exec(t, tx, "insert into holdfast.event_3 (lane, id, type, topic) values (1, 'e', 't', 'orders')")
		segments := func(want string) {
			t.Helper()
			if got := wordsOf(t, tx, "with s (current, n, size, empty) as ("+sqlschema.In("", readSegments)+") select current, n, empty from s"); got != want {
				t.Errorf("the segments are %s, want %s", got, want)
			}
		}
		segments("0/0/true 0/1/false 0/2/true 0/3/false")
		// A rotation says from where to where: who is late with one changes nothing.
		for _, c := range []struct{ next, from, now int }{{2, 0, 2}, {3, 1, 2}, {3, 3, 2}, {3, 2, 3}} {
			pgtest.Exec(t, tx, sqlschema.In("", rotateSegments), c.next, c.from)
			if got := wordsOf(t, tx, "select current from holdfast.segments"); got != fmt.Sprint(c.now) {
				t.Errorf("after a rotation from %d to %d the segment is %s, want %d", c.from, c.next, got, c.now)
			}
		}
		segments("3/0/true 3/1/false 3/2/true 3/3/false")
	})
}

// Who holds a segment is a transaction with a lock on it: not one that waits for that, nor one that has another segment, nor the same
// of another database, nor one that is over.
func TestNeighbours_WhoHoldsASegmentHoldsNoOther(t *testing.T) {
	t.Parallel()
	dbs := []*pgtest.DB{migrated.Lanes(t, 5), migrated.Lanes(t, 5), migrated.Lanes(t, 5)}
	slices.SortFunc(dbs, func(a, b *pgtest.DB) int {
		const oid = "select oid::bigint from pg_database where datname = current_database()"
		return int(pgtest.Count(t, a.Pool, oid) - pgtest.Count(t, b.Pool, oid))
	})
	db := dbs[1]
	pool := db.PoolOf(t, 12)
	begin := func(options pgx.TxOptions) pgx.Tx {
		t.Helper()
		tx, err := pool.BeginTx(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		return tx
	}
	const numbers = "select string_agg((c.oid::bigint - $1)::text, ' ' order by c.relname) from pg_class c where c.relname ~ '^event_[0-3]$'"
	base := pgtest.Count(t, db.Pool, "select 'holdfast.event_0'::regclass::oid::bigint")
	for _, other := range dbs {
		if got, want := pgtest.Text(t, other.Pool, numbers, base), pgtest.Text(t, db.Pool, numbers, base); got != want {
			t.Fatalf("the segments of another copy have other numbers: %s, not %s", got, want)
		}
	}
	pgtest.Exec(t, db.Pool, "insert into holdfast.event_2 (lane, xid, seq, id, type, topic) values (1, '7', 1, 'e', 't', 'orders')")

	// Those that are over have left marks of what they read, a row and all of the segment, since a serializable one that they ran beside is not over.
	serializable := pgx.TxOptions{IsoLevel: pgx.Serializable}
	over, overToo, beside := begin(serializable), begin(serializable), begin(serializable)
	pgtest.Exec(t, beside, "select from holdfast.segments")
	pgtest.Exec(t, over, "set local enable_seqscan = off")
	pgtest.Exec(t, over, "set local enable_bitmapscan = off")
	pgtest.Exec(t, over, "select from holdfast.event_2 where lane = 1 and xid = '7' and seq = 1")
	pgtest.Exec(t, overToo, "select from holdfast.event_2")
	for topic, tx := range map[string]pgx.Tx{"bills": over, "orders": overToo} {
		pgtest.Exec(t, tx, "insert into holdfast.pause (topic, by, reason) values ($1, 'ann', '')", topic)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := pgtest.Text(t, db.Pool, "select string_agg(locktype, ' ' order by locktype) from pg_locks where mode = 'SIReadLock' and relation = 'holdfast.event_2'::regclass and database = (select oid from pg_database where datname = current_database())"); got != "relation tuple" {
		t.Fatalf("they have left marks of %s", got)
	}

	holders := func(want ...string) {
		t.Helper()
		tx := begin(pgx.TxOptions{})
		pgtest.Exec(t, tx, "lock table holdfast.event_2 in access share mode")
		got := sortedWordsOf(t, tx, sqlschema.In("", readHolders), 2)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		slices.Sort(want)
		if got != strings.Join(want, " ") {
			t.Errorf("holders are %s, want %s", got, want)
		}
	}
	lock := func(tx pgx.Tx, segment int) (name string) {
		t.Helper()
		pgtest.Exec(t, tx, fmt.Sprintf("lock table holdfast.event_%d in access share mode", segment))
		return pgtest.Text(t, tx, "select virtualtransaction from pg_locks where pid = pg_backend_pid() limit 1")
	}
	for _, segment := range []int{0, 1, 3} {
		lock(begin(pgx.TxOptions{}), segment)
	}
	for _, other := range []*pgtest.DB{dbs[0], dbs[2]} {
		want := lock(pgtest.Begin(t, other), 2)
		if got := wordsOf(t, pgtest.Begin(t, other), sqlschema.In("", readHolders), 2); got != want {
			t.Errorf("holders in another copy are %s, want %s", got, want)
		}
	}
	holders()
	first, second := begin(pgx.TxOptions{}), begin(pgx.TxOptions{})
	want := []string{lock(first, 2), lock(second, 2)}
	holders(want...)

	pgtest.Exec(t, first, "lock table holdfast.event_2 in share update exclusive mode")
	waiter := begin(pgx.TxOptions{})
	pid := pgtest.Count(t, waiter, "select pg_backend_pid()")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := waiter.Exec(ctx, "lock table holdfast.event_2 in share update exclusive mode")
		ended <- err
	}()
	wait.Until(t, "one that waits for the segment", func() bool {
		return pgtest.Count(t, db.Pool, "select count(*) from pg_locks where pid = $1 and not granted", pid) == 1
	})
	holders(want...)
	cancel()
	if err := <-ended; err == nil {
		t.Error("it has the lock, for which it should wait")
	}
}

// Of each of the lanes 1 to 3 two events are due since a minute, two fall due now, and one is due in a moment. The ids say lane and number, and
// so does the order in which they are due: the numbers of what is due later are lower.
const (
	scheduledRows = `insert into holdfast.scheduled (lane, due_at, seq, id, type, topic, key, time, headers, payload)
		select l, now() + due::interval, n, concat_ws('-', l, n), 't', 'orders', 'k', now(), '{}', 'four'
		  from unnest('{1,2,3}'::int[]) l, (values ('-1 minute', 30), ('-1 minute', 31), ('0', 20), ('0', 21), ('1 microsecond', 10)) v (due, n)`
	scheduledByName = "select 'scheduled ' || id, s::text from holdfast.scheduled s union all select 'event ' || id, e::text from holdfast.event e union all select 'letter ' || event_id, l::text from holdfast.letter l"
	scheduledSize   = 2 + 4 + 4 + 1 + 6 + 1 // of headers, payload, id, type, topic and key
)

// What is due in a lane is moved into the log, in order, as far as its bounds let it.
func TestNeighbours_WhatIsDueInALaneMovesInOrder(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	nobody := int64(0)
	for _, c := range []struct {
		before string
		most   int
		bytes  int64
		only   int64 // 0: none is named
		want   string
	}{
		{"", 100, 1 << 20, nobody, "2-30 2-31 2-20 2-21"},
		{"", 3, 1 << 20, nobody, "2-30 2-31 2-20"},
		{"", 100, 1, nobody, "2-30"},
		{"", 100, scheduledSize, nobody, "2-30"},
		{"", 100, scheduledSize + 1, nobody, "2-30 2-31"},
		{"", 100, 2 * scheduledSize, nobody, "2-30 2-31"},
		{"", 1, 1 << 20, 30, "2-30"},
		{"", 1, 1 << 20, 29, ""},
		{"", 1, 1 << 20, 31, ""},
		{"lane = 2 and due_at < now()", 100, 1 << 20, nobody, "2-20 2-21"},
		{"lane = 2 and due_at <= now()", 100, 1 << 20, nobody, ""},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, scheduledRows)
			if c.before != "" {
				pgtest.Exec(t, tx, "delete from holdfast.scheduled where "+c.before)
			}
			var only *int64
			if c.only != nobody {
				only = &c.only
			}
			moved := strings.Fields(c.want)
			var changes []string
			for _, id := range moved {
				changes = append(changes, "event "+id+" new", "scheduled "+id+" gone")
			}
			slices.Sort(changes)
			if got := doneBy(t, tx, scheduledByName, func() {
				if got, want := wordsOf(t, tx, sqlschema.In("", moveScheduled), ourLane, c.most, c.bytes, only), fmt.Sprintf("%d/%d", len(moved), len(moved)*scheduledSize); got != want {
					t.Errorf("%+v: the answer is %q, want %q", c, got, want)
				}
			}); got != strings.Join(changes, ", ") {
				t.Errorf("%+v: %s", c, got)
			}
			if got := wordsOf(t, tx, "select id from holdfast.event order by seq"); got != c.want {
				t.Errorf("%+v: the log has %s", c, got)
			}
		})
	}
}

// What is due first in a lane has a name, whatever is due first in others.
func TestNeighbours_WhatIsDueFirstIsNamed(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	for gone, want := range map[string]string{
		"false":                        "30",
		"lane = 2 and seq = 30":        "31",
		"lane = 2 and due_at < now()":  "20",
		"lane = 2 and due_at <= now()": "",
		"lane <> 2":                    "30",
		"lane = 2":                     "",
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, scheduledRows)
			pgtest.Exec(t, tx, "delete from holdfast.scheduled where "+gone)
			if got := wordsOf(t, tx, sqlschema.In("", nameScheduled), ourLane); got != want {
				t.Errorf("without those where %s it is %q, want %q", gone, got, want)
			}
		})
	}
}

// A dead letter is made of what is due first, if that is the one that is named, or else of the first that is too large. The bounds are smaller
// here than they are.
func TestNeighbours_ADeadLetterIsMadeOfTheNamedOrTheTooLarge(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	const (
		payload = "update holdfast.scheduled set payload = repeat('x', %d)::bytea where %s"
		headers = "update holdfast.scheduled set headers = jsonb_build_object('h', repeat('x', %d)) where %s"
	)
	size := pgtest.Text(t, db.Pool, "select pg_column_size(jsonb_build_object('h', repeat('x', 300)))")
	statement := strings.NewReplacer(sqlschema.MaxPayload, "100", sqlschema.MaxStoredHeaders, size).Replace(sqlschema.In("", deadLetterScheduled))
	nobody := int64(0)
	for _, c := range []struct {
		before string
		only   int64 // 0: none is named
		want   string
	}{
		{"", 30, "30"},
		{"", 29, ""},
		{"", 31, ""},
		{"", 20, ""},
		{"", nobody, ""},
		{"delete from holdfast.scheduled where lane = 2 and due_at < now()", 20, "20"},
		{"delete from holdfast.scheduled where lane = 2 and due_at <= now()", 10, ""},
		{"delete from holdfast.scheduled where lane = 2", 30, ""},
		{fmt.Sprintf(payload, 101, "lane = 2 and seq = 30"), 31, ""},
		{fmt.Sprintf(payload, 100, "lane = 2"), nobody, ""},
		{fmt.Sprintf(headers, 300, "lane = 2"), nobody, ""},
		{fmt.Sprintf(payload, 101, "lane = 2 and seq = 31"), nobody, "31"},
		{fmt.Sprintf(headers, 301, "lane = 2 and seq = 31"), nobody, "31"},
		{fmt.Sprintf(payload, 101, "lane = 2 and seq in (10, 20, 21)"), nobody, "20"},
		{fmt.Sprintf(payload, 101, "lane <> 2 or seq = 10"), nobody, ""},
		{fmt.Sprintf(headers, 301, "lane <> 2 or seq = 10"), nobody, ""},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, scheduledRows)
			if c.before != "" {
				pgtest.Exec(t, tx, c.before)
			}
			var only *int64
			if c.only != nobody {
				only = &c.only
			}
			answer, want := "", ""
			if c.want != "" {
				answer, want = c.want+"/orders/2-"+c.want+"/t/k", "letter 2-"+c.want+" new, scheduled 2-"+c.want+" gone"
			}
			if got := doneBy(t, tx, scheduledByName, func() {
				_, got, _ := strings.Cut(wordsOf(t, tx, statement, ourLane, "too large", "f", only), "/")
				if got != answer {
					t.Errorf("%+v: the answer is %q, want %q", c, got, answer)
				}
			}); got != want {
				t.Errorf("%+v: %q, want %q", c, got, want)
			}
		})
	}
}
