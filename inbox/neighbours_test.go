package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The queues of these tests have the consumer, the topic and the key a, b or c each. Ours is b, b, b; the others are like it in all but one or more
// of the three, below and above. A condition chooses some of them.
const (
	theQueues = `(select c as consumer, t as topic, k as key, row_number() over (order by c, t, k) as n
		from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) t, unnest('{a,b,c}'::text[]) k) q`
	ourQueue    = "(q.consumer, q.topic, q.key) = ('b', 'b', 'b')"
	otherQueues = "(q.consumer, q.topic, q.key) <> ('b', 'b', 'b')"

	// Each makes something wait, or be held, in the queues that a condition chooses.
	somethingStored = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select consumer, topic, key, nextval('holdfast.stored_place'), 's', 'stored ' || n, 't', now(), '', 'infinity' from ` + theQueues + ` where %s`
	anOpenLetter = `insert into holdfast.letter (origin, consumer, topic, key, place, holds, state, reason, event_id, source, type, time, hash)
		select 'inbox', consumer, topic, key, 1, true, 'open', 'r', 'letter ' || n, 's', 't', now(), '' from ` + theQueues + ` where %s`
	aPausedKey = `insert into holdfast.pause (consumer, topic, key, by, reason) select consumer, topic, key, 'ann', 'r' from ` + theQueues + ` where %s`

	// The partition 5 of the topic b, as the consumer b has it, and those that are like it in all but one.
	partitions = `insert into holdfast.consumer_position (consumer, topic, partition, position, epoch)
		select c, t, p, 0, case when (c, t, p) = ('b', 'b', 5) then %d else %d end from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) t, generate_series(4, 6) p`
)

// beforehand are states of the queues, and whether our event has something before it then.
var beforehand = map[string]struct {
	sql            string
	before, paused bool
}{
	"nothing":                           {"select 1", false, false},
	"an event waits":                    {fmt.Sprintf(somethingStored, ourQueue), true, false},
	"events of other keys wait":         {fmt.Sprintf(somethingStored, otherQueues), false, false},
	"a letter holds the key":            {fmt.Sprintf(anOpenLetter, ourQueue), true, false},
	"letters hold other keys":           {fmt.Sprintf(anOpenLetter, otherQueues), false, false},
	"a replayed letter holds the key":   {fmt.Sprintf(strings.Replace(anOpenLetter, "'open'", "'replaying'", 1), ourQueue), true, false},
	"a letter that is closed":           {fmt.Sprintf(strings.Replace(anOpenLetter, "'open'", "'discarded'", 1), ourQueue), false, false},
	"a letter that holds nothing":       {fmt.Sprintf(strings.Replace(anOpenLetter, "true, 'open'", "false, 'open'", 1), ourQueue), false, false},
	"the key is paused":                 {fmt.Sprintf(aPausedKey, ourQueue), false, true},
	"other keys are paused":             {fmt.Sprintf(aPausedKey, otherQueues), false, false},
	"an event waits, the key is paused": {fmt.Sprintf(somethingStored, ourQueue) + ";" + fmt.Sprintf(aPausedKey, ourQueue), true, true},
}

// oneEvent has the parameters of an event as the statements for one event take them, manyEvents as those for many do.
func oneEvent(source, id, key string) []any {
	return []any{"b", "b", int32(5), source, id, key, int64(7), []byte{1}, int32(3)}
}

func manyEvents(source, id, key string) []any {
	return []any{"b", []string{"b"}, []int32{5}, []string{source}, []string{id}, []string{key}, []int64{7}, [][]byte{{1}}, int32(3)}
}

// A new event is recorded as handled, unless something of its key is before it.
func TestNeighbours_AnEventIsRecordedAsWhatIsBeforeItSays(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	fence := func(epoch any) []any { return []any{epoch, "b", int32(5)} }
	for name, statement := range map[string]struct {
		sql    string
		event  func(source, id, key string) []any
		last   []any // the parameters after those of the fence
		paused bool  // it looks for pauses
	}{
		"one":                        {recordSQL, oneEvent, nil, true},
		"one, no key is paused":      {recordUnpausedSQL, oneEvent, nil, false},
		"many":                       {recordManySQL, manyEvents, []any{true}, true},
		"many, and no key is paused": {recordManySQL, manyEvents, []any{false}, false},
	} {
		record := func(t *testing.T, before, id, key string, result, epoch any, want string) {
			t.Helper()
			tx := pgtest.Begin(t, db)
			defer rollback(context.Background(), tx)
			pgtest.Exec(t, tx, before)
			args := slices.Concat(statement.event("s", id, key), []any{result}, fence(epoch), statement.last)
			if got := textsOf(t, tx, statement.sql, args); got != want {
				t.Errorf("%s, key %q, result %v, epoch %v: recorded as %q, want %q", before, key, result, epoch, got, want)
			}
			row := "nothing"
			if want != "" {
				row = fmt.Sprintf("b s %s b 5 7 \\x01 %s %.1s 3", id, want, fmt.Sprint(want != "stored"))
			}
			if got := textsOf(t, tx, `select concat_ws(' ', consumer, source, event_id, topic, partition, "offset", hash, result, processed_at is not null, attempts) from holdfast.inbox where source = 's' and event_id = $1 and consumer = 'b'`, []any{id}); got != row && want != "" {
				t.Errorf("the row is %s, want %s", got, row)
			}
		}
		t.Run(name, func(t *testing.T) {
			for state, c := range beforehand {
				t.Run(state, func(t *testing.T) {
					want := "handled"
					if c.before || c.paused && statement.paused {
						want = "stored"
					}
					record(t, c.sql, "e", "b", nil, nil, want)
					record(t, c.sql, "e", "b", "dead", nil, "dead")
					record(t, c.sql, "e", "b", "stored", nil, "stored")
				})
			}
			record(t, strings.ReplaceAll(fmt.Sprintf(somethingStored, ourQueue), "select consumer, topic, key,", "select consumer, topic, '',"), "e", "", nil, nil, "handled")
			record(t, fmt.Sprintf(partitions, 3, 9), "e", "b", nil, int64(3), "handled")
			record(t, fmt.Sprintf(partitions, 2, 3), "e", "b", nil, int64(3), "")
			record(t, fmt.Sprintf(partitions, 4, 3), "e", "b", nil, int64(3), "")
			record(t, fmt.Sprintf(partitions, 4, 3), "e", "b", "dead", int64(3), "")
			const known = "insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('%s', '%s', '%s', 'b', '', now(), 'handled')"
			for _, like := range [][3]string{{"a", "s", "e"}, {"c", "s", "e"}, {"b", "r", "e"}, {"b", "t", "e"}, {"b", "s", "d"}, {"b", "s", "f"}} {
				record(t, fmt.Sprintf(known, like[0], like[1], like[2]), "e", "b", nil, nil, "handled")
			}
			tx := pgtest.Begin(t, db)
			defer rollback(context.Background(), tx)
			pgtest.Exec(t, tx, fmt.Sprintf(known, "b", "s", "e"))
			if got := textsOf(t, tx, statement.sql, slices.Concat(statement.event("s", "e", "b"), []any{nil}, fence(nil), statement.last)); got != "" {
				t.Errorf("an event that is known is recorded as %s", got)
			}
		})
	}
}

// Of a group those are fresh that are not known and have nothing before them, if all of its partitions are ours.
func TestNeighbours_AnEventOfAGroupIsFreshIfNothingIsBeforeIt(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	ask := func(t *testing.T, before string, epochs []int64, key string, paused bool, want string) {
		t.Helper()
		tx := pgtest.Begin(t, db)
		defer rollback(context.Background(), tx)
		pgtest.Exec(t, tx, fmt.Sprintf(partitions, 3, 9))
		pgtest.Exec(t, tx, before)
		// The second event is known, and others that are like the first in all but one.
		pgtest.Exec(t, tx, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
			select c, s, e, 'b', '', now(), 'handled' from (values ('b', 's', 'known'), ('a', 's', 'e'), ('c', 's', 'e'), ('b', 'r', 'e'), ('b', 't', 'e'), ('b', 's', 'd'), ('b', 's', 'f')) v (c, s, e)`)
		args := []any{"b", []string{"b", "b"}, []int32{5, 6}, epochs, []string{"b", "b"}, []string{"s", "s"}, []string{"e", "known"}, []string{key, key}, paused}
		if got := textsOf(t, tx, strings.Replace(sqlschema.In("", freshSQL), "select coalesce(array_agg(u.n::int), '{}')", "select coalesce(array_agg(u.n::int), '{}')::text", 1), args); got != want {
			t.Errorf("%s: fresh are %s, want %s", before, got, want)
		}
	}
	for state, c := range beforehand {
		t.Run(state, func(t *testing.T) {
			for _, paused := range []bool{true, false} {
				want := "{1}"
				if c.before || c.paused && paused {
					want = "{}"
				}
				ask(t, c.sql, []int64{3, 9}, "b", paused, want)
			}
		})
	}
	ask(t, strings.ReplaceAll(fmt.Sprintf(somethingStored, ourQueue), "select consumer, topic, key,", "select consumer, topic, '',"), []int64{3, 9}, "", true, "{1}")
	for _, epochs := range [][]int64{{2, 9}, {4, 9}, {3, 8}, {3, 10}, {9, 3}, {9, 9}} {
		ask(t, "select 1", epochs, "b", true, "{}")
	}
}

// An event is put behind what waits in the queue of its key, as long as that has room.
func TestNeighbours_AnEventIsStoredBehindItsOwnQueue(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for name, statement := range map[string]struct {
		sql   string
		event []any
	}{
		"one":  {storeSQL, []any{"s", "e", "t", nil, nil, []byte{1}, []byte{2}, int64(7)}},
		"many": {storeManySQL, []any{[]string{"s"}, []string{"e"}, []string{"t"}, []any{nil}, []any{nil}, [][]byte{{1}}, [][]byte{{2}}, []int64{7}}},
	} {
		store := func(t *testing.T, before string, locked, must bool, limit any, n int, behind bool, length string, added bool) {
			t.Helper()
			tx := pgtest.Begin(t, db)
			defer rollback(context.Background(), tx)
			pgtest.Exec(t, tx, before)
			args := slices.Concat([]any{"b", "b", "b"}, statement.event, []any{int32(5), int32(3), []string{"one", "two"}, int64(60_000_000), int64(1_000_000), locked, must, limit, int32(n), int32(4)})
			sql := strings.Replace(sqlschema.In("", statement.sql), "select q.behind, q.length from queue q", "select concat(q.behind, ' ', coalesce(q.length::text, 'no length')) from queue q", 1)
			if got, want := textsOf(t, tx, sql, args), fmt.Sprintf("%.1s %s", fmt.Sprint(behind), length); got != want {
				t.Errorf("%s: it says %s, want %s", before, got, want)
			}
			want := ""
			if added {
				want = fmt.Sprintf("b b b s e t \\x01 \\x02 5 7 3 4 {one,two} due in a minute %.1s dormant %.1s", fmt.Sprint(!behind), fmt.Sprint(behind))
			}
			if got := textsOf(t, tx, `select concat_ws(' ', consumer, topic, key, source, event_id, type, payload, hash, partition, "offset", attempts, losses, errors, 'due in a minute',
				next_at between now() + interval '30 seconds' and now() + interval '90 seconds', 'dormant', next_at = 'infinity') from holdfast.stored where event_id = 'e'`, nil); got != want {
				t.Errorf("%s: the row is %q, want %q", before, got, want)
			}
		}
		t.Run(name, func(t *testing.T) {
			for state, c := range beforehand {
				t.Run(state, func(t *testing.T) {
					behind := c.before || c.paused
					store(t, c.sql, true, false, nil, 1, behind, "no length", true)
					store(t, c.sql, true, true, nil, 1, behind, "no length", behind)
					store(t, c.sql, false, false, nil, 1, false, "no length", true)
				})
			}
			three := strings.Repeat(fmt.Sprintf(somethingStored, otherQueues)+";", 1)
			for i := range 3 {
				three += strings.Replace(fmt.Sprintf(somethingStored, ourQueue), "'stored ' || n", fmt.Sprintf("'stored %d ' || n", i), 1) + ";"
			}
			store(t, three, true, false, int32(5), 1, true, "3", true)
			store(t, three, true, false, int32(4), 1, true, "3", true)
			store(t, three, true, false, int32(3), 1, true, "3", false)
			store(t, three, true, false, int32(2), 1, true, "2", false)
			store(t, three, true, false, int32(4), 2, true, "3", false)
			store(t, three, true, true, int32(5), 2, true, "3", true)
		})
	}
}

// waitingRows are two events in each queue, in the same places: the head is due, the one after it is dormant. Their ids say consumer, topic, key
// and place.
const waitingRows = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, payload, next_at)
	select consumer, topic, key, p, 's', consumer || topic || key || p, 't', now(), '', 'four', case when p = 10 then now() - interval '1 minute' else 'infinity' end
	  from ` + theQueues + `, unnest('{10,20}'::bigint[]) p`

const aToken, anotherToken, aLaterToken = "11111111-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000", "22222222-0000-0000-0000-000000000000"

// earlierRow is an event before the others of a queue, as a replay is, of another type.
var earlierRow = strings.NewReplacer("nextval('holdfast.stored_place')", "5", "'t', now()", "'u', now()").Replace(somethingStored)

// claimable are changes of a queue: by themselves, in the form that changes the queues that a condition chooses, and whether the head of a
// queue that was changed so may be claimed, by a claim of all that is due, and with the end of the event before it in its queue.
var claimable = map[string]struct {
	change      string
	claim, next bool
}{
	"a head that is due":                 {"update holdfast.stored q set attempts = 0 where %s", true, true},
	"another type":                       {"update holdfast.stored q set type = 'u' where %s", false, false},
	"an earlier type":                    {"update holdfast.stored q set type = 's' where %s", false, false},
	"not due":                            {"update holdfast.stored q set next_at = now() + interval '1 minute' where place = 10 and %s", false, false},
	"dormant":                            {"update holdfast.stored q set next_at = 'infinity' where place = 10 and %s", false, true},
	"leased":                             {"update holdfast.stored q set lease_token = '" + aToken + "', lease_until = now() + interval '1 minute' where place = 10 and %s", false, false},
	"leased by a clock that was wrong":   {"update holdfast.stored q set lease_token = '" + aToken + "', lease_until = now() + interval '1 hour' where place = 10 and %s", true, true},
	"its lease has run out":              {"update holdfast.stored q set lease_token = '" + aToken + "', lease_until = now() - interval '1 minute' where place = 10 and %s", true, true},
	"an event before it is not due":      {"update holdfast.stored q set next_at = case when place = 10 then now() + interval '1 minute' else now() end where %s", false, false},
	"an event came in before it":         {earlierRow, false, false},
	"a worker has the one after it":      {"update holdfast.stored q set next_at = now(), lease_token = '" + aToken + "', lease_until = now() + interval '1 minute' where place = 20 and %s", false, false},
	"the one after it was leased":        {"update holdfast.stored q set next_at = now(), lease_token = '" + aToken + "', lease_until = now() - interval '1 minute' where place = 20 and %s", true, true},
	"the one after it, by a wrong clock": {"update holdfast.stored q set next_at = now(), lease_token = '" + aToken + "', lease_until = now() + interval '1 hour' where place = 20 and %s", true, true},
	"the one after it sleeps":            {"update holdfast.stored q set lease_token = '" + aToken + "', lease_until = now() + interval '1 minute' where place = 20 and %s", true, true},
	"a letter holds it":                  {strings.Replace(anOpenLetter, "key, 1,", "key, 9,", 1), false, false},
	"a letter in its place":              {strings.Replace(anOpenLetter, "key, 1,", "key, 10,", 1), true, true},
	"a replay behind a letter":           {strings.Replace(anOpenLetter, "key, 1,", "key, 9,", 1) + "; update holdfast.stored q set letter = 77 where %[1]s", true, true},
	"a paused key":                       {aPausedKey, false, false},
	"large":                              {"update holdfast.stored q set payload = repeat('x', 5000)::bytea where place = 10 and %s", true, false},
	"a suspect":                          {"update holdfast.stored q set attempts = 1 where place = 10 and %s", true, false},
	"it has failed":                      {"update holdfast.stored q set attempts = 2, errors = '{one,two}' where place = 10 and %s", true, true},
	"it has failed often":                {"update holdfast.stored q set attempts = 25, errors = array_fill('e'::text, '{20}') where place = 10 and %s", true, true},
}

// A claim takes the heads that may be claimed, whatever the queues are in that are like theirs in all but one.
func TestNeighbours_AClaimTakesTheHeadsThatMayBeClaimed(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	claim := func(t *testing.T, n int32, lost []string, bytes int64, only bool, from any, place int64, suspects bool, before ...string) []string {
		t.Helper()
		tx := pgtest.Begin(t, db)
		defer rollback(context.Background(), tx)
		for _, sql := range append([]string{waitingRows}, before...) {
			pgtest.Exec(t, tx, sql)
		}
		args := []any{"b", []string{"t"}, n, anotherToken, int64(60_000_000), lost, bytes, only, from, place, suspects}
		got := strings.Fields(textsOf(t, tx, "with claimed as ("+sqlschema.In("", claimSQL)+") select coalesce(string_agg(topic || key || place || case when attempts <> 1 then '*' || attempts else '' end, ' ' order by topic, key, place), '') from claimed c (topic, key, place, source, event_id, type, time, headers, payload, hash, partition, o, attempts)", args))
		return got
	}
	everything := strings.Fields("aa10 ab10 ac10 ba10 bb10 bc10 ca10 cb10 cc10")
	without := slices.DeleteFunc(slices.Clone(everything), func(s string) bool { return s == "bb10" })
	for name, c := range claimable {
		t.Run(name, func(t *testing.T) {
			got := claim(t, 100, []string{anotherToken}, 1<<30, true, nil, 0, true, fmt.Sprintf(c.change, ourQueue))
			for i, s := range got {
				if strings.Contains(c.change, "attempts = ") {
					got[i], _, _ = strings.Cut(s, "*")
				}
			}
			if want := map[bool][]string{true: everything, false: without}[c.claim]; !slices.Equal(got, want) {
				t.Errorf("of ours: claimed are %v, want %v", got, want)
			}
			if got := claim(t, 100, []string{}, 1<<30, true, nil, 0, true, fmt.Sprintf(c.change, otherQueues)); !slices.Contains(got, "bb10") {
				t.Errorf("of others: claimed are %v", got)
			}
		})
	}
	const (
		leasedRows = "update holdfast.stored set attempts = 1, lease_token = '" + aToken + "', lease_until = now() + interval '1 minute' where place = %d and (consumer, topic, key) = ('b', 'b', 'b')"
		awake      = "update holdfast.stored set next_at = now() where place = 20 and (consumer, topic, key) = ('b', 'b', 'b')"
		keyless    = "update holdfast.stored set key = '', place = place + case key when 'a' then 0 when 'b' then 1 else 2 end, next_at = now() - interval '1 minute'"
		ordered    = "update holdfast.stored set next_at = now() - interval '1 hour' + interval '1 minute' * (ascii(topic) * 3 + ascii(key) - 388) where place = 10"
		suspects   = "update holdfast.stored set attempts = 1 where topic = 'b'"
		over       = "update holdfast.stored set lease_until = now() - interval '1 second' where lease_until > now()"
		far        = "update holdfast.stored set lease_until = now() + interval '1 hour' where lease_until > now()"
	)
	for name, c := range map[string]struct {
		want string
		got  []string
	}{
		"a claim without an answer leased it":            {"aa10 ab10 ac10 ba10 bb10 bc10 ca10 cb10 cc10", claim(t, 100, []string{aToken}, 1<<30, true, nil, 0, false, fmt.Sprintf(leasedRows, 10))},
		"it did, and the attempt may have been made":     {"aa10 ab10 ac10 ba10 bc10 ca10 cb10 cc10", claim(t, 100, []string{aToken}, 1<<30, true, nil, 0, false, fmt.Sprintf(leasedRows, 10), over)},
		"a suspect under a lease of a wrong clock":       {"aa10 ab10 ac10 ba10 bc10 ca10 cb10 cc10", claim(t, 100, []string{anotherToken}, 1<<30, true, nil, 0, false, fmt.Sprintf(leasedRows, 10), far)},
		"another one did":                                {"aa10 ab10 ac10 ba10 bc10 ca10 cb10 cc10", claim(t, 100, []string{anotherToken, aLaterToken}, 1<<30, true, nil, 0, true, fmt.Sprintf(leasedRows, 10))},
		"it leased the one after it":                     {"aa10 ab10 ac10 ba10 bb10 bc10 ca10 cb10 cc10", claim(t, 100, []string{aToken}, 1<<30, true, nil, 0, true, fmt.Sprintf(leasedRows, 20), awake)},
		"another one leased the one after it":            {"aa10 ab10 ac10 ba10 bc10 ca10 cb10 cc10", claim(t, 100, []string{anotherToken, aLaterToken}, 1<<30, true, nil, 0, true, fmt.Sprintf(leasedRows, 20), awake)},
		"without keys each is a head":                    {"a10 a11 a12 a20 a21 a22 b10 b11 b12 b20 b21 b22 c10 c11 c12 c20 c21 c22", claim(t, 100, []string{}, 1<<30, true, nil, 0, true, keyless)},
		"the first ones":                                 {"aa10 ab10 ac10 ba10", claim(t, 4, []string{}, 1<<30, true, nil, 0, true, ordered)},
		"as many as there is memory for":                 {"aa10 ab10 ac10", claim(t, 9, []string{}, 12, false, nil, 0, true, ordered)},
		"one less":                                       {"aa10 ab10", claim(t, 9, []string{}, 11, false, nil, 0, true, ordered)},
		"the first, whatever memory there is":            {"aa10", claim(t, 9, []string{}, 1, true, nil, 0, true, ordered)},
		"nothing, since the first is too large":          {"", claim(t, 9, []string{}, 3, false, nil, 0, true, ordered)},
		"it did, and a suspect may be taken":             {"aa10 ab10 ac10 ba10 bb10*2 bc10 ca10 cb10 cc10", claim(t, 100, []string{aToken}, 1<<30, true, nil, 0, true, fmt.Sprintf(leasedRows, 10), over)},
		"one suspect, another by a wrong clock":          {"aa10 ab10 ac10 ba10*2 ca10 cb10 cc10", claim(t, 100, []string{anotherToken}, 1<<30, true, nil, 0, true, ordered, suspects, fmt.Sprintf(leasedRows, 10), far)},
		"one suspect, another whose claim had no answer": {"aa10 ab10 ac10 ba10*2 ca10 cb10 cc10", claim(t, 100, []string{aToken}, 1<<30, true, nil, 0, true, ordered, suspects, fmt.Sprintf(leasedRows, 10), over)},
		"one suspect":                                    {"aa10 ab10 ac10 ba10*2 ca10 cb10 cc10", claim(t, 100, []string{}, 1<<30, true, nil, 0, true, ordered, suspects)},
		"no suspect":                                     {"aa10 ab10 ac10 ca10 cb10 cc10", claim(t, 100, []string{}, 1<<30, true, nil, 0, false, ordered, suspects)},
		"none of those before it take a suspect's turn":  {"ba10*2", claim(t, 1, []string{}, 1<<30, true, nil, 0, true, ordered, suspects, "delete from holdfast.stored where topic = 'a'")},
	} {
		if got := strings.Join(c.got, " "); got != c.want {
			t.Errorf("%s: claimed are %s, want %s", name, got, c.want)
		}
	}
	// From the mark on: what came due before it, or at the same time in an earlier place, was passed.
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	marked := func(place int64) []string {
		return claim(t, 100, []string{}, 1<<30, true, at, place, true, fmt.Sprintf("update holdfast.stored set next_at = '%s'::timestamptz + interval '1 second' * (ascii(topic) - 98) where place = 10", at.Format(time.RFC3339)))
	}
	if got := strings.Join(marked(10), " "); got != "ba10 bb10 bc10 ca10 cb10 cc10" {
		t.Errorf("from the mark on: %s", got)
	}
	if got := strings.Join(marked(11), " "); got != "ca10 cb10 cc10" {
		t.Errorf("after the mark: %s", got)
	}
}

// With the end of an event the next one of its key is claimed, if that may be claimed.
func TestNeighbours_TheNextOfAKeyIsClaimedIfItMayBe(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	next := func(t *testing.T, change string, bytes int64) string {
		t.Helper()
		tx := pgtest.Begin(t, db)
		defer rollback(context.Background(), tx)
		pgtest.Exec(t, tx, waitingRows)
		pgtest.Exec(t, tx, change)
		return textsOf(t, tx, "with claimed as ("+sqlschema.In("", nextSQL)+") select coalesce(string_agg(topic || key || place, ' '), '') from claimed c (topic, key, place)", []any{"b", "b", "b", []string{"t"}, anotherToken, int64(60_000_000), bytes})
	}
	for name, c := range claimable {
		t.Run(name, func(t *testing.T) {
			if got, want := next(t, fmt.Sprintf(c.change, ourQueue), 4000), map[bool]string{true: "bb10", false: ""}[c.next]; got != want {
				t.Errorf("of ours: %q is claimed, want %q", got, want)
			}
			if got := next(t, fmt.Sprintf(c.change, otherQueues), 4000); got != "bb10" {
				t.Errorf("of others: %q is claimed", got)
			}
		})
	}
	for bytes, want := range map[int64]string{4: "bb10", 3: ""} {
		if got := next(t, "select 1", bytes); got != want {
			t.Errorf("with %d bytes %q is claimed, want %q", bytes, got, want)
		}
	}
}

// What becomes of a claimed event is written into its own row, under its own lease.
func TestNeighbours_WhatBecomesOfAClaimedEventIsItsOwn(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	row := func(token string, more ...any) []any { return append([]any{"b", "b", "b", int64(10), token}, more...) }
	const before = "insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash) values ('b', 'b', '%s', 5, 's', 'before', 't', now(), '')"
	const keyless = "update holdfast.stored set key = '' where (consumer, topic, key) = ('b', 'b', 'b')"
	for name, c := range map[string]struct {
		sql     string
		args    []any
		before  string
		changed string
	}{
		"taken":                             {takeSQL, row(aToken), "", "bbb10"},
		"taken under an older lease":        {takeSQL, row(anotherToken), "", ""},
		"taken under a later lease":         {takeSQL, row(aLaterToken), "", ""},
		"taken behind a replay":             {takeSQL, row(aToken), fmt.Sprintf(before, "b"), ""},
		"taken, another key has a replay":   {takeSQL, row(aToken), fmt.Sprintf(earlierRow, otherQueues), "bbb10"},
		"taken without a key":               {takeSQL, []any{"b", "b", "", int64(10), aToken}, keyless + "; " + fmt.Sprintf(before, ""), "bbb10"},
		"dropped":                           {dropSQL, row(aToken), fmt.Sprintf(before, "b"), "bbb10"},
		"dropped under an older lease":      {dropSQL, row(anotherToken), "", ""},
		"dropped under a later lease":       {dropSQL, row(aLaterToken), "", ""},
		"tried again":                       {retrySQL, row(aToken, int64(1), int32(0), []string{"e"}, int32(0)), "", "bbb10"},
		"tried again under an older lease":  {retrySQL, row(anotherToken, int64(1), int32(0), []string{"e"}, int32(0)), "", ""},
		"tried again under a later lease":   {retrySQL, row(aLaterToken, int64(1), int32(0), []string{"e"}, int32(0)), "", ""},
		"looked for":                        {stillStoredSQL, row(aToken), "", "1"},
		"looked for under an older lease":   {stillStoredSQL, row(anotherToken), "", "0"},
		"looked for under a later lease":    {stillStoredSQL, row(aLaterToken), "", "0"},
		"a head":                            {isHeadSQL, []any{"b", "b", "b", int64(10)}, "", "true"},
		"a head, a replay is before it":     {isHeadSQL, []any{"b", "b", "b", int64(10)}, fmt.Sprintf(before, "b"), "false"},
		"a head, a replay is before others": {isHeadSQL, []any{"b", "b", "b", int64(10)}, fmt.Sprintf(earlierRow, otherQueues), "true"},
	} {
		t.Run(name, func(t *testing.T) {
			tx := pgtest.Begin(t, db)
			defer rollback(context.Background(), tx)
			pgtest.Exec(t, tx, waitingRows)
			pgtest.Exec(t, tx, "update holdfast.stored set lease_token = '"+aToken+"', lease_until = now() + interval '1 minute'")
			if c.before != "" {
				pgtest.Exec(t, tx, c.before)
			}
			rows := func() map[string]string {
				all := map[string]string{}
				for line := range strings.SplitSeq(textsOf(t, tx, "select event_id || '|' || s::text from holdfast.stored s", nil), ", ") {
					id, row, _ := strings.Cut(line, "|")
					all[id] = row
				}
				return all
			}
			was := rows()
			found := 0
			var head any
			answer, err := tx.Query(t.Context(), sqlschema.In("", c.sql), c.args...)
			if err != nil {
				t.Fatal(err)
			}
			for ; answer.Next(); found++ {
				values, err := answer.Values()
				if err != nil {
					t.Fatal(err)
				}
				head = values[0]
			}
			if answer.Err() != nil {
				t.Fatal(answer.Err())
			}
			var changed []string
			now := rows()
			for id, row := range was {
				if now[id] != row {
					changed = append(changed, id)
				}
			}
			got := strings.Join(changed, " ")
			switch c.sql {
			case stillStoredSQL:
				got += fmt.Sprint(found)
			case isHeadSQL:
				got += fmt.Sprint(head)
			}
			if got != c.changed {
				t.Errorf("changed or said is %q, want %q", got, c.changed)
			}
		})
	}
}

// An attempt that counts is the event's first failure, unless it has failed before; one that is given back is none.
func TestNeighbours_OnlyAnAttemptThatCountsIsAFailure(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for unspent, want := range map[int32]string{0: "true", 1: "false"} {
		tx := pgtest.Begin(t, db)
		pgtest.Exec(t, tx, waitingRows)
		pgtest.Exec(t, tx, "update holdfast.stored set attempts = 1, lease_token = '"+aToken+"'")
		pgtest.Exec(t, tx, sqlschema.In("", retrySQL), "b", "b", "b", int64(10), aToken, int64(1), unspent, []string{}, int32(0))
		if got := textsOf(t, tx, "select (failed_at is not null)::text from holdfast.stored where event_id = 'bbb10'", nil); got != want {
			t.Errorf("with %d attempts given back it has failed: %s", unspent, got)
		}
		rollback(context.Background(), tx)
	}
}

// textsOf are the texts that a statement returns.
func textsOf(t *testing.T, tx pgx.Tx, statement string, args []any) string {
	t.Helper()
	rows, err := tx.Query(t.Context(), sqlschema.In("", statement), args...)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(texts, ", ")
}
