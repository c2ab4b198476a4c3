package inbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// A consumer's stored events are counted up to a limit.
func TestQueueNeighbours_StoredEventsOfOtherConsumersAreNotCounted(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, waitingRows)
		for limit, want := range map[int32]string{100: "18", 18: "18", 17: "17"} {
			if got := effect.Returned(t, tx, sqlschema.In("", storedCountSQL), "b", limit); got != want {
				t.Errorf("up to %d: %s, want %s", limit, got, want)
			}
		}
	})
}

// The stored events by their names, which say consumer, topic, key and place.
const storedRows = "select event_id, s::text from holdfast.stored s"

// awakeRows are waitingRows in which the second event is due as the first one is.
var awakeRows = strings.Replace(waitingRows, "case when p = 10 then now() - interval '1 minute' else 'infinity' end", "now() - interval '1 minute'", 1)

// awakeBefore is an event before the others of a queue, which is due.
var awakeBefore = strings.NewReplacer("'t', now(), '', 'infinity'", "'u', now(), '', now()", "nextval('holdfast.stored_place')", "5").Replace(somethingStored)

// A follower that is active is made dormant, unless a worker has it, it was tried, or it is a letter's replay.
func TestQueueNeighbours_AFollowerIsDeferredInItsOwnQueue(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	deferred := func(t *testing.T, before ...string) []string {
		t.Helper()
		var changed []string
		effect.Undone(t, db, func(tx pgx.Tx) {
			for _, sql := range append([]string{awakeRows}, before...) {
				pgtest.Exec(t, tx, sql)
			}
			changed = effect.Changed(t, tx, storedRows, func() { pgtest.Exec(t, tx, sqlschema.In("", deferSQL), "b", "b", "b") })
			if got := effect.Returned(t, tx, "select count(*) from holdfast.stored where event_id = any($1) and next_at < 'infinity'", changed); got != "0" {
				t.Errorf("%s of what was changed are not dormant", got)
			}
		})
		return changed
	}
	const change = "update holdfast.stored q set %s where place = 20 and %s"
	for name, c := range map[string]struct {
		change string
		want   string
	}{
		"it is due":                       {"attempts = 0", "bbb20"},
		"its lease ends now":              {"lease_until = now()", "bbb20"},
		"it is leased":                    {"lease_until = now() + interval '1 microsecond'", ""},
		"it was tried":                    {"attempts = 1", ""},
		"it is a replay":                  {"letter = 7", ""},
		"it is dormant":                   {"next_at = 'infinity'", ""},
		"it is due at the end of a delay": {"next_at = now() + interval '1 minute'", "bbb20"},
	} {
		if got := strings.Join(deferred(t, fmt.Sprintf(change, c.change, ourQueue)), " "); got != c.want {
			t.Errorf("%s: deferred are %q, want %q", name, got, c.want)
		}
		if got := strings.Join(deferred(t, fmt.Sprintf(change, c.change, otherQueues)), " "); got != "bbb20" {
			t.Errorf("%s, of others: deferred are %q", name, got)
		}
	}
	// The head stays, though the event in its place is a follower elsewhere.
	if got := strings.Join(deferred(t, fmt.Sprintf(awakeBefore, otherQueues)), " "); got != "bbb20" {
		t.Errorf("others have an earlier head: deferred are %q", got)
	}
	// A thousand at a time, the first ones: what may not be deferred is not among them.
	const many = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, attempts, letter, lease_until)
		select 'b', 'b', 'b', 10000 + n, 's', 'many ' || n, 't', now(), '', %s from generate_series(1, 1000) n`
	for name, c := range map[string]struct {
		are   string
		first bool // some of them are deferred
	}{
		"may be deferred": {"now(), 0, null, '-infinity'", true},
		"are dormant":     {"'infinity', 0, null, '-infinity'", false},
		"were tried":      {"now(), 1, null, '-infinity'", false},
		"are replays":     {"now(), 0, 7, '-infinity'", false},
		"are leased":      {"now(), 0, null, now() + interval '1 minute'", false},
	} {
		got := deferred(t, fmt.Sprintf(many, c.are), "update holdfast.stored q set place = 20000 where place = 20 and "+ourQueue)
		switch {
		case c.first && (len(got) != 1000 || slices.Contains(got, "bbb20")):
			t.Errorf("behind a thousand that %s: deferred are %d, with the last one %v", name, len(got), slices.Contains(got, "bbb20"))
		case !c.first && !slices.Equal(got, []string{"bbb20"}):
			t.Errorf("behind a thousand that %s: deferred are %d", name, len(got))
		}
	}
}

// Keys are listed of which more than one event is active, if one of these may be deferred.
func TestQueueNeighbours_AKeyIsListedForItsOwnActiveEvents(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const second, both = "update holdfast.stored q set next_at = now(), %s where place = 20 and %s", "update holdfast.stored q set next_at = now(), %s where %s"
	for name, c := range map[string]struct{ change, want string }{
		"one of each is active":       {"select 1", ""},
		"two are":                     {fmt.Sprintf(second, "attempts = 0", ourQueue), "b b"},
		"two are, the first leased":   {fmt.Sprintf(both, "lease_until = case place when 10 then now() + interval '1 minute' else now() end", ourQueue), "b b"},
		"both are leased":             {fmt.Sprintf(both, "lease_until = now() + interval '1 microsecond'", ourQueue), ""},
		"both were tried":             {fmt.Sprintf(both, "attempts = 1", ourQueue), ""},
		"both are replays":            {fmt.Sprintf(both, "letter = 7", ourQueue), ""},
		"two are, of other consumers": {fmt.Sprintf(second, "attempts = 0", "consumer <> 'b'"), ""},
		"without a key":               {fmt.Sprintf(both, "key = ''", ourQueue), ""},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, waitingRows)
			pgtest.Exec(t, tx, c.change)
			if got := effect.Returned(t, tx, sqlschema.In("", activeSQL), "b"); got != c.want {
				t.Errorf("%s: listed are %q, want %q", name, got, c.want)
			}
		})
	}
}

// asleepRows are waitingRows in which both events are dormant.
var asleepRows = strings.Replace(waitingRows, "case when p = 10 then now() - interval '1 minute' else 'infinity' end", "'infinity'", 1)

// The sweep wakes the heads of one consumer's queues that are dormant though nothing holds them. It waits for none that another transaction
// has.
func TestQueueNeighbours_TheSweepWakesTheHeadsOfItsConsumer(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const heads = "baa10 bab10 bac10 bba10 bbb10 bbc10 bca10 bcb10 bcc10"
	const withoutOurs = "baa10 bab10 bac10 bba10 bbc10 bca10 bcb10 bcc10"
	const others = "(q.consumer <> 'b')"
	letterAt := func(place int, queues string) string {
		return fmt.Sprintf(strings.Replace(anOpenLetter, "key, 1,", fmt.Sprintf("key, %d,", place), 1), queues)
	}
	for name, c := range map[string]struct {
		before []string
		want   string
	}{
		"all are dormant":                       {nil, heads},
		"other consumers have an earlier event": {[]string{fmt.Sprintf(awakeBefore, others)}, heads},
		"other consumers' are awake":            {[]string{"update holdfast.stored q set next_at = now() where " + others}, heads},
		"ours is awake":                         {[]string{"update holdfast.stored q set next_at = now() where place = 10 and " + ourQueue}, withoutOurs},
		"an earlier one is awake":               {[]string{fmt.Sprintf(awakeBefore, ourQueue)}, withoutOurs},
		"a letter holds ours":                   {[]string{letterAt(9, ourQueue)}, withoutOurs},
		"a letter in the place of ours":         {[]string{letterAt(10, ourQueue)}, heads},
		"letters hold all others":               {[]string{letterAt(9, otherQueues)}, "bbb10"},
		"ours is paused":                        {[]string{fmt.Sprintf(aPausedKey, ourQueue)}, withoutOurs},
		"without a key each is a head":          {[]string{"update holdfast.stored q set key = '' where key = 'a'"}, "baa10 baa20 bab10 bac10 bba10 bba20 bbb10 bbc10 bca10 bca20 bcb10 bcc10"},
		"without a key, one is awake":           {[]string{"update holdfast.stored q set key = '', next_at = case when place = 10 then now() else 'infinity' end where key = 'a'"}, "baa20 bab10 bac10 bba20 bbb10 bbc10 bca20 bcb10 bcc10"},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, "set local statement_timeout = '5s'") // it goes from key to key, and so to an end
			for _, sql := range append([]string{asleepRows}, c.before...) {
				pgtest.Exec(t, tx, sql)
			}
			changed := effect.Changed(t, tx, storedRows, func() { pgtest.Exec(t, tx, sqlschema.In("", sweepSQL), "b") })
			if got := strings.Join(changed, " "); got != c.want {
				t.Errorf("%s: woken are %s, want %s", name, got, c.want)
			}
		})
	}
	// From here on the rows are committed, because another transaction has one.
	pgtest.Exec(t, db.Pool, asleepRows)
	effect.Undone(t, db, func(other pgx.Tx) {
		pgtest.Exec(t, other, "select from holdfast.stored where event_id = 'bbb10' for update")
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, "set local lock_timeout = '1s'")
			changed := effect.Changed(t, tx, storedRows, func() { pgtest.Exec(t, tx, sqlschema.In("", sweepSQL), "b") })
			if got := strings.Join(changed, " "); got != withoutOurs {
				t.Errorf("another transaction has ours: woken are %s", got)
			}
		})
	})
	// A worker wakes our head, while the sweep has seen it dormant and not come to it.
	effect.Undone(t, db, func(other pgx.Tx) {
		const key = 4711
		pgtest.Exec(t, other, "select pg_advisory_xact_lock($1)", key)
		const come = "from dormant a join"
		sql := sqlschema.In("", sweepSQL)
		if !strings.Contains(sql, come) {
			t.Fatalf("the sweep has no %q", come)
		}
		sql = strings.Replace(sql, come, fmt.Sprintf("from (select d.* from dormant d, pg_advisory_xact_lock(%d)) a join", key), 1)
		swept := effect.Blocked(t, db, sql, "b")
		pgtest.Exec(t, other, "update holdfast.stored set next_at = '2001-01-01' where event_id = 'bbb10'")
		if err := other.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		swept()
	})
	if got := pgtest.Text(t, db.Pool, "select string_agg(event_id, ' ' order by event_id) from holdfast.stored where next_at between now() - interval '1 hour' and now()"); got != withoutOurs {
		t.Errorf("ours woke meanwhile: woken are %s", got)
	}
}

// What a worker does to a follower while it is about to be deferred stays.
func TestQueueNeighbours_AFollowerThatAWorkerTakesIsNotDeferred(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, awakeRows)
	for _, change := range []string{"lease_until = now() + interval '1 hour'", "attempts = 1", "letter = 7", "next_at = 'infinity'"} {
		effect.Undone(t, db, func(worker pgx.Tx) {
			pgtest.Exec(t, worker, "update holdfast.stored set "+change+" where event_id = 'bbb20'")
			deferred := effect.Blocked(t, db, sqlschema.In("", deferSQL), "b", "b", "b")
			if err := worker.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := deferred(); n != 0 {
				t.Errorf("%s: %d are deferred", change, n)
			}
		})
		pgtest.Exec(t, db.Pool, "update holdfast.stored set lease_until = '-infinity', attempts = 0, letter = null, next_at = now() where event_id = 'bbb20'")
	}
}
