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
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// The events of these tests have the consumer, the source and the id a, b or c each. Ours is b, b, b. Their names say which they are.
const theEvents = `(select c as consumer, s as source, e as id, c || s || e as name
	from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) s, unnest('{a,b,c}'::text[]) e) v`

// A statement on one event means that of its consumer, its source and its id.
func TestConsumerNeighbours_AnEventIsKnownByAllOfItsName(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const (
		known      = "insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) select consumer, source, id, 't', name::bytea, now(), 'handled' from " + theEvents + " where %s"
		started    = "insert into holdfast.start (consumer, source, event_id, starts) select consumer, source, id, case name when 'bbb' then 2 else 3 end from " + theEvents + " where %s"
		allRows    = "select concat('known ', consumer, source, event_id), i::text from holdfast.inbox i union all select concat('started ', consumer, source, event_id), s::text from holdfast.start s"
		sameStarts = "update holdfast.start set starts = 2"
	)
	one := []any{"b", "b", "b"}
	two := []any{"b", []string{"z", "b"}, []string{"z", "b"}} // the first is unknown
	counted := func(starts int32) []any { return append(slices.Clone(two), []int32{9, starts}) }
	for name, c := range map[string]struct {
		sql            string
		args           []any
		returned, does string
	}{
		"known":                 {knownSQL, one, "bbb handled", ""},
		"known among many":      {knownManySQL, two, "2 bbb", ""},
		"no longer recorded":    {unrecordSQL, one, "", "-known bbb"},
		"the starts":            {startsSQL, two, "2 2", ""},
		"a start is taken back": {takeBackStartSQL, counted(2), "", "started bbb"},
		"an earlier start":      {takeBackStartSQL, counted(1), "", ""},
		"a later start":         {takeBackStartSQL, counted(3), "", ""},
		"the starts are over":   {forgetStartSQL, two, "", "-started bbb"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ours := range []bool{true, false} {
				effect.Undone(t, db, func(tx pgx.Tx) {
					which, wantReturned, wantDoes := "true", c.returned, c.does
					if !ours {
						which, wantReturned, wantDoes = "name <> 'bbb'", "", ""
					}
					pgtest.Exec(t, tx, fmt.Sprintf(known, which))
					pgtest.Exec(t, tx, fmt.Sprintf(started, which))
					if !ours {
						pgtest.Exec(t, tx, sameStarts)
					}
					var returned string
					changed := effect.Changed(t, tx, allRows, func() { returned = effect.Returned(t, tx, sqlschema.In("", c.sql), c.args...) })
					if does := strings.Join(changed, ", "); returned != wantReturned || does != wantDoes {
						t.Errorf("where ours is there %v: it returns %q and changes %q, want %q and %q", ours, returned, does, wantReturned, wantDoes)
					}
				})
			}
		})
	}
}

// Only the backend that is named is asked whether it waits for its client.
func TestConsumerNeighbours_OnlyTheBackendThatIsNamedIsAsked(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	waits := func(tx pgx.Tx, pid uint32) string {
		return effect.Returned(t, tx, sqlschema.In("", awaitsClientSQL), pid)
	}
	effect.Undone(t, db, func(idle pgx.Tx) {
		effect.Undone(t, db, func(tx pgx.Tx) {
			if got := waits(tx, 0); got != "false" {
				t.Errorf("a number that no backend has: %s", got)
			}
			if got := waits(tx, tx.Conn().PgConn().PID()); got != "false" {
				t.Errorf("the backend that asks: %s", got)
			}
			wait.Until(t, "the other one waits for its client", func() bool { return waits(tx, idle.Conn().PgConn().PID()) == "true" })
		})
	})
}

// A consumer is paused as a whole, or by keys, and no other one's pause concerns it.
func TestConsumerNeighbours_APauseIsThatOfOneConsumer(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const whole, keys = "insert into holdfast.pause (consumer, by, reason) select c, 'ann', 'r' from unnest($1::text[]) c", "insert into holdfast.pause (consumer, topic, key, by, reason) select c, 't', 'k', 'ann', 'r' from unnest($1::text[]) c"
	for want, c := range map[string]struct{ whole, keys []string }{
		"false false [] []": {[]string{"a", "c"}, []string{"a", "c"}},
		"true false [] []":  {[]string{"b"}, nil},
		"false true [] []":  {nil, []string{"b"}},
		"true true [] []":   {[]string{"b"}, []string{"b"}},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, whole, c.whole)
			pgtest.Exec(t, tx, keys, c.keys)
			if got := effect.Returned(t, tx, sqlschema.In("", pausedSQL), "b"); got != want {
				t.Errorf("paused are %v, and keys of %v: %s, want %s", c.whole, c.keys, got, want)
			}
		})
	}
}

// What a node declared is forgotten after more than a day, and is others' business as long as it says.
func TestConsumerNeighbours_DeclaredTypesAreThoseOfOneConsumer(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, `insert into holdfast.consumer_type (consumer, type, node, seen_until)
			select c, t, n, now() - case n when 'gone' then interval '1 day 1 microsecond' when 'day' then interval '1 day' when 'minute' then interval '1 minute' else interval '59.999999 seconds' end
			  from unnest('{a,b,c}'::text[]) c, unnest('{r,s,t,u}'::text[]) t, unnest('{gone,day,minute,less}'::text[]) n
			 where n <> 'less' or c <> 'b' or t <> 's'`)
		if got := effect.Returned(t, tx, sqlschema.In("", declaredSQL), "b", []string{"s", "t"}, int64(60_000_000)); got != "t" {
			t.Errorf("declared are %q, want the type t", got)
		}
		changed := effect.Changed(t, tx, "select concat_ws(' ', consumer, type, node), t::text from holdfast.consumer_type t", func() {
			pgtest.Exec(t, tx, sqlschema.In("", undeclareSQL), "b")
		})
		if got := strings.Join(changed, ", "); got != "-b r gone, -b s gone, -b t gone, -b u gone" {
			t.Errorf("forgotten are %s", got)
		}
		changed = effect.Changed(t, tx, "select concat_ws(' ', consumer, type, node), t::text from holdfast.consumer_type t", func() {
			pgtest.Exec(t, tx, sqlschema.In("", stopSQL), "b", "day")
		})
		if got := strings.Join(changed, ", "); got != "b r day, b s day, b t day, b u day" {
			t.Errorf("stopped are %s", got)
		}
	})
}

// Skipped events are counted by consumer, topic and type; what nobody has sent for more than thirty days is forgotten.
func TestConsumerNeighbours_SkippedEventsAreCountedForOneConsumer(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, `insert into holdfast.consumer_skip (consumer, topic, type, events, last_at)
			select c, t, y, 1, now() - case y when 'gone' then interval '30 days 1 microsecond' else interval '30 days' end
			  from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) t, unnest('{gone,r,s,t}'::text[]) y where (c, t, y) <> ('b', 'c', 's')`)
		changed := effect.Changed(t, tx, "select concat_ws(' ', consumer, topic, type, events), s::text from holdfast.consumer_skip s", func() {
			pgtest.Exec(t, tx, sqlschema.In("", skipSQL), "b", []string{"b", "c"}, []string{"s", "s"}, []int64{5, 6})
		})
		if got := strings.Join(changed, ", "); got != "-b a gone 1, -b b gone 1, -b b s 1, +b b s 6, -b c gone 1, +b c s 6" {
			t.Errorf("changed are %s", got)
		}
	})
}

// What is away is so for one consumer, under one name. Only one that is away and whose time has come is tried, by one of those who ask.
func TestConsumerNeighbours_ADependencyIsThatOfOneConsumer(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, `insert into holdfast.dependency (consumer, name, away, until, tries, error)
			select c, n, n <> 'there', now() + case n when 'later' then interval '2 microseconds' else interval '0' end, 3, 'e'
			  from unnest('{a,b,c}'::text[]) c, unnest('{due,later,other,there}'::text[]) n`)
		if got := effect.Returned(t, tx, sqlschema.In("", pausedSQL), "b"); got != "false false [due later other] [0 2 0]" {
			t.Errorf("away are %s", got)
		}
		const rows = "select concat_ws(' ', consumer, name, away, tries, error, node, (extract(epoch from d.until - now()) * 1000000)::bigint), d::text from holdfast.dependency d"
		changed := effect.Changed(t, tx, rows, func() {
			pgtest.Exec(t, tx, sqlschema.In("", dependencyTrySQL), "b", []string{"due", "later", "there"}, int64(50), "n1")
			pgtest.Exec(t, tx, sqlschema.In("", dependencyTrySQL), "b", []string{"due", "later", "there"}, int64(60), "n2")
		})
		if got := strings.Join(changed, ", "); got != "-b due t 3 e  0, +b due t 3 e n1 50" {
			t.Errorf("a try changed %s", got)
		}
		changed = effect.Changed(t, tx, rows, func() {
			pgtest.Exec(t, tx, sqlschema.In("", dependencyIsSQL), "b", "later", false, int64(7), int64(9), int32(4), "", "n3")
			pgtest.Exec(t, tx, sqlschema.In("", dependencyIsSQL), "b", "other", true, int64(7), int64(9), int32(4), "f", "n3")
			pgtest.Exec(t, tx, sqlschema.In("", dependencySQL), "b", "new")
			pgtest.Exec(t, tx, sqlschema.In("", dependencySQL), "b", "due")
		})
		if got := strings.Join(changed, ", "); got != "+b later f 4 e n3 9, -b later t 3 e  2, +b new f 0   0, -b other t 3 e  0, +b other t 4 f n3 9" {
			t.Errorf("what was written changed %s", got)
		}
	})
}

// A watermark rises for its own entity, and only to a newer version.
func TestConsumerNeighbours_AWatermarkRisesForItsEntity(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const marks = "insert into holdfast.watermark (consumer, entity, version, updated_at) select c, e, case when (c, e) = ('b', 'b') then 5 else 9 end, '-infinity' from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) e where %s"
	for version, want := range map[int64]string{6: "b b", 5: "", 4: ""} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, fmt.Sprintf(marks, "true"))
			changed := effect.Changed(t, tx, "select consumer || ' ' || entity, w::text from holdfast.watermark w", func() {
				pgtest.Exec(t, tx, sqlschema.In("", watermarkSQL), "b", "b", version)
			})
			if got := strings.Join(changed, ", "); got != want {
				t.Errorf("version %d: raised are %q, want %q", version, got, want)
			}
		})
	}
	for which, want := range map[string]string{"true": "true", "(c, e) <> ('b', 'b')": ""} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, fmt.Sprintf(marks, which))
			if got := effect.Returned(t, tx, sqlschema.In("", watermarkIsSQL), "b", "b", int64(5)); got != want {
				t.Errorf("of those with %s: %q, want %q", which, got, want)
			}
		})
	}
}

// Of nodes that run one backfill, that which tells of it goes on, until it says nothing for longer than 30 s, or has come to an end: then one
// that runs tells, and after an error also one that has ended.
func TestConsumerNeighbours_OneNodeTellsOfABackfill(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for name, c := range map[string]struct {
		told, ended, failed string // the row of node m, in SQL
		over                bool   // what is told is an end
		written             bool   // if another node tells it
	}{
		"it tells":                            {"now()", "null", "null", false, false},
		"it told 30 s ago":                    {"now() - interval '30 s'", "null", "null", false, false},
		"it told longer ago":                  {"now() - interval '30.000001 s'", "null", "null", false, true},
		"it tells, the other one ends":        {"now()", "null", "null", true, false},
		"it ended":                            {"now()", "now()", "null", false, true},
		"it ended, the other one ends":        {"now()", "now()", "null", true, false},
		"it ended by an error":                {"now()", "now()", "'no'", false, true},
		"it ended by an error, as does other": {"now()", "now()", "'no'", true, true},
	} {
		for _, node := range []string{"l", "m", "n"} {
			effect.Undone(t, db, func(tx pgx.Tx) {
				pgtest.Exec(t, tx, fmt.Sprintf(`insert into holdfast.consumer_backfill (consumer, node, began_at, told_at, partitions, partitions_left, done, remaining, per_second, ended_at, error)
					select c, 'm', now(), %s, 1, 1, 1, 1, 1, %s, %s from unnest('{a,b,c}'::text[]) c`, c.told, c.ended, c.failed))
				changed := effect.Changed(t, tx, "select consumer, b::text from holdfast.consumer_backfill b", func() {
					pgtest.Exec(t, tx, sqlschema.In("", writeBackfillSQL), "b", node, int64(1), int32(9), int32(9), int64(9), int64(9), 9.0, "", c.over, "")
				})
				want := ""
				if c.written || node == "m" {
					want = "b"
				}
				if got := strings.Join(changed, ", "); got != want {
					t.Errorf("%s, node %s tells: written is %q, want %q", name, node, got, want)
				}
			})
		}
	}
}
