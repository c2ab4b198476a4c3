package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

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
	aReplayedLetter = `insert into holdfast.letter (origin, consumer, topic, key, place, holds, state, reason, event_id, source, type, time, hash)
		select 'inbox', consumer, topic, key, 1, true, 'replaying', 'r', 'letter ' || n, 's', 't', now(), '' from ` + theQueues + ` where %s`
	aClosedLetter = `insert into holdfast.letter (origin, consumer, topic, key, place, holds, state, reason, event_id, source, type, time, hash)
		select 'inbox', consumer, topic, key, 1, true, 'discarded', 'r', 'letter ' || n, 's', 't', now(), '' from ` + theQueues + ` where %s`
	aLetterThatHoldsNothing = `insert into holdfast.letter (origin, consumer, topic, key, place, holds, state, reason, event_id, source, type, time, hash)
		select 'inbox', consumer, topic, key, 1, false, 'open', 'r', 'letter ' || n, 's', 't', now(), '' from ` + theQueues + ` where %s`
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
	"a replayed letter holds the key":   {fmt.Sprintf(aReplayedLetter, ourQueue), true, false},
	"a letter that is closed":           {fmt.Sprintf(aClosedLetter, ourQueue), false, false},
	"a letter that holds nothing":       {fmt.Sprintf(aLetterThatHoldsNothing, ourQueue), false, false},
	"the key is paused":                 {fmt.Sprintf(aPausedKey, ourQueue), false, true},
	"other keys are paused":             {fmt.Sprintf(aPausedKey, otherQueues), false, false},
	"an event waits, the key is paused": {fmt.Sprintf(somethingStored, ourQueue) + ";" + fmt.Sprintf(aPausedKey, ourQueue), true, true},
}

// one and many are the parameters of an event, as the statements for one and for many take them.
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
		if got := textsOf(t, tx, strings.Replace(freshSQL, "select coalesce(array_agg(u.n::int), '{}')", "select coalesce(array_agg(u.n::int), '{}')::text", 1), args); got != want {
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
	for _, epochs := range [][]int64{{2, 9}, {4, 9}, {3, 8}, {3, 10}, {9, 3}} {
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
			args := slices.Concat([]any{"b", "b", "b"}, statement.event, []any{int32(5), int32(3), []string{"one", "two"}, int64(60_000_000), int64(1_000_000), locked, must, limit, int32(n)})
			sql := strings.Replace(statement.sql, "select q.behind, q.length from queue q", "select concat(q.behind, ' ', coalesce(q.length::text, 'no length')) from queue q", 1)
			if got, want := textsOf(t, tx, sql, args), fmt.Sprintf("%.1s %s", fmt.Sprint(behind), length); got != want {
				t.Errorf("%s: it says %s, want %s", before, got, want)
			}
			want := ""
			if added {
				want = fmt.Sprintf("b b b s e t \\x01 \\x02 5 7 3 {one,two} due in a minute %.1s dormant %.1s", fmt.Sprint(!behind), fmt.Sprint(behind))
			}
			if got := textsOf(t, tx, `select concat_ws(' ', consumer, topic, key, source, event_id, type, payload, hash, partition, "offset", attempts, errors, 'due in a minute',
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
