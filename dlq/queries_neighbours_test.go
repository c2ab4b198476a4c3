package dlq

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The letters of these tests: ours is 2, of the consumer b. The one below is a's, the one above c's, and so are their events.
const threeLetters = `insert into holdfast.letter (id, origin, consumer, reason, event_id, source, type, topic, key, time, headers, payload, hash) overriding system value
	select n, 'inbox', c, 'r', c, c, 't', c, c, now(), '{}', 'x', '' from unnest('{a,b,c}'::text[]) with ordinality l (c, n)`

const theLetters = "select l.id::text, l::text from holdfast.letter l"

// What is asked about a letter is answered by its own row.
func TestQueriesNeighbours_ALetterIsReadByItsNumber(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const ours, others = "update holdfast.letter set %s where id = 2", "update holdfast.letter set %s where id <> 2"
	const leftOut, noObject = `payload = null, headers = '{"hf_value_left_out": "300"}'`, "headers = '[]'"
	for name, c := range map[string]struct{ before, statement, want string }{
		"the address":                        {"select", readAddress, "inbox b b b"},
		"the state":                          {fmt.Sprintf(others, "state = 'replayed'"), takeLetter, "open"},
		"it is whole, the others are not":    {fmt.Sprintf(others, leftOut), wholeLetter, "2"},
		"the others are whole, it is not":    {fmt.Sprintf(ours, leftOut), wholeLetter, ""},
		"it can be sent, the others cannot":  {fmt.Sprintf(others, noObject), readUnfit, "<nil>"},
		"the others can be sent, it cannot":  {fmt.Sprintf(ours, noObject), readUnfit, "its headers are a JSON array: set the column headers of letter to an object of strings by SQL, or discard it"},
		"what others did to its neighbours":  {"insert into holdfast.letter_action (letter, action, by, reason) values (1, 'edit', 'ann', ''), (3, 'edit', 'ann', '')", listActions, ""},
		"a replay of another kind of letter": {"select", replayLetter, ""},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, threeLetters+";"+c.before)
			if got := effect.Returned(t, tx, sqlschema.In("", c.statement), int64(2)); got != c.want {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
		})
	}
}

// Up to here the event of a relay's letter can be sent, and from there on it cannot.
func TestQueriesNeighbours_TheLimitsOfWhatCanBeSentAreExact(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, threeLetters+";alter table holdfast.letter alter column headers set storage external") // so that its size is known
		for name, c := range map[string]struct{ set, want string }{
			"the largest headers": {headersOf(t, tx, 524288), ""},
			"a byte more":         {headersOf(t, tx, 524289), "its headers have 524289 bytes"},
			"the largest payload": {"headers = null, payload = convert_to(repeat('x', 67108864), 'UTF8')", ""},
		} {
			pgtest.Exec(t, tx, "update holdfast.letter set "+c.set+" where id = 2")
			if got := pgtest.Text(t, tx, sqlschema.In("", readUnfit), int64(2)); !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("%s: it says %q, want %q", name, got, c.want)
			}
		}
	})
}

// headersOf sets a letter's headers so that they have that many bytes as they are stored.
func headersOf(t *testing.T, tx pgx.Tx, bytes int64) string {
	t.Helper()
	const set = `headers = jsonb_build_object('a', repeat('x', %d))`
	pgtest.Exec(t, tx, "update holdfast.letter set "+fmt.Sprintf(set, bytes)+" where id = 2")
	more := pgtest.Count(t, tx, "select pg_column_size(headers) from holdfast.letter where id = 2") - bytes
	return fmt.Sprintf(set, bytes-more)
}

// A letter that is marked or closed is ours, and it is open or being replayed.
func TestQueriesNeighbours_OnlyAnOpenLetterIsMarkedOrClosed(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for state, want := range map[string]string{"open": "2", "replaying": "2", "replayed": "", "discarded": ""} {
		for statement, args := range map[string][]any{markLetter: {int64(2), "open"}, closeLetter: {int64(2)}} {
			effect.Undone(t, db, func(tx pgx.Tx) {
				pgtest.Exec(t, tx, threeLetters)
				pgtest.Exec(t, tx, "update holdfast.letter set state = $1, last_at = last_at - interval '1 hour'", state)
				var n int64
				changed := effect.Changed(t, tx, theLetters, func() { n = pgtest.Exec(t, tx, sqlschema.In("", statement), args...) })
				if state == "open" && statement == markLetter {
					changed = []string{"2"} // it is open already
				}
				if got := strings.Join(changed, " "); got != want || n != int64(len(want)) {
					t.Errorf("%.20s of one that is %s: changed are %q, %d rows", statement, state, got, n)
				}
			})
		}
	}
}

// Only an open letter of the relay is replayed through the log.
func TestQueriesNeighbours_OnlyAnOpenLetterOfTheRelayGoesIntoTheLog(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for state, want := range map[string]int64{"open": 1, "replaying": 0, "replayed": 0, "discarded": 0} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, threeLetters)
			pgtest.Exec(t, tx, "update holdfast.letter set origin = 'relay', consumer = '', state = case id when 2 then $1 else 'open' end", state)
			n := pgtest.Exec(t, tx, sqlschema.In("", replayLetter), int64(2))
			if got := pgtest.Text(t, tx, "select string_agg(letter::text, ' ') from holdfast.event"); n != want || got != strings.Repeat("2", int(want)) {
				t.Errorf("one that is %s: %d rows, and in the log is %q, want %d", state, n, got, want)
			}
		})
	}
}

// An unfinished replay is ended under its name, and, if that is asked, only the one of that number.
func TestQueriesNeighbours_AReplayIsEndedByItsNameAndNumber(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for number, want := range map[int64]string{0: "2", 1: "", 2: "2", 3: ""} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, `insert into holdfast.letter_replay (id, name, filter, upto, by, reason, ended_at) overriding system value values
				(1, 'a', '{}', 9, 'ann', '', null), (2, 'b', '{}', 9, 'ann', '', null), (3, 'c', '{}', 9, 'ann', '', null), (4, 'b', '{}', 9, 'ann', '', now() - interval '1 day')`)
			changed := effect.Changed(t, tx, "select r.id::text, r::text from holdfast.letter_replay r", func() {
				pgtest.Exec(t, tx, sqlschema.In("", endReplay), "b", number)
			})
			if got := strings.Join(changed, " "); got != want {
				t.Errorf("the number %d: ended are %q, want %q", number, got, want)
			}
		})
	}
}

// A look ahead at a purge counts closed letters that are older than its age.
func TestQueriesNeighbours_APurgeWillRemoveWhatIsClosedAndOld(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, threeLetters+"; delete from holdfast.letter where id <> 2")
		for state, closed := range map[string]bool{"open": false, "replaying": false, "replayed": true, "discarded": true} {
			for at, old := range map[string]bool{"5000000 microseconds": false, "4999999 microseconds": false, "5000001 microseconds": true} {
				pgtest.Exec(t, tx, "update holdfast.letter set state = $1, last_at = now() - $2::text::interval", state, at)
				if got := pgtest.Count(t, tx, sqlschema.In("", countPurge), int64(5000000)) == 1; got != (closed && old) {
					t.Errorf("one that is %s since %s: counted %t", state, at, got)
				}
			}
		}
	})
}

// The replay of a letter is taken out of its queue, and neither another event nor another letter's replay, nor what a handler has.
func TestQueriesNeighbours_AWaitingReplayIsTakenOutOfItsQueue(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for name, c := range map[string]struct{ change, want string }{
		"it waits":                       {"letter = 2", "-bbb"},
		"it was handled until now":       {"lease_until = now()", "-bbb"},
		"its handler runs":               {"lease_until = now() + interval '1 microsecond'", ""},
		"the event itself waits":         {"letter = null", ""},
		"the replay of an earlier one":   {"letter = 1", ""},
		"the replay of a later letter":   {"letter = 3", ""},
		"it is made due by another user": {"next_at = now()", "-bbb"},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			// Those beside ours are of other consumers, other sources or other events.
			pgtest.Exec(t, tx, threeLetters+`; insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, letter)
				select c, 'b', 'b', row_number() over (), s, e, 't', now(), '', 'infinity', 2 from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) s, unnest('{a,b,c}'::text[]) e`)
			pgtest.Exec(t, tx, "update holdfast.stored set "+c.change+" where (consumer, source, event_id) = ('b', 'b', 'b')")
			changed := effect.Changed(t, tx, "select s.consumer || s.source || s.event_id, s::text from holdfast.stored s", func() {
				pgtest.Exec(t, tx, sqlschema.In("", unstoreLetter), int64(2))
			})
			if got := strings.Join(changed, " "); got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		})
	}
}

// A walk visits open letters up to its bound, without those that its own replay has moved.
func TestQueriesNeighbours_AWalkPassesOverWhatItsReplayHasMoved(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, `insert into holdfast.letter (id, origin, consumer, state, reason, event_id, source, type, topic, key, time, hash) overriding system value
			select n, 'inbox', 'c', s, 'r', n, 's', 't', 'o', 'k', now(), '' from unnest('{open,replaying,open,replayed,discarded,open,open}'::text[]) with ordinality l (s, n);
			insert into holdfast.letter_action (letter, action, by, reason, replay) values (1, 'replay', 'ann', '', 4), (3, 'replay', 'ann', '', 5), (6, 'replay', 'ann', '', 6), (7, 'replay', 'ann', '', null)`)
		for _, c := range []struct {
			scope
			want string
		}{
			{scope{0, 0}, "1 3 6 7"}, {scope{7, 0}, "1 3 6 7"}, {scope{6, 0}, "1 3 6"}, {scope{3, 0}, "1 3"}, {scope{2, 0}, "1"},
			{scope{0, 3}, "1 3 6 7"}, {scope{0, 4}, "3 6 7"}, {scope{0, 5}, "1 6 7"}, {scope{0, 6}, "1 3 7"}, {scope{6, 5}, "1 6"},
		} {
			args := c.args(Filter{}, 100)
			visited := pgtest.Text(t, tx, "select string_agg(id::text, ' ' order by id) from ("+sqlschema.In("", walkLetters)+") l", args...)
			if n := pgtest.Count(t, tx, sqlschema.In("", countLetters), args...); visited != c.want || int(n) != len(strings.Fields(c.want)) {
				t.Errorf("%+v: visited are %s, counted %d, want %s", c.scope, visited, n, c.want)
			}
		}
	})
}

// A page has what Go can hold of a letter, and what was asked for.
func TestQueriesNeighbours_APageHasWhatWasAskedForOfALetter(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, threeLetters+";alter table holdfast.letter alter column headers set storage external")
		if got := pageOf(t, tx, true, "payload is not null") + ", " + pageOf(t, tx, false, "payload is null"); got != "true true, true true" {
			t.Errorf("with payloads, and without: %s", got)
		}
		pgtest.Exec(t, tx, "update holdfast.letter set time = '0001-01-01 00:00:00+00'")
		if got := pageOf(t, tx, true, "at is not null and malformed = '{}'"); got != "true true" {
			t.Errorf("the first time that Go can hold is there: %s", got)
		}
		pgtest.Exec(t, tx, "update holdfast.letter set "+headersOf(t, tx, 1048576)+" where id = 2")
		if got := pageOf(t, tx, true, "headers is not null and malformed = '{}'"); got != "true true" {
			t.Errorf("the largest headers are there: %s", got)
		}
		// The headers count for what a page has: with them this one is full after the first letter, and with a byte less of the payload it is not.
		const fill = "update holdfast.letter set payload = convert_to(repeat('x', 33554432 - 1048576 - 4 - %d), 'UTF8') where id = 2"
		for less, want := range map[int]string{0: "2", 1: "2 3"} {
			pgtest.Exec(t, tx, fmt.Sprintf(fill, less))
			if got := pageOf(t, tx, true, "id"); got != want {
				t.Errorf("with %d bytes less: the page has %s, want %s", less, got, want)
			}
		}
	})
}

// pageOf lists the letters 2 and 3, and of each what is asked of its columns.
func pageOf(t *testing.T, tx pgx.Tx, payloads bool, of string) string {
	t.Helper()
	args := append(Filter{IDs: []int64{2, 3}}.stateArgs(), int32(100), payloads)
	const columns = "id, origin, consumer, reason, fingerprint, state, holds, event_id, source, type, topic, key, at, headers, payload, size, version, partition, o, attempts, errors, first_at, last_at, malformed"
	return pgtest.Text(t, tx, "select string_agg(("+of+")::text, ' ' order by id) from ("+sqlschema.In("", listLetters)+") l ("+columns+")", args...)
}

// The largest payload that Go reads is there and fills its page, and a larger one is left out, so that the page goes on.
func TestQueriesNeighbours_TheLargestPayloadFillsItsPage(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, threeLetters)
		for size, want := range map[int]string{268435456: "2 t {}", 268435457: "2 f {\"payload has 268435457 bytes: read it by SQL from the column payload of letter\"} 3 t {}"} {
			pgtest.Exec(t, tx, fmt.Sprintf("update holdfast.letter set payload = convert_to(repeat('x', %d), 'UTF8') where id = 2", size))
			if got := pageOf(t, tx, true, "concat(id, ' ', payload is not null, ' ', malformed)"); got != want {
				t.Errorf("of %d bytes: the page has %s, want %s", size, got, want)
			}
		}
	})
}

// theResults are rows of the inbox: that of our event, and those of other consumers, other sources and other events.
const theResults = `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
	select c, s, e, 'b', '\x11', now(), 'handled' from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) s, unnest('{a,b,c}'::text[]) e`

const resultRows = "select i.consumer || i.source || i.event_id, i::text from holdfast.inbox i"

// An event is reopened that was handled or skipped with this payload, whatever became of others.
func TestQueriesNeighbours_AnEventIsReopenedByItsOwnRow(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const ours, others = "update holdfast.inbox set %s where (consumer, source, event_id) = ('b', 'b', 'b')", "update holdfast.inbox set %s where (consumer, source, event_id) <> ('b', 'b', 'b')"
	for name, c := range map[string]struct{ before, says, changed string }{
		"it was handled, as the others were": {"select", "handled true", "bbb"},
		"it was skipped":                     {fmt.Sprintf(ours, "result = 'skipped'"), "skipped true", "bbb"},
		"the others are dead letters":        {fmt.Sprintf(others, "result = 'dead'"), "handled true", "bbb"},
		"it is a dead letter, unlike others": {fmt.Sprintf(ours, "result = 'dead'"), "dead true", ""},
		"it has an earlier hash than asked":  {fmt.Sprintf(ours, `hash = '\x10'`), "handled false", ""},
		"it has a later hash than asked":     {fmt.Sprintf(ours, `hash = '\x13'`), "handled false", ""},
		"its hash is that of the payload":    {fmt.Sprintf(ours, `hash = '\x12'`), "handled true", "bbb"},
		"the others have other payloads":     {fmt.Sprintf(others, `hash = '\x13'`), "handled true", "bbb"},
		"it never came, though others did":   {"delete from holdfast.inbox where (consumer, source, event_id) = ('b', 'b', 'b')", "<nil> <nil>", ""},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, theResults+";"+c.before)
			var says string
			changed := effect.Changed(t, tx, resultRows, func() {
				says = effect.Returned(t, tx, sqlschema.In("", reopenEvent), "b", "b", "b", "t", "b", "b", nil, nil, []byte("x"), []byte{0x11}, []byte{0x12}, "r", "ann", "why")
			})
			letter, says, _ := strings.Cut(says, " ")
			if got := strings.Join(changed, " "); got != c.changed || says != c.says || (letter != "<nil>") != (c.changed != "") {
				t.Errorf("%s: reopened are %q, and it says %s, want %q and %s", name, got, says, c.changed, c.says)
			}
		})
	}
}

// The row of an event gets the hash of its letter's new payload if it had that of the old one, and was not handled.
func TestQueriesNeighbours_AnEditChangesTheRowOfItsPayload(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for name, c := range map[string]struct{ row, want string }{
		"its row":            {"result = 'dead'", "bbb"},
		"it was discarded":   {"result = 'discarded'", "bbb"},
		"it was handled":     {"result = 'handled'", ""},
		"an earlier payload": {`result = 'dead', hash = '\x10'`, ""},
		"a later payload":    {`result = 'dead', hash = '\x12'`, ""},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, threeLetters+";"+theResults+`; update holdfast.letter set hash = '\x11'; update holdfast.inbox set `+c.row)
			changed := effect.Changed(t, tx, resultRows, func() { pgtest.Exec(t, tx, sqlschema.In("", editResult), int64(2), []byte("new")) })
			if got := strings.Join(changed, " "); got != c.want {
				t.Errorf("%s: changed are %q, want %q", name, got, c.want)
			}
		})
	}
}
