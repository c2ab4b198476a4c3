package retention

import (
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
)

// The events of these tests have the consumer, the source and the id a, b or c each. Ours is b, b, b. Their names say which they are. Each came
// from partition 5 of the topic b, at offset 49, and was settled a minute ago or, in the order of their names, a little later: all at a time of
// its own.
const (
	theEvents = `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result)
		select c, s, e, 'b', 5, 49, '', now() - interval '1 minute' + interval '1 millisecond' * row_number() over (order by c, s, e), 'handled'
		  from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) s, unnest('{a,b,c}'::text[]) e order by c, s, e`
	ours = "(consumer, source, event_id) = ('b', 'b', 'b')"

	// A letter of each event that a condition chooses.
	theLetters = `insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, hash)
		select 'inbox', consumer, 'r', '%s', event_id, source, 't', 'o', 'k', now(), '' from holdfast.inbox where %s`

	// An event that waits under another payload than that of its row: a conflict that is replayed.
	theWaiting = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select consumer, 'o', 'k', row_number() over (), source, event_id, 't', now(), 'other', now() from holdfast.inbox where %s`

	// The positions of the partitions that are like that of the events in all but the consumer, the topic or the number, and that of the events.
	otherPositions = `insert into holdfast.consumer_position (consumer, topic, partition, position)
		select c, t, p, 1000 from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) t, generate_series(4, 6) p where (c, t, p) <> ('b', 'b', 5)`
	ourPosition = "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('b', 'b', 5, 50)"

	// Two steps of each event.
	theSteps = `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at)
		select consumer, source, event_id, '', n, '', '1', processed_at from holdfast.inbox, unnest('{1,2}'::text[]) n`
	stepRows = "select concat(consumer, source, event_id, name), s::text from holdfast.inbox_step s"

	eventRows = "select concat(consumer, source, event_id), i::text from holdfast.inbox i"
	second    = int64(1_000_000) // microseconds
)

// gone are the events of the consumer b, as they are removed.
const gone = "-baa -bab -bac -bba -bbb -bbc -bca -bcb -bcc"

// sweep removes what is older than 30 s, from the event at mark on, and tells what it said: how many events it read and removed, the last of
// them, and the first that it kept.
func sweep(t *testing.T, tx pgx.Tx, mark string, limit int32) (said string) {
	t.Helper()
	return sweepOf(t, tx, mark, limit, []string{}, false)
}

// sweepOf is a sweep of sources, or of all others.
func sweepOf(t *testing.T, tx pgx.Tx, mark string, limit int32, sources []string, these bool) (said string) {
	t.Helper()
	var read, removed, overdue int64
	var last, kept, from *time.Time
	if mark != "" {
		if err := tx.QueryRow(t.Context(), "select processed_at from holdfast.inbox where consumer || source || event_id = $1", mark).Scan(&from); err != nil {
			t.Fatal(err)
		}
	}
	names := map[int64]string{}
	named, err := tx.Query(t.Context(), "select consumer || source || event_id, processed_at from holdfast.inbox where processed_at is not null")
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var at time.Time
	if _, err := pgx.ForEachRow(named, []any{&name, &at}, func() error { names[at.UnixMicro()] = name; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), sqlschema.In("", sweepSQL), "b", from, 30*second, limit, sources, these).Scan(&read, &removed, &last, &kept, &overdue); err != nil {
		t.Fatal(err)
	}
	said = fmt.Sprintf("%d read, %d removed", read, removed)
	if last != nil {
		said += ", the last " + names[last.UnixMicro()]
	}
	if kept != nil {
		said += ", kept " + names[kept.UnixMicro()]
	}
	return said
}

// What is old enough, below the position and without an open letter goes, of its own consumer.
func TestNeighbours_RetentionRemovesWhatMayGoOfItsConsumer(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	change := func(set string) string { return "update holdfast.inbox set " + set + " where " + ours }
	dead := change("result = 'dead'")
	const withoutOurs = "-baa -bab -bac -bba -bbc -bca -bcb -bcc"
	for name, c := range map[string]struct {
		before     []string
		mark       string
		limit      int32
		gone, said string
	}{
		"all are old":                  {nil, "", 100, gone, "9 read, 9 removed, the last bcc"},
		"from a mark on":               {nil, "bbb", 100, "-bbb -bbc -bca -bcb -bcc", "5 read, 5 removed, the last bcc"},
		"some":                         {nil, "", 4, "-baa -bab -bac -bba", "4 read, 4 removed, the last bba"},
		"ours is as old as the window": {[]string{change("processed_at = now() - interval '30 seconds'")}, "", 100, withoutOurs, "8 read, 8 removed, the last bcc"},
		"ours is a little older":       {[]string{change("processed_at = now() - interval '30.000001 seconds'")}, "", 100, gone, "9 read, 9 removed, the last bbb"},
		"ours is at the position":      {[]string{change(`"offset" = 50`)}, "", 100, withoutOurs, "9 read, 8 removed, the last bcc, kept bbb"},
		"ours is above the position":   {[]string{change(`"offset" = 51`)}, "", 100, withoutOurs, "9 read, 8 removed, the last bcc, kept bbb"},
		"ours is of no partition":      {[]string{change(`partition = null, "offset" = null`)}, "", 100, gone, "9 read, 9 removed, the last bcc"},
		"there is no position":         {[]string{"delete from holdfast.consumer_position where (consumer, topic, partition) = ('b', 'b', 5)"}, "", 100, "", "9 read, 0 removed, the last bcc, kept baa"},
		"ours is dead":                 {[]string{dead}, "", 100, gone, "9 read, 9 removed, the last bcc"},
		"its letter is open":           {[]string{dead, fmt.Sprintf(theLetters, "open", ours)}, "", 100, withoutOurs, "9 read, 8 removed, the last bcc, kept bbb"},
		"its letter is replayed now":   {[]string{dead, fmt.Sprintf(theLetters, "replaying", ours)}, "", 100, withoutOurs, "9 read, 8 removed, the last bcc, kept bbb"},
		"its letter was replayed":      {[]string{dead, fmt.Sprintf(theLetters, "replayed", ours)}, "", 100, gone, "9 read, 9 removed, the last bcc"},
		"its letter was discarded":     {[]string{dead, fmt.Sprintf(theLetters, "discarded", ours)}, "", 100, gone, "9 read, 9 removed, the last bcc"},
		"others' letters are open":     {[]string{dead, fmt.Sprintf(theLetters, "open", "not "+ours)}, "", 100, gone, "9 read, 9 removed, the last bcc"},
		"a letter of a conflict":       {[]string{fmt.Sprintf(theLetters, "open", ours)}, "", 100, gone, "9 read, 9 removed, the last bcc"},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			for _, sql := range append([]string{theEvents, otherPositions, ourPosition}, c.before...) {
				pgtest.Exec(t, tx, sql)
			}
			var said string
			changed := strings.Join(effect.Changed(t, tx, eventRows, func() { said = sweep(t, tx, c.mark, c.limit) }), " ")
			if changed != c.gone || said != c.said {
				t.Errorf("%s: %s: %s, want %s: %s", name, said, changed, c.said, c.gone)
			}
		})
	}
	// A source with a retention of its own is not swept with the others, nor others with it.
	for _, c := range []struct {
		sources    []string
		these      bool
		before     []string
		gone, said string
	}{
		{[]string{"b"}, true, nil, "-bba -bbb -bbc", "9 read, 3 removed, the last bcc"},
		{[]string{"b"}, false, nil, "-baa -bab -bac -bca -bcb -bcc", "9 read, 6 removed, the last bcc"},
		{[]string{"a", "c"}, false, nil, "-bba -bbb -bbc", "9 read, 3 removed, the last bcc"},
		{[]string{"d"}, true, nil, "", "9 read, 0 removed, the last bcc"},
		{[]string{"b"}, true, []string{change(`"offset" = 50`)}, "-bba -bbc", "9 read, 2 removed, the last bcc, kept bbb"},
		{[]string{"b"}, false, []string{change(`"offset" = 50`)}, "-baa -bab -bac -bca -bcb -bcc", "9 read, 6 removed, the last bcc"},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			for _, sql := range append([]string{theEvents, otherPositions, ourPosition}, c.before...) {
				pgtest.Exec(t, tx, sql)
			}
			var said string
			changed := strings.Join(effect.Changed(t, tx, eventRows, func() { said = sweepOf(t, tx, "", 100, c.sources, c.these) }), " ")
			if changed != c.gone || said != c.said {
				t.Errorf("%v, %v: %s: %s, want %s: %s", c.sources, c.these, said, changed, c.said, c.gone)
			}
		})
	}
	// An event that another transaction has is passed, as is one that is settled anew before the sweep comes to it.
	pgtest.Exec(t, db.Pool, theEvents)
	pgtest.Exec(t, db.Pool, ourPosition)
	effect.Undone(t, db, func(other pgx.Tx) {
		pgtest.Exec(t, other, "update holdfast.inbox set processed_at = now() where "+ours)
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, "set local lock_timeout = '1s'")
			if said := sweep(t, tx, "", 100); said != "9 read, 8 removed, the last bcc, kept bbb" {
				t.Errorf("another transaction has ours: %s", said)
			}
		})
	})
	effect.Undone(t, db, func(other pgx.Tx) {
		pgtest.Exec(t, other, "select pg_advisory_xact_lock(4711)")
		const come = "select d.place from due d"
		sql := sqlschema.In("", sweepSQL)
		if !strings.Contains(sql, come) {
			t.Fatalf("the sweep has no %q", come)
		}
		sql = strings.Replace(sql, come, come+", pg_advisory_xact_lock(4711)", 1)
		swept := effect.Blocked(t, db, sql, "b", nil, 30*second, int32(100), []string{}, false)
		pgtest.Exec(t, other, "update holdfast.inbox set processed_at = now() where "+ours)
		if err := other.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		swept()
	})
	if got := pgtest.Text(t, db.Pool, "select string_agg(source || event_id, ' ') from holdfast.inbox where consumer = 'b'"); got != "bb" {
		t.Errorf("ours was settled anew: left are %q", got)
	}
}

// A consumer has one row, takes its turn by that alone, when it is due or set by a wrong clock, and saves its mark there.
func TestNeighbours_AConsumerTakesAndSavesOnlyItsTurn(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const others = "insert into holdfast.retention (consumer, from_at, kept_at, next_at) select c, now(), now(), %s from unnest('{a,c}'::text[]) c"
	const turns = "select consumer, r::text from holdfast.retention r"
	for next, c := range map[string]struct{ ours, others bool }{
		"now() - interval '1 microsecond'":           {true, true},
		"now()":                                      {true, true},
		"now() + interval '1 microsecond'":           {false, false},
		"now() + interval '2 minutes'":               {false, false},
		"now() + interval '2 minutes 1 microsecond'": {true, true},
	} {
		for _, otherNext := range []string{"now() - interval '1 hour'", "now() + interval '1 minute'", "now() + interval '1 hour'"} {
			effect.Undone(t, db, func(tx pgx.Tx) {
				pgtest.Exec(t, tx, fmt.Sprintf(others, otherNext))
				pgtest.Exec(t, tx, "insert into holdfast.retention (consumer, next_at) values ('b', "+next+")")
				want := ""
				if c.ours {
					want = "<nil> <nil> map[]"
				}
				if got := effect.Returned(t, tx, sqlschema.In("", takeSQL), "b", 60*second); got != want {
					t.Errorf("due at %s, others at %s: the turn is %q, want %q", next, otherNext, got, want)
				}
			})
		}
	}
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, fmt.Sprintf(others, "now()"))
		for call, want := range []string{"+b", ""} {
			changed := strings.Join(effect.Changed(t, tx, turns, func() { pgtest.Exec(t, tx, sqlschema.In("", rowSQL), "b") }), " ")
			if changed != want {
				t.Errorf("call %d makes the rows %q, want %q", call, changed, want)
			}
		}
		changed := strings.Join(effect.Changed(t, tx, turns, func() {
			pgtest.Exec(t, tx, sqlschema.In("", saveSQL), "b", time.Now(), time.Now(), second, `{"b": "2026-01-31T00:00:00Z"}`)
		}), " ")
		if changed != "b" {
			t.Errorf("saved are %q", changed)
		}
	})
}

// Counts of starts are removed that are older than asked for, of one consumer, unless another transaction counts.
func TestNeighbours_OldStartsOfOneConsumerAreForgotten(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const starts = `insert into holdfast.start (consumer, source, event_id, starts, last_at)
		select c, 's', e, 1, now() - case e when 'old' then interval '60.000001 seconds' when 'taken' then interval '1 hour' else interval '1 minute' end
		  from unnest('{a,b,c}'::text[]) c, unnest('{old,taken,young}'::text[]) e`
	forgotten := func(tx pgx.Tx) string {
		return strings.Join(effect.Changed(t, tx, "select concat(consumer, ' ', event_id), s::text from holdfast.start s", func() {
			pgtest.Exec(t, tx, sqlschema.In("", startsSQL), "b", 60*second)
		}), ", ")
	}
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, starts)
		if got := forgotten(tx); got != "-b old, -b taken" {
			t.Errorf("forgotten are %s", got)
		}
	})
	pgtest.Exec(t, db.Pool, starts)
	pgtest.Exec(t, db.Pool, "delete from holdfast.start where event_id = 'young'")
	effect.Undone(t, db, func(other pgx.Tx) {
		pgtest.Exec(t, other, "select from holdfast.start where event_id = 'taken' for update")
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, "set local lock_timeout = '1s'")
			if got := forgotten(tx); got != "-b old" {
				t.Errorf("another transaction counts one: forgotten are %s", got)
			}
		})
	})
}

// With an event's row go its steps, and no other's: neither those of an event that stays, nor those of its like of other consumers.
func TestNeighbours_StepsGoWithTheRowOfTheirEvent(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for name, c := range map[string]struct {
		before string
		limit  int32
		gone   string
	}{
		"all are old":              {"", 100, "baa bab bac bba bbb bbc bca bcb bcc"},
		"some":                     {"", 4, "baa bab bac bba"},
		"ours is young":            {"update holdfast.inbox set processed_at = now() where " + ours, 100, "baa bab bac bba bbc bca bcb bcc"},
		"ours waits":               {"update holdfast.inbox set processed_at = null, result = 'stored' where " + ours, 100, "baa bab bac bba bbc bca bcb bcc"},
		"ours is above":            {`update holdfast.inbox set "offset" = 50 where ` + ours, 100, "baa bab bac bba bbc bca bcb bcc"},
		"ours is dead":             {"update holdfast.inbox set result = 'dead' where " + ours + "; " + fmt.Sprintf(theLetters, "open", ours), 100, "baa bab bac bba bbc bca bcb bcc"},
		"ours is dead and closed":  {"update holdfast.inbox set result = 'dead' where " + ours + "; " + fmt.Sprintf(theLetters, "replayed", ours), 100, "baa bab bac bba bbb bbc bca bcb bcc"},
		"ours waits as another":    {fmt.Sprintf(theWaiting, ours), 100, "baa bab bac bba bbc bca bcb bcc"},
		"others wait":              {fmt.Sprintf(theWaiting, "consumer <> 'b'"), 100, "baa bab bac bba bbb bbc bca bcb bcc"},
		"ours is dead as another":  {fmt.Sprintf(theLetters, "open", ours), 100, "baa bab bac bba bbc bca bcb bcc"},
		"ours is replayed now":     {fmt.Sprintf(theLetters, "replaying", ours), 100, "baa bab bac bba bbc bca bcb bcc"},
		"ours was":                 {fmt.Sprintf(theLetters, "replayed", ours), 100, "baa bab bac bba bbb bbc bca bcb bcc"},
		"others are dead":          {fmt.Sprintf(theLetters, "open", "consumer <> 'b'"), 100, "baa bab bac bba bbb bbc bca bcb bcc"},
		"of ours only the row is":  {"delete from holdfast.inbox_step where " + ours, 100, "baa bab bac bba bbc bca bcb bcc"},
		"of ours only the step is": {"delete from holdfast.inbox where " + ours, 100, "baa bab bac bba bbc bca bcb bcc"},
		"the consumer has none":    {"delete from holdfast.inbox_step where consumer = 'b'", 100, ""},
		"others have none":         {"delete from holdfast.inbox_step where consumer <> 'b'", 100, "baa bab bac bba bbb bbc bca bcb bcc"},
		"ours alone has":           {"delete from holdfast.inbox_step where not " + ours, 100, "bbb"},
		"its steps are of today":   {"update holdfast.inbox_step set done_at = now(), hash = 'edited' where " + ours, 100, "baa bab bac bba bbb bbc bca bcb bcc"},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			for _, sql := range []string{theEvents, otherPositions, ourPosition, theSteps} {
				pgtest.Exec(t, tx, sql)
			}
			if c.before != "" {
				if _, err := tx.Exec(t.Context(), c.before, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatal(err)
				}
			}
			var want []string
			for _, event := range strings.Fields(c.gone) {
				want = append(want, "-"+event+"1", "-"+event+"2")
			}
			changed := effect.Changed(t, tx, stepRows, func() { sweep(t, tx, "", c.limit) })
			if !slices.Equal(changed, want) {
				t.Errorf("%s: %s, want %s", name, changed, want)
			}
		})
	}
}

// Steps of an event without a row are forgotten when they are older than asked for, of one consumer.
func TestNeighbours_OldStepsWithoutARowAreForgotten(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const steps = `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at)
		select c, s, e, '', n, '', '1', now() - case e when 'young' then interval '60 seconds' else interval '60.000001 seconds' end
		  from unnest('{a,b,c}'::text[]) c, unnest('{s,s2}'::text[]) s, unnest('{old,young}'::text[]) e, unnest('{1,2}'::text[]) n`
	const all, others = "-b s old 1, -b s old 2, -b s2 old 1, -b s2 old 2", "-b s2 old 1, -b s2 old 2"
	row := func(event string) string {
		return "insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) values (" + event + ", 'o', '', 'stored')"
	}
	waits := func(event string) string {
		return "insert into holdfast.stored (consumer, source, event_id, topic, key, place, type, time, hash, next_at) values (" + event + ", 'o', 'k', 1, 't', now(), '', now())"
	}
	letter := func(event, state string) string {
		return "insert into holdfast.letter (consumer, source, event_id, origin, reason, state, type, topic, key, time, hash) values (" + event + ", 'inbox', 'r', '" + state + "', 't', 'o', 'k', now(), '')"
	}
	const ours, anothers, elsewhere, later = "'b', 's', 'old'", "'a', 's', 'old'", "'b', 's3', 'old'", "'b', 's', 'new'"
	for name, c := range map[string]struct {
		before string
		limit  int32
		want   string
	}{
		"all":                          {"", 100, all},
		"one":                          {"", 1, "-b s old 1"},
		"ours has a row":               {row(ours), 100, others},
		"another consumer's has":       {row(anothers), 100, all},
		"that of another source":       {row(elsewhere), 100, all},
		"another event":                {row(later), 100, all},
		"ours waits":                   {waits(ours), 100, others},
		"another consumer's waits":     {waits(anothers), 100, all},
		"that of another source waits": {waits(elsewhere), 100, all},
		"another event waits":          {waits(later), 100, all},
		"ours is dead":                 {letter(ours, "open"), 100, others},
		"ours is replayed now":         {letter(ours, "replaying"), 100, others},
		"ours was replayed":            {letter(ours, "replayed"), 100, all},
		"another consumer's is dead":   {letter(anothers, "open"), 100, all},
		"another event is dead":        {letter(later, "open"), 100, all},
		"it is a letter of the relay":  {strings.Replace(letter("'', 's', 'old'", "open"), "'inbox'", "'relay'", 1), 100, all},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, steps)
			if c.before != "" {
				pgtest.Exec(t, tx, c.before)
			}
			got := strings.Join(effect.Changed(t, tx, "select concat_ws(' ', consumer, source, event_id, name), s::text from holdfast.inbox_step s", func() {
				pgtest.Exec(t, tx, sqlschema.In("", stepsSQL), "b", 60*second, c.limit)
			}), ", ")
			if got != c.want && (c.limit != 1 || strings.Count(got, "old") != 1) {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
		})
	}
}
