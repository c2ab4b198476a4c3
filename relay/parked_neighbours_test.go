package relay

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Three events are parked in each queue of these tests, in the places 10, 20 and 30. A queue has the lane 1, 2 or 3, the topic a, b or c, and the
// key a, b or c or none. Ours is 2, b, b; the others are like it in all but one or more of the three, below and above. The first of a queue
// waits for its next attempt, as each does that has no key, and the others wait for it. The ids say lane, topic, key and place.
const (
	parkedOurs   = "(lane, topic, key) = (2, 'b', 'b')"
	parkedOthers = "(lane, topic, key) <> (2, 'b', 'b')"

	parkedQueues = `insert into holdfast.parked (lane, topic, key, place, why, attempts, next_at, id, source, type, time)
		select l, t, k, p, case when p = 10 or k = '' then 'record' else 'follows' end, 3, case when p = 10 or k = '' then '2100-01-01' else 'infinity'::timestamptz end, concat_ws('/', l, t, k, p), 's', 't', now()
		  from generate_series(1, 3) l, unnest('{a,b,c}'::text[]) t, unnest('{"",a,b,c}'::text[]) k, unnest('{10,20,30}'::bigint[]) p`

	// parkedAt is an event in a place of the queues that a condition chooses, parkedHolds a letter that holds them.
	parkedAt = `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select lane, topic, key, %[1]d, 'follows', 'infinity', concat_ws('/', lane, topic, key, %[1]d), 's', 't', now() from holdfast.parked where place = 10 and %[2]s`
	parkedHolds = `insert into holdfast.letter (origin, reason, holds, event_id, source, type, topic, key, time, hash, lane)
		select 'relay', 'r', true, concat_ws('/', lane, topic, key), 's', 't', topic, key, now(), '', lane from holdfast.parked where place = 10 and %s`

	// parkedLetters are letters that are being replayed, 101 to 103.
	parkedLetters = `insert into holdfast.letter (id, origin, reason, state, event_id, source, type, topic, key, time, hash, lane, attempts, errors, last_at) overriding system value
		select n, 'relay', 'r', 'replaying', n, 's', 't', 'b', 'b', now(), '', 2, 1, '{c,null}', '2020-01-01' from generate_series(101, 103) n`

	// parkedState is each row by a name that says which it is. New letters have ids from 501 on.
	parkedState = `
select id, concat_ws(' ', place, why, attempts, case when next_at = 'infinity' then 'waits' when next_at < now() then 'overdue' when next_at = now() then 'due'
           when next_at < now() + interval '1 day' then 'in ' || round(extract(epoch from next_at - now())) || ' s' else 'later' end,
       'partition ' || partition, 'letter ' || letter, nullif(errors, '{}')) from holdfast.parked
union all select concat_ws('/', 'lease', lane, topic, key, place), '' from holdfast.parked_lease
union all select case when id > 500 then concat_ws(' ', 'new letter', event_id, nullif(row_number() over (partition by event_id, id > 500 order by id), 1)) else 'letter ' || id end, concat_ws(' ', state, case when holds then 'holds' end, reason, nullif(fingerprint, ''), attempts, nullif(errors, '{}'), case when last_at = now() then 'now' end) from holdfast.letter
union all select 'event ' || coalesce(headers ->> 'hf_event_id', id), topic from holdfast.event`
)

func parkedSet(change, where string) string {
	return "update holdfast.parked set " + change + " where " + where + ";"
}

func parkedEarlier(where string) string { return fmt.Sprintf(parkedAt, 5, where) + ";" }

func parkedHeld(where string) string { return fmt.Sprintf(parkedHolds, where) + ";" }

// parkedDB is a database with those queues.
func parkedDB(t *testing.T) *pgtest.DB {
	t.Helper()
	db := migrated.New(t)
	pgtest.Exec(t, db, parkedQueues)
	return db
}

// parkedRun is what a statement returns, and what it changes, where something was done before. Nothing of it stays.
func parkedRun(t *testing.T, db *pgtest.DB, before, statement string, args []any, columns ...int) (returned []string, changed string) {
	t.Helper()
	tx := pgtest.Begin(t, db)
	defer tx.Rollback(context.Background())
	pgtest.Exec(t, tx, "select setval('holdfast.parked_place', 1000), setval(pg_get_serial_sequence('holdfast.letter', 'id'), 500); "+before)
	was := effect.State(t, tx, parkedState)
	rows, err := tx.Query(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			t.Fatal(err)
		}
		var row []string
		for i, v := range values {
			if columns == nil || slices.Contains(columns, i) {
				row = append(row, fmt.Sprint(v))
			}
		}
		returned = append(returned, strings.Join(row, "/"))
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	var changes []string
	now := effect.State(t, tx, parkedState)
	for name, row := range now {
		if before, there := was[name]; !there || before != row {
			changes = append(changes, strings.TrimSpace(name+": "+row))
		}
	}
	for name := range was {
		if _, there := now[name]; !there {
			changes = append(changes, name+" is gone")
		}
	}
	slices.Sort(changes)
	return returned, strings.Join(changes, "; ")
}

// parkedCase is a statement, what was done before it, and what it returns and changes.
type parkedCase struct {
	statement string
	args      []any
	before    string
	returns   string
	changes   string
}

func parkedCases(t *testing.T, cases map[string]parkedCase) {
	t.Parallel()
	db := parkedDB(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			statement := sqlschema.In("", c.statement)
			if c.statement == loadHolds {
				statement = "select * from (" + statement + ") h limit 100" // else it would not end if it came back to where it was
			}
			returned, changed := parkedRun(t, db, c.before, statement, c.args)
			if got := strings.Join(returned, " "); got != c.returns {
				t.Errorf("it returns %q\nwant       %q", got, c.returns)
			}
			if changed != c.changes {
				t.Errorf("it changes %q\nwant       %q", changed, c.changes)
			}
		})
	}
}

// A lane that is loaded learns of its own queues, each of them once, and of what its own events wait for.
func TestParkedNeighbours_ALaneLearnsOfItsOwnQueuesAndHolds(t *testing.T) {
	const (
		ourTopics = "delete from holdfast.parked where lane = 2 and key = 'b' and topic in ('b', 'c');"
		waits     = "update holdfast.parked set partition = 7, why = case place when 10 then 'topic' else 'partition' end where lane <> 2;"
	)
	lane := int16(2)
	parkedCases(t, map[string]parkedCase{
		"queues from one on that has no events": {
			statement: listQueues,
			args:      []any{lane, 100, "b", "b"},
			before:    ourTopics,
			returns:   "b/c/false c//false c/a/false c/c/false",
		},
		"queues from one on": {
			statement: listQueues,
			args:      []any{lane, 100, "b", "c"},
			returns:   "b/c/false c//false c/a/false c/b/false c/c/false",
		},
		"two queues": {
			statement: listQueues,
			args:      []any{lane, 2, "b", "c"},
			returns:   "b/c/false c//false",
		},
		"queues whose first event never falls due": {
			statement: listQueues,
			args:      []any{lane, 100, "b", "c"},
			before: parkedSet("next_at = 'infinity'", "place = 10") + parkedSet("why = 'topic'", "(lane, topic, key) = (2, 'c', 'a')") +
				parkedSet("partition = 5", "(lane, topic, key) = (2, 'c', 'b')"),
			returns: "b/c/true c//true c/a/false c/b/false c/c/true",
		},
		"topics of which nothing without a key is left": {
			statement: keylessGone,
			args:      []any{lane, []string{"a", "b", "c"}},
			before:    "delete from holdfast.parked where (lane, topic, key) = (2, 'b', '')",
			returns:   "b",
		},
		"what events wait for": {
			statement: loadHolds,
			args:      []any{lane},
			before: waits + parkedSet("why = 'topic'", parkedOurs+" and place = 20") + parkedSet("partition = 5", parkedOurs+" and place = 30") +
				parkedSet("partition = 0", "id in ('2/c/a/10', '2/c/b/10')"),
			returns: "b/-2 b/5 c/0",
		},
		"a partition is the first, a topic the last": {
			statement: loadHolds,
			args:      []any{lane},
			before:    waits + parkedSet("partition = 5", parkedOurs+" and place = 30") + parkedSet("why = 'topic'", "id = '2/c/a/10'"),
			returns:   "b/5 c/-2",
		},
		"nothing waits in this lane": {statement: loadHolds, args: []any{lane}, before: waits},
		"keys that letters hold": {
			statement: loadHeld,
			args:      []any{lane},
			before:    parkedHeld(parkedOurs) + parkedHeld(parkedOurs) + parkedHeld("lane <> 2 and "+parkedOthers),
			returns:   "b/b",
		},
	})
}

// Of a queue the first event becomes due, unless it has a time, and no other; whatever is before the events of other queues.
func TestParkedNeighbours_OnlyTheFirstOfAQueueBecomesDue(t *testing.T) {
	asleep := parkedSet("next_at = 'infinity'", "place = 10")
	const due = "2/b/b/10: 10 record 3 due"
	fix := []any{int16(2), "b", "b"}
	resume := []any{int16(2), []string{"b", "b"}, []string{"b", "d"}}
	parkedCases(t, map[string]parkedCase{
		"fix":                                   {fixHead, fix, asleep, "", due},
		"fix, others have an earlier one":       {fixHead, fix, asleep + parkedEarlier(parkedOthers), "", due},
		"fix, it has a time":                    {fixHead, fix, "", "", ""},
		"fix, one behind it is due":             {fixHead, fix, parkedSet("next_at = now() - interval '1 second'", "place = 20"), "", "2/b/b/20: 20 follows 3 waits"},
		"fix, a replay came before it":          {fixHead, fix, parkedEarlier("true"), "", "2/b/b/10: 10 record 3 waits; 2/b/b/5: 5 follows 0 due"},
		"resume":                                {resumeQueues, resume, asleep, "b/d", due},
		"resume, others have an earlier one":    {resumeQueues, resume, asleep + parkedEarlier(parkedOthers), "b/d", due},
		"resume, it has a time":                 {resumeQueues, resume, "", "b/d", ""},
		"resume, none is left":                  {resumeQueues, resume, asleep + "delete from holdfast.parked where " + parkedOurs, "b/b b/d", ""},
		"resume, a letter holds it":             {resumeQueues, resume, asleep + parkedHeld(parkedOurs), "b/d", ""},
		"resume, letters hold others":           {resumeQueues, resume, asleep + parkedHeld(parkedOthers), "b/d", due},
		"resume, a letter holds it, a replay":   {resumeQueues, resume, asleep + parkedHeld(parkedOurs) + parkedSet("letter = 9", parkedOurs), "b/d", "2/b/b/10: 10 record 3 due letter 9"},
		"resume, letters hold others, a replay": {resumeQueues, resume, asleep + parkedHeld(parkedOthers) + parkedSet("letter = 9", parkedOurs), "b/d", "2/b/b/10: 10 record 3 due letter 9"},
	})
}

// What becomes of an event is written into its own row; if that is gone, into none.
func TestParkedNeighbours_WhatBecomesOfAParkedEventIsItsOwn(t *testing.T) {
	const (
		leases  = "insert into holdfast.parked_lease (lane, topic, key, place) select lane, topic, key, place from holdfast.parked;"
		gone    = "delete from holdfast.parked where id = '2/b/b/20';"
		row     = "id = '2/b/b/20'"
		closed  = "update holdfast.letter set state = '%s' where id = 102"
		letters = parkedLetters + ";"
	)
	five := int32(5)
	one := []any{int16(2), []string{"b"}, []string{"b"}, []int64{20}}
	two := []any{int16(2), []string{"b", "b"}, []string{"b", ""}, []int64{20, 10}}
	with := func(keys []any, more ...any) []any { return slices.Concat(keys, more) }
	delay := func(attempts int32, err string) []any {
		return with(one, []int32{attempts}, []string{err}, []float64{60})
	}
	bury := func(place int64) []any { return []any{int16(2), "b", "b", place, 1, "e", "why", "print", true} }
	of := func(replays string) string { return parkedSet("letter = 9", replays) }
	parkedCases(t, map[string]parkedCase{
		"a lease ends":                {endLeases, one, leases, "", "lease/2/b/b/20 is gone"},
		"two leases end":              {endLeases, two, leases, "", "lease/2/b//10 is gone; lease/2/b/b/20 is gone"},
		"a lease that is not there":   {endLeases, one, leases + "delete from holdfast.parked_lease where (lane, topic, key, place) = (2, 'b', 'b', 20)", "", ""},
		"a replay ends":               {closeLetters, []any{[]int64{102}}, letters, "", "letter 102: replayed r 1 {c,NULL} now"},
		"its letter is open":          {closeLetters, []any{[]int64{102}}, letters + fmt.Sprintf(closed, "open"), "", ""},
		"its letter was replayed":     {closeLetters, []any{[]int64{102}}, letters + fmt.Sprintf(closed, "replayed"), "", ""},
		"its letter was discarded":    {closeLetters, []any{[]int64{102}}, letters + fmt.Sprintf(closed, "discarded"), "", ""},
		"it waits for its partition":  {holdParked, with(one, []*int32{&five}), "", "", "2/b/b/20: 20 follows 3 waits partition 5"},
		"two wait, one for its topic": {holdParked, with(two, []*int32{&five, nil}), "", "", "2/b//10: 10 topic 3 waits; 2/b/b/20: 20 follows 3 waits partition 5"},
		"what is to wait is gone":     {holdParked, with(one, []*int32{&five}), gone, "", ""},
		"it leaves":                   {deleteParked, one, "", "", "2/b/b/20 is gone"},
		"two leave":                   {deleteParked, two, "", "", "2/b//10 is gone; 2/b/b/20 is gone"},
		"what is to leave is gone":    {deleteParked, one, gone, "", ""},

		"delayed":                          {delayParked, delay(1, "e"), "", "", "2/b/b/20: 20 record 4 in 60 s {e}"},
		"delayed, it is gone":              {delayParked, delay(1, "e"), gone, "", ""},
		"delayed, no attempt":              {delayParked, delay(0, "e"), "", "", "2/b/b/20: 20 follows 3 in 60 s {e}"},
		"delayed, no attempt, as before":   {delayParked, delay(0, "e"), parkedSet("errors = '{d,e}'", row), "", "2/b/b/20: 20 follows 3 in 60 s {d,e}"},
		"delayed, not as before":           {delayParked, delay(0, "d"), parkedSet("errors = '{d,e}'", row), "", "2/b/b/20: 20 follows 3 in 60 s {d,e,d}"},
		"delayed, an attempt as before":    {delayParked, delay(1, "e"), parkedSet("errors = '{d,e}'", row), "", "2/b/b/20: 20 record 4 in 60 s {d,e,e}"},
		"delayed, an error is null":        {delayParked, delay(1, "e"), parkedSet("errors = '{d,null}'", row), "", "2/b/b/20: 20 record 4 in 60 s {d,e}"},
		"delayed, a replay is before it":   {delayParked, delay(1, "e"), of(parkedOurs + " and place = 10"), "", "2/b/b/20: 20 record 4 waits {e}"},
		"delayed, it is a replay":          {delayParked, delay(1, "e"), of(parkedOurs + " and place >= 20"), "", "2/b/b/20: 20 record 4 in 60 s letter 9 {e}"},
		"delayed, replays are before more": {delayParked, delay(1, "e"), of(parkedOthers), "", "2/b/b/20: 20 record 4 in 60 s {e}"},
		"delayed, without a key": {
			statement: delayParked,
			args:      []any{int16(2), []string{"b"}, []string{""}, []int64{20}, []int32{1}, []string{"e"}, []float64{60}},
			before:    of("place = 10"),
			changes:   "2/b//20: 20 record 4 in 60 s {e}",
		},

		"given up":                      {deadLetterParked, bury(20), "", "501", "2/b/b/20 is gone; new letter 2/b/b/20: open holds why print 4 {e} now"},
		"given up, it is gone":          {deadLetterParked, bury(20), gone, "", ""},
		"given up, an error is null":    {deadLetterParked, bury(20), parkedSet("errors = '{d,null}'", row), "501", "2/b/b/20 is gone; new letter 2/b/b/20: open holds why print 4 {d,e} now"},
		"given up, its letter is gone":  {deadLetterParked, bury(20), letters + parkedSet("letter = 99", row), "501", "2/b/b/20 is gone; new letter 2/b/b/20: open holds why print 4 {e} now"},
		"given up, a replay of letters": {deadLetterParked, bury(20), letters + parkedSet("letter = 102, errors = '{d,null}'", row), "102", "2/b/b/20 is gone; letter 102: open why print 5 {c,d,e} now"},
	})
}

// Events that wait for a partition or a topic go on when it has come back. Those that head a queue of their own are due, unless a letter holds it.
func TestParkedNeighbours_WhatComesBackResumesItsOwnEvents(t *testing.T) {
	const ten, twenty = "2/b/b/10: 10 follows 3 due", "2/b/b/20: 20 follows 3 waits"
	// Two of each queue of our topic wait for something of their own, all of other topics and lanes for what ours wait for.
	waits := parkedSet("next_at = 'infinity', partition = 5, why = 'partition'", "(lane, topic) <> (2, 'b')") +
		parkedSet("next_at = 'infinity', partition = array_position('{a,b,c}', key) + 3, why = case when key = '' then 'topic' else 'partition' end", "(lane, topic) = (2, 'b') and place < 30")
	resume := func(partition, n int32, after any) []any { return []any{int16(2), "b", partition, n, after} }
	replay := parkedSet("letter = 9", parkedOurs+" and place = 10")
	parkedCases(t, map[string]parkedCase{
		"a partition":                   {resumeHeld, resume(5, 100, nil), waits, "2", ten + "; " + twenty},
		"a topic":                       {resumeHeld, resume(-2, 100, nil), waits, "2", "2/b//10: 10 follows 3 due; 2/b//20: 20 follows 3 due"},
		"the first":                     {resumeHeld, resume(5, 1, nil), waits, "1", ten},
		"from a place on":               {resumeHeld, resume(5, 100, int64(9)), waits, "2", ten + "; " + twenty},
		"after a place":                 {resumeHeld, resume(5, 100, int64(10)), waits, "1", twenty},
		"one is before it":              {resumeHeld, resume(5, 100, nil), waits + parkedEarlier(parkedOurs), "2", "2/b/b/10: 10 follows 3 waits; " + twenty},
		"others have one before them":   {resumeHeld, resume(5, 100, nil), waits + parkedEarlier(parkedOthers), "2", ten + "; " + twenty},
		"one of no key is before it":    {resumeHeld, resume(-2, 100, nil), waits + parkedEarlier("true"), "2", "2/b//10: 10 follows 3 due; 2/b//20: 20 follows 3 due"},
		"a letter holds it":             {resumeHeld, resume(5, 100, nil), waits + parkedHeld(parkedOurs), "2", "2/b/b/10: 10 follows 3 waits; " + twenty},
		"letters hold others":           {resumeHeld, resume(5, 100, nil), waits + parkedHeld(parkedOthers), "2", ten + "; " + twenty},
		"a letter holds it, a replay":   {resumeHeld, resume(5, 100, nil), waits + replay + parkedHeld(parkedOurs), "2", ten + " letter 9; " + twenty},
		"it has a time":                 {resumeHeld, resume(5, 100, nil), waits + parkedSet("next_at = '2100-01-01'", "place = 10"), "2", "2/b/b/10: 10 follows 3 later; " + twenty},
		"nothing waits for it any more": {resumeHeld, resume(7, 100, nil), waits, "0", ""},
	})
}

// parkedArrival is an event that is parked.
type parkedArrival struct {
	key    string
	letter int64
	delay  any // of seconds; nil for none
	err    string
}

func parkedArgs(arrivals ...parkedArrival) []any {
	n := len(arrivals)
	var keys, errs, ids []string
	var letters []int64
	var delays []*float64
	for i, a := range arrivals {
		var delay *float64
		if s, ok := a.delay.(int); ok {
			f := float64(s)
			delay = &f
		}
		keys, errs, ids = append(keys, a.key), append(errs, a.err), append(ids, fmt.Sprint("new ", i+1))
		letters, delays = append(letters, a.letter), append(delays, delay)
	}
	texts := slices.Repeat([]string{"t"}, n)
	return []any{int16(2), slices.Repeat([]string{"b"}, n), keys, slices.Repeat([]string{"follows"}, n), make([]int32, n), errs, ids, texts, texts,
		slices.Repeat([]time.Time{time.Now()}, n), make([]*string, n), make([][]byte, n), letters, delays, make([]*int32, n)}
}

// What enters a queue is due after its delay if nothing of its own queue is before it, and waits otherwise. A replay goes to the front, behind
// other replays of its letter.
func TestParkedNeighbours_WhatEntersAQueueHasItsPlaceThere(t *testing.T) {
	const (
		left = "delete from holdfast.parked where " + parkedOurs + ";"
		all  = "true"
	)
	// The places of the replays of a letter begin here.
	front := func(letter int64) int64 { return letter<<16 - 1<<62 }
	at := func(place int64, where string) string { return fmt.Sprintf(parkedAt, place, where) + ";" }
	replay := parkedArgs(parkedArrival{"b", 3, 0, ""})
	replayed := func(n int64) (returns, changes string) {
		return fmt.Sprint(front(3) + n), fmt.Sprintf("new 1: %d follows 0 waits letter 3", front(3)+n)
	}
	first, firstIs := replayed(0)
	second, secondIs := replayed(1)
	tenth, tenthIs := replayed(9)
	parkedCases(t, map[string]parkedCase{
		"a new queue":                  {parkEvents, parkedArgs(parkedArrival{"d", 0, 0, ""}), "", "1001", "new 1: 1001 follows 0 due"},
		"a new queue, after its delay": {parkEvents, parkedArgs(parkedArrival{"d", 0, 60, "e"}), "", "1001", "new 1: 1001 follows 0 in 60 s {e}"},
		"a new queue, without a delay": {parkEvents, parkedArgs(parkedArrival{"d", 0, nil, ""}), "", "1001", "new 1: 1001 follows 0 waits"},
		"two of a new queue": {
			statement: parkEvents,
			args:      parkedArgs(parkedArrival{"d", 0, 60, ""}, parkedArrival{"d", 0, 60, ""}),
			returns:   "1001 1002",
			changes:   "new 1: 1001 follows 0 in 60 s; new 2: 1002 follows 0 waits",
		},
		"two without a key": {
			statement: parkEvents,
			args:      parkedArgs(parkedArrival{"", 0, 60, ""}, parkedArrival{"", 0, nil, ""}),
			returns:   "1001 1002",
			changes:   "new 1: 1001 follows 0 in 60 s; new 2: 1002 follows 0 waits",
		},
		"events are before it":          {parkEvents, parkedArgs(parkedArrival{"b", 0, 60, ""}), "", "1001", "new 1: 1001 follows 0 waits"},
		"events of others":              {parkEvents, parkedArgs(parkedArrival{"b", 0, 60, ""}), left, "1001", "new 1: 1001 follows 0 in 60 s"},
		"a letter holds it":             {parkEvents, parkedArgs(parkedArrival{"b", 0, 60, ""}), parkedHeld(parkedOurs) + left, "1001", "new 1: 1001 follows 0 waits"},
		"letters hold others":           {parkEvents, parkedArgs(parkedArrival{"b", 0, 60, ""}), parkedHeld(parkedOthers) + left, "1001", "new 1: 1001 follows 0 in 60 s"},
		"a letter holds it, a replay":   {parkEvents, parkedArgs(parkedArrival{"b", 3, 60, ""}), parkedHeld(parkedOurs) + left, first, strings.Replace(firstIs, "waits", "in 60 s", 1)},
		"a replay":                      {parkEvents, replay, "", first, firstIs},
		"another replay of its letter":  {parkEvents, replay, at(front(3), all), second, secondIs},
		"one after nine":                {parkEvents, replay, at(front(3)+8, parkedOurs), tenth, tenthIs},
		"others have replays of it":     {parkEvents, replay, at(front(3)+8, parkedOthers), first, firstIs},
		"a replay of an earlier letter": {parkEvents, replay, at(front(2), all), first, firstIs},
		"a replay of a later letter":    {parkEvents, replay, at(front(4), all), first, firstIs},
		"two replays": {
			statement: parkEvents,
			args:      parkedArgs(parkedArrival{"d", 3, 0, ""}, parkedArrival{"d", 3, 0, ""}),
			returns:   first + " " + second,
			changes:   fmt.Sprintf("new 1: %d follows 0 due letter 3; new 2: %d follows 0 waits letter 3", front(3), front(3)+1),
		},
	})
}

// What is due of a lane is found: of no topic that is held, and without what is in memory already.
func TestParkedNeighbours_WhatIsDueIsFoundOnce(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	due := parkedSet("next_at = now()", "(place = 10 or key = '')")
	late := parkedSet("next_at = now() - interval '1 second'", "id = '2/b/c/10'")
	none := []string{}
	for name, c := range map[string]struct {
		before       string
		held         []string
		n            int32
		topics, keys []string
		places       []int64
		want         string
	}{
		"nothing":                        {"", none, 100, none, none, nil, ""},
		"ours":                           {parkedSet("next_at = now()", parkedOurs+" and place = 10"), none, 100, none, none, nil, "b/b/10"},
		"others":                         {parkedSet("next_at = now()", "place = 10 and lane <> 2"), none, 100, none, none, nil, ""},
		"ours, very soon":                {parkedSet("next_at = now() + interval '1 microsecond'", parkedOurs), none, 100, none, none, nil, ""},
		"topics are held":                {due, []string{"a", "c"}, 100, none, none, nil, "b//10 b//20 b//30 b/a/10 b/b/10 b/c/10"},
		"a queue is in memory":           {due, []string{"a", "c"}, 100, []string{"b"}, []string{"b"}, []int64{0}, "b//10 b//20 b//30 b/a/10 b/c/10"},
		"it is, by a place":              {due, []string{"a", "c"}, 100, []string{"b"}, []string{"b"}, []int64{20}, "b//10 b//20 b//30 b/a/10 b/c/10"},
		"queues of others are":           {due, []string{"a", "c"}, 100, []string{"a", "c", "b"}, []string{"b", "b", "d"}, []int64{0, 0, 0}, "b//10 b//20 b//30 b/a/10 b/b/10 b/c/10"},
		"one without a key is in memory": {due, []string{"a", "c"}, 100, []string{"b"}, []string{""}, []int64{10}, "b//20 b//30 b/a/10 b/b/10 b/c/10"},
		"of another topic":               {due, []string{"a", "c"}, 100, []string{"a", "c"}, []string{"", ""}, []int64{10, 10}, "b//10 b//20 b//30 b/a/10 b/b/10 b/c/10"},
		"the first that fell due":        {due + late, []string{"a"}, 1, none, none, nil, "b/c/10"},
		"two of a queue":                 {parkedSet("next_at = now()", "topic = 'b' and key = 'b' and place < 30"), none, 100, none, none, nil, "b/b/10"},
		"two, the later one first":       {parkedSet("next_at = now() - interval '1 second' * place", "topic = 'b' and key = 'b'"), none, 100, none, none, nil, "b/b/10"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []any{int16(2), c.held, c.n, c.topics, c.keys, c.places}
			listed, _ := parkedRun(t, db, c.before, sqlschema.In("", listDue), args)
			read, _ := parkedRun(t, db, c.before, sqlschema.In("", readDue), append(args, int32(1), int64(math.MaxInt64)), 1, 2, 0)
			for i, r := range read { // place, topic, key
				place, rest, _ := strings.Cut(r, "/")
				read[i] = rest + "/" + place
			}
			slices.Sort(listed)
			slices.Sort(read)
			if got := strings.Join(listed, " "); got != c.want {
				t.Errorf("listed are %q\nwant       %q", got, c.want)
			}
			if got := strings.Join(read, " "); got != c.want {
				t.Errorf("read are %q\nwant     %q", got, c.want)
			}
		})
	}
}

// Of a queue its first event is read and those after it, as many as there is room for; of those without a key one at a time.
func TestParkedNeighbours_AHeadIsReadWithWhatFollowsIt(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	const small, large = `'{"k": "v"}'`, "jsonb_build_object('k', repeat('x', 5000))"
	size := func(headers, of string) int64 {
		tx := pgtest.Begin(t, db)
		defer tx.Rollback(context.Background())
		pgtest.Exec(t, tx, parkedSet("headers = "+headers, parkedOurs))
		return pgtest.Count(t, tx, "select "+of+" from holdfast.parked where id = '2/b/b/10'")
	}
	const stored, text = "pg_column_size(headers)", "octet_length(headers::text)"
	const ids = "2/b/b/10 2/b/b/20 2/b/b/30"
	const texts = int64(len("2/b/b/10" + "s" + "t" + "b" + "b"))
	for name, c := range map[string]struct {
		before  string
		key     string
		rows    int32
		bytes   int64
		headers int64 // of how many bytes, as they are stored, they are counted so
		want    string
	}{
		"all":                                {"", "b", 100, math.MaxInt64, 524288, ids},
		"two":                                {"", "b", 2, math.MaxInt64, 524288, "2/b/b/10 2/b/b/20"},
		"one is before it":                   {parkedEarlier("true"), "b", 100, math.MaxInt64, 524288, ids},
		"without a key":                      {"", "", 100, math.MaxInt64, 524288, "2/b//10"},
		"one, whatever its size":             {"", "b", 100, 1, 524288, "2/b/b/10"},
		"as many bytes as the first":         {"", "b", 100, texts, 524288, "2/b/b/10"},
		"one more":                           {"", "b", 100, texts + 1, 524288, "2/b/b/10 2/b/b/20"},
		"headers as they are stored":         {small, "b", 100, texts + size(small, stored), 524288, "2/b/b/10"},
		"and one more":                       {small, "b", 100, texts + size(small, stored) + 1, 524288, "2/b/b/10 2/b/b/20"},
		"headers that are compressed":        {large, "b", 100, texts + size(large, text), size(large, stored), "2/b/b/10"},
		"compressed, and one more":           {large, "b", 100, texts + size(large, text) + 1, size(large, stored), "2/b/b/10 2/b/b/20"},
		"headers that are too large to read": {large, "b", 100, texts + size(large, stored), size(large, stored) - 1, "2/b/b/10"},
		"too large, and one more":            {large, "b", 100, texts + size(large, stored) + 1, size(large, stored) - 1, "2/b/b/10 2/b/b/20"},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.before + ";" + parkedSet("next_at = now()", "lane = 2 and topic = 'b' and key = '"+c.key+"' and place = 10")
			if c.before == small || c.before == large {
				before = parkedSet("next_at = now(), headers = "+c.before, parkedOurs+" and place = 10")
			}
			for statement, args := range map[string][]any{
				readDue:   {int16(2), []string{}, int32(100), []string{}, []string{}, []int64{}, c.rows, c.bytes},
				readHeads: {int16(2), []string{"b"}, []string{c.key}, []int64{10}, c.rows, c.bytes},
			} {
				statement = strings.ReplaceAll(sqlschema.In("", statement), sqlschema.MaxStoredHeaders, fmt.Sprint(c.headers))
				returned, _ := parkedRun(t, db, before, statement, args, 5)
				if got := strings.Join(returned, " "); got != c.want {
					t.Errorf("%.20s: read are %s, want %s", statement, got, c.want)
				}
			}
		})
	}
}

// A head without a key that a person has removed meanwhile is not taken for the next event without one.
func TestParkedNeighbours_AHeadThatIsGoneIsNoOther(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	read, _ := parkedRun(t, db, "delete from holdfast.parked where id = '2/b//10'", sqlschema.In("", readHeads), []any{int16(2), []string{"b", "b"}, []string{"", ""}, []int64{10, 20}, int32(100), int64(math.MaxInt64)}, 5)
	if got := strings.Join(read, " "); got != "2/b//20" {
		t.Errorf("read are %s", got)
	}
}

// Queues share the rows that are read: as many of each as there are for all, and of each its head.
func TestParkedNeighbours_QueuesShareTheRows(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	const one, two = "b/a/10 b/b/10 b/c/10", "b/a/10 b/a/20 b/b/10 b/b/20 b/c/10 b/c/20"
	const three = "b/a/10 b/a/20 b/a/30 b/b/10 b/b/20 b/b/30 b/c/10 b/c/20 b/c/30"
	for name, c := range map[string]struct {
		keys []string
		rows int32
		want string
	}{
		"none":                    {[]string{"a", "b", "c"}, 0, one},
		"fewer than queues":       {[]string{"a", "b", "c"}, 2, one},
		"as many as queues":       {[]string{"a", "b", "c"}, 3, one},
		"nearly two of each":      {[]string{"a", "b", "c"}, 5, one},
		"two of each":             {[]string{"a", "b", "c"}, 6, two},
		"more than there are":     {[]string{"a", "b", "c"}, 100, three},
		"one queue":               {[]string{"b"}, 2, "b/b/10 b/b/20"},
		"without a key, one each": {[]string{"", "a", "b"}, 6, "b//10 b/a/10 b/a/20 b/b/10 b/b/20"},
	} {
		t.Run(name, func(t *testing.T) {
			due := parkedSet("next_at = now()", "lane = 2 and topic = 'b' and place = 10 and key in ('"+strings.Join(c.keys, "', '")+"')")
			topics, places := slices.Repeat([]string{"b"}, len(c.keys)), slices.Repeat([]int64{10}, len(c.keys))
			for statement, args := range map[string][]any{
				readDue:   {int16(2), []string{}, int32(100), []string{}, []string{}, []int64{}, c.rows, int64(math.MaxInt64)},
				readHeads: {int16(2), topics, c.keys, places, c.rows, int64(math.MaxInt64)},
			} {
				read, _ := parkedRun(t, db, due, sqlschema.In("", statement), args, 1, 2, 0)
				for i, r := range read { // place, topic, key
					place, rest, _ := strings.Cut(r, "/")
					read[i] = rest + "/" + place
				}
				slices.Sort(read)
				if got := strings.Join(read, " "); got != c.want {
					t.Errorf("%.20s: read are %q, want %q", statement, got, c.want)
				}
			}
		})
	}
}

// The heads of all queues come first, as they fell due, then their second events and so on, however old a queue is and however much of it
// waits: so a queue whose events are refused keeps no other out of a statement, or of a call.
func TestParkedNeighbours_EveryQueueHasItsTurn(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	const each = int64(len("2/b/b/10" + "s" + "t" + "b" + "b"))
	apart := parkedSet("place = place + ascii(key) - 96", "lane = 2 and topic = 'b' and key <> ''") + ";" // as the sequence gives them: a 11, b 12, c 13
	older := parkedSet("place = place - 100", parkedOurs) + ";"                                           // b -88
	due := parkedSet("next_at = now()", "lane = 2 and topic = 'b' and (key = 'a' and place = 11 or key = 'b' and place in (12, -88) or key = 'c' and place = 13)")
	for name, c := range map[string]struct {
		before string
		keys   string // in the order in which they fell due
		bytes  int64
		want   string
	}{
		"as they are":                    {"", "abc", math.MaxInt64, "a/11 b/12 c/13 a/21 b/22 c/23 a/31 b/32 c/33"},
		"one is older":                   {older, "bac", math.MaxInt64, "b/-88 a/11 c/13 b/-78 a/21 c/23 b/-68 a/31 c/33"},
		"one was due before":             {"", "cab", math.MaxInt64, "c/13 a/11 b/12 c/23 a/21 b/22 c/33 a/31 b/32"},
		"and there is room for two":      {"", "cab", each + 1, "c/13 a/11"},
		"there is room for four":         {"", "abc", 3*each + 1, "a/11 b/12 c/13 a/21"},
		"for four, and one is older":     {older, "bac", 3*each + 1, "b/-88 a/11 c/13 b/-78"},
		"for the first, and it is large": {older + parkedSet("payload = convert_to(repeat('x', 5000), 'UTF8')", "lane = 2 and topic = 'b' and key = 'b'") + ";", "bac", 5000 + 2*each + 1, "b/-88 a/11 c/13"},
	} {
		t.Run(name, func(t *testing.T) {
			topics, keys, before := slices.Repeat([]string{"b"}, 3), strings.Split(c.keys, ""), apart+c.before+due
			if c.keys == "cab" {
				before += ";" + parkedSet("next_at = now() - interval '1 second'", "id = '2/b/c/10'")
			}
			var places []int64
			for _, key := range keys {
				place := map[string]int64{"a": 11, "b": 12, "c": 13}[key]
				if key == "b" && strings.HasPrefix(c.before, older) {
					place = -88
				}
				places = append(places, place)
			}
			for statement, args := range map[string][]any{
				readDue:   {int16(2), []string{}, int32(100), []string{}, []string{}, []int64{}, int32(100), c.bytes},
				readHeads: {int16(2), topics, keys, places, int32(100), c.bytes},
			} {
				read, _ := parkedRun(t, db, before, sqlschema.In("", statement), args, 2, 0)
				for i, r := range read { // place, key
					place, key, _ := strings.Cut(r, "/")
					read[i] = key + "/" + place
				}
				if got := strings.Join(read, " "); got != c.want {
					t.Errorf("%.20s: read are %q, want %q", statement, got, c.want)
				}
			}
		})
	}
}

// An event is read whole if each part has as many bytes as it may have; of one with a byte more that part is kept back.
func TestParkedNeighbours_AnEventOfTheLargestSizeIsReadWhole(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	before := parkedSet("next_at = now(), partition = 5, headers = jsonb_build_object('k', repeat('h', 3000)), payload = repeat('p', 300)::bytea, id = repeat('i', 200), source = repeat('s', 200), type = repeat('t', 200)",
		parkedOurs+" and place = 10")
	tx := pgtest.Begin(t, db)
	pgtest.Exec(t, tx, before)
	sizes := map[string]int64{}
	for limit, size := range map[string]string{
		sqlschema.MaxTexts:         "octet_length(id) + octet_length(source) + octet_length(type)",
		sqlschema.MaxPayload:       "octet_length(payload)",
		sqlschema.MaxStoredHeaders: "pg_column_size(headers)",
		sqlschema.MaxHeaders:       "octet_length(headers::text)",
	} {
		sizes[limit] = pgtest.Count(t, tx, "select "+size+" from holdfast.parked where partition = 5")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for statement, args := range map[string][]any{
		readDue:   {int16(2), []string{}, int32(100), []string{}, []string{}, []int64{}, int32(1), int64(math.MaxInt64)},
		readHeads: {int16(2), []string{"b"}, []string{"b"}, []int64{10}, int32(1), int64(math.MaxInt64)},
		readProbe: {int16(2), "b", int32(5), int64(0)},
	} {
		for smaller, want := range map[string]string{
			"":                         "200 200 200, headers true, payload true: ",
			sqlschema.MaxTexts:         "100 100 100, headers false, payload false: id, source and type have 600 bytes together: at most 599",
			sqlschema.MaxPayload:       "200 200 200, headers false, payload false: payload has 300 bytes: at most 299",
			sqlschema.MaxStoredHeaders: "200 200 200, headers false, payload false: headers have %d bytes as they are stored: at most %d",
			sqlschema.MaxHeaders:       "200 200 200, headers false, payload true: headers have %d bytes of JSON: at most %d",
		} {
			limited := sqlschema.In("", statement)
			for limit, size := range sizes {
				if limit == smaller {
					if strings.Contains(want, "%d") {
						want = fmt.Sprintf(want, size, size-1)
					}
					size--
				}
				limited = strings.ReplaceAll(limited, limit, fmt.Sprint(size))
			}
			const summary = ` select format('%s %s %s, headers %s, payload %s: %s', length(id), length(source), length(type), (headers is not null)::text, (payload is not null)::text, malformed)
				from r as r (place, topic, key, why, attempts, id, source, type, time, headers, payload, letter, malformed)`
			returned, _ := parkedRun(t, db, before, "with r as ("+limited+")"+summary, args)
			got := strings.Join(returned, " ")
			if got != want {
				t.Errorf("%.20s: it is read as %s\nwant %s", statement, got, want)
			}
		}
	}
}

// An event is named by its place in its queue, its id and type with it unless they are longer than any may be.
func TestParkedNeighbours_TheFirstOfAQueueIsNamedFromAPlaceOn(t *testing.T) {
	head := func(place int64) []any { return []any{int16(2), "b", "b", place} }
	// The places of all others come before those of ours.
	behind := parkedSet("place = place + 1", parkedOurs)
	long := func(n int) string {
		return behind + parkedSet(fmt.Sprintf("id = repeat('i', %d), type = repeat('t', %[1]d)", n), parkedOurs+" and place = 11")
	}
	parkedCases(t, map[string]parkedCase{
		"the first":                {nameHead, head(0), behind, "11/b/b/3/2/b/b/10/t/0", ""},
		"from its place on":        {nameHead, head(11), behind, "11/b/b/3/2/b/b/10/t/0", ""},
		"after its place":          {nameHead, head(12), behind, "21/b/b/3/2/b/b/20/t/0", ""},
		"after all":                {nameHead, head(32), behind, "", ""},
		"none is left":             {nameHead, head(0), "delete from holdfast.parked where " + parkedOurs, "", ""},
		"it has the longest names": {nameHead, head(0), long(255), "11/b/b/3/" + strings.Repeat("i", 255) + "/" + strings.Repeat("t", 255) + "/0", ""},
		"its names are too long":   {nameHead, head(0), long(256), "11/b/b/3///0", ""},
	})
}

// A topic or a partition that is held is tried with the first event after a place that waits for it, heads its queue and is held by no letter. It is
// named as it is read; without those conditions the first is named that waits.
func TestParkedNeighbours_AHoldIsTriedWithTheFirstThatMayGo(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	// Two of each queue of our topic wait for something of their own, all of other topics and lanes for what ours wait for. Ours come last.
	waits := parkedSet("next_at = 'infinity', partition = 5, why = 'partition'", "(lane, topic) <> (2, 'b')") +
		parkedSet("next_at = 'infinity', partition = array_position('{a,b,c}', key) + 3, why = case when key = '' then 'topic' else 'partition' end", "(lane, topic) = (2, 'b') and place < 30") +
		parkedSet("place = place + 1", "(lane, topic) = (2, 'b') and key in ('', 'b')")
	replay := parkedSet("letter = 9", parkedOurs+" and place = 11")
	long := func(n int) string {
		return waits + parkedSet(fmt.Sprintf("id = repeat('i', %d), type = repeat('t', %[1]d)", n), parkedOurs+" and place = 11")
	}
	const ten, twenty = "2/b/b/10", "2/b/b/20"
	for name, c := range map[string]struct {
		before    string
		partition int32
		after     int64
		tried     string
		waits     string
	}{
		"a partition":                 {waits, 5, 0, ten, ten},
		"a topic":                     {waits, -2, 0, "2/b//10", "2/b//10"},
		"before it":                   {waits, 5, 10, ten, ten},
		"after it":                    {waits, 5, 11, "", twenty},
		"after one without a key":     {waits, -2, 11, "2/b//20", "2/b//20"},
		"after all":                   {waits, 5, 21, "", ""},
		"nothing waits for it":        {waits, 7, 0, "", ""},
		"one is before it":            {waits + strings.Replace(parkedEarlier(parkedOurs), "place = 10", "place = 11", 1), 5, 0, "", ten},
		"others have one before them": {waits + parkedEarlier(parkedOthers), 5, 0, ten, ten},
		"one of no key is before it":  {waits + strings.Replace(parkedEarlier("key = ''"), "place = 10", "place = 11", 1), -2, 0, "2/b//10", "2/b//10"},
		"one that waits for nothing":  {waits + parkedSet("place = 9", "id = '2/b//30'"), -2, 0, "2/b//10", "2/b//10"},
		"a letter holds it":           {waits + strings.Replace(parkedHeld(parkedOurs), "place = 10", "place = 11", 1), 5, 0, "", ten},
		"letters hold others":         {waits + parkedHeld(parkedOthers), 5, 0, ten, ten},
		"a letter holds it, a replay": {waits + replay + strings.Replace(parkedHeld(parkedOurs), "place = 10", "place = 11", 1), 5, 0, ten, ten},
		"it has the longest names":    {long(255), 5, 0, strings.Repeat("i", 255), strings.Repeat("i", 255)},
	} {
		t.Run(name, func(t *testing.T) {
			wantNamed := func(after any, probe bool, want string) {
				t.Helper()
				named, _ := parkedRun(t, db, c.before, sqlschema.In("", nameWaiting), []any{int16(2), "b", c.partition, after, probe}, 4, 5)
				if want != "" {
					want += "/" + map[bool]string{true: strings.Repeat("t", 255), false: "t"}[len(want) == 255]
				}
				if got := strings.Join(named, " "); got != want {
					t.Errorf("after %v, to be tried %v: %q is named, want %q", after, probe, got, want)
				}
			}
			wantNamed(c.after, true, c.tried)
			wantNamed(c.after, false, c.waits)
			if c.after == 0 {
				wantNamed(nil, true, c.tried)
				wantNamed(nil, false, c.waits)
			}
			read, _ := parkedRun(t, db, c.before, sqlschema.In("", readProbe), []any{int16(2), "b", c.partition, c.after}, 5)
			if got := strings.Join(read, " "); got != c.tried {
				t.Errorf("%q is read, want %q", got, c.tried)
			}
		})
	}
	named, _ := parkedRun(t, db, long(256), sqlschema.In("", nameWaiting), []any{int16(2), "b", int32(5), nil, false})
	if got := strings.Join(named, " "); got != "11/b/b/3///0" {
		t.Errorf("one whose names are too long is named as %q", got)
	}
}

// Of the log those events are given up that are named, of their own lane and window. A letter is opened again by its own replay only.
func TestParkedNeighbours_WhatIsGivenUpOfTheLogIsOfItsWindow(t *testing.T) {
	// In each lane the transactions 99 to 131 wrote an event each. At the beginning of the window 100 and 105 were open and 110 had not begun; at its end
	// 125 was open and 130 had not begun.
	const (
		log = `insert into holdfast.event_0 (lane, seq, xid, id, source, type, topic, key, headers)
			select l, n, x::text::xid8, concat_ws('/', l, n), 's', 't', 'b', 'b', null from generate_series(1, 3) l, unnest('{99,100,104,105,110,119,125,129,130,131}'::int[]) with ordinality as u (x, n);`
		replays = "update holdfast.event set letter = %d, id = %[1]d where lane = 2 and seq = %d;"
	)
	bury := func(seqs ...int64) []any {
		n := len(seqs)
		return []any{int16(2), "100:110:100,105", "120:130:125", seqs, slices.Repeat([]string{"why"}, n), slices.Repeat([]string{"print"}, n), slices.Repeat([]bool{true}, n)}
	}
	letter := func(seq, xid int) string {
		return fmt.Sprintf(`new letter 2/%d: open holds why print 0 {"holdfast.event_0, xid %d, seq %[1]d: why"} now`, seq, xid)
	}
	reopened := func(letter int) string {
		return fmt.Sprintf("letter %d: open why print 1 {c,NULL,why} now", letter)
	}
	again := parkedLetters + ";" + log + fmt.Sprintf(replays, 102, 4)
	anew := func(change string) parkedCase {
		return parkedCase{
			statement: deadLetterEvents,
			args:      bury(4),
			before:    again + "update holdfast.letter set " + change + " where id = 102",
			returns:   "4/501/holdfast.event_0/105",
			changes:   strings.ReplaceAll(letter(4, 105), "2/4", "102"),
		}
	}
	parkedCases(t, map[string]parkedCase{
		"all": {
			statement: deadLetterEvents,
			args:      bury(1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
			before:    log,
			returns:   "2/501/holdfast.event_0/100 4/502/holdfast.event_0/105 5/503/holdfast.event_0/110 6/504/holdfast.event_0/119 8/505/holdfast.event_0/129",
			changes:   strings.Join([]string{letter(2, 100), letter(4, 105), letter(5, 110), letter(6, 119), letter(8, 129)}, "; "),
		},
		"one":      {deadLetterEvents, bury(4), log, "4/501/holdfast.event_0/105", letter(4, 105)},
		"a replay": {deadLetterEvents, bury(4), again, "4/102/holdfast.event_0/105", reopened(102)},
		"a replay and others": {
			statement: deadLetterEvents,
			args:      bury(2, 4, 5),
			before:    again,
			returns:   "2/501/holdfast.event_0/100 4/102/holdfast.event_0/105 5/502/holdfast.event_0/110",
			changes:   strings.Join([]string{reopened(102), letter(2, 100), letter(5, 110)}, "; "),
		},
		"two replays": {
			statement: deadLetterEvents,
			args:      bury(4, 5),
			before:    again + fmt.Sprintf(replays, 103, 5),
			returns:   "4/102/holdfast.event_0/105 5/103/holdfast.event_0/110",
			changes:   reopened(102) + "; " + reopened(103),
		},
		"other letters have its id":             {deadLetterEvents, bury(4), again + "update holdfast.letter set event_id = '102'", "4/102/holdfast.event_0/105", reopened(102)},
		"its letter is open":                    anew("state = 'open'"),
		"its letter was replayed":               anew("state = 'replayed'"),
		"its letter was discarded":              anew("state = 'discarded'"),
		"its letter has an earlier id":          anew("event_id = '101'"),
		"its letter has a later id":             anew("event_id = '103'"),
		"its letter has an earlier topic":       anew("topic = 'a'"),
		"its letter has a later topic":          anew("topic = 'c'"),
		"its letter is of a consumer, not ours": anew("origin = 'inbox', consumer = 'c'"),
	})
}

// A letter is published, and no other, if its headers are not larger than any that are read.
func TestParkedNeighbours_TheLetterIsPublishedThatIsNamed(t *testing.T) {
	t.Parallel()
	db := parkedDB(t)
	const before = parkedLetters + "; update holdfast.letter set headers = '{\"k\": \"v\"}'"
	tx := pgtest.Begin(t, db)
	pgtest.Exec(t, tx, before)
	size := pgtest.Count(t, tx, "select pg_column_size(headers) from holdfast.letter where id = 102")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64][2]string{
		size:     {"<nil>", "event 102: dead"},
		size - 1: {fmt.Sprintf("its headers have %d bytes", size), ""},
	} {
		statement := strings.ReplaceAll(sqlschema.In("", publishLetter), sqlschema.MaxStoredHeaders, fmt.Sprint(limit))
		returned, changed := parkedRun(t, db, before, statement, []any{int64(102), "dead"})
		if got := [2]string{strings.Join(returned, " "), changed}; got != want {
			t.Errorf("headers may have %d bytes: %q, want %q", limit, got, want)
		}
	}
}

// Of a transaction that was open when its window began an event is given up; of one that was open when it ended it is left to the next.
func TestParkedNeighbours_WhatWasOpenAtTheEndIsLeftToTheNextWindow(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	snapshot := func() string { return pgtest.Text(t, db, "select pg_current_snapshot()::text") }
	write := func(seq int64) pgx.Tx {
		tx := pgtest.Begin(t, db)
		pgtest.Exec(t, tx, "insert into holdfast.event_0 (lane, seq, id, type, topic) values (2, $1::bigint, $1::bigint::text, 't', 'b')", seq)
		return tx
	}
	commit := func(tx pgx.Tx) {
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	over, before := write(1), write(2)
	commit(over)
	done := snapshot()
	commit(before)
	within, after := write(3), write(4)
	commit(within)
	upto := snapshot()
	commit(after)
	next := snapshot()
	for _, window := range []struct{ done, upto, want string }{{done, upto, "2 3"}, {upto, next, "4"}} {
		args := []any{int16(2), window.done, window.upto, []int64{1, 2, 3, 4}, slices.Repeat([]string{"why"}, 4), slices.Repeat([]string{""}, 4), make([]bool, 4)}
		returned, _ := parkedRun(t, db, "", sqlschema.In("", deadLetterEvents), args, 0)
		if got := strings.Join(returned, " "); got != window.want {
			t.Errorf("from %s to %s %s are given up, want %s", window.done, window.upto, got, window.want)
		}
	}
}
