package relay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The log of these tests has events of each of the lanes 1 to 3, in each of the transactions 98 to 122: three, and of some up to six. Their ids say lane,
// transaction and number; their keys are of the tenant noisy, of the tenant calm, or of none. The order of their seqs is not that of their
// transactions. The window is that of the lane 2 from done to upto: two transactions that were in flight at done have ended since (103 and 107),
// one has not (105), and of those that began since one has not ended (115).
const (
	windowDone  = "103:110:103,105,107"
	windowUpto  = "105:120:105,115"
	inTheWindow = "(xid::text::int in (103, 107) or xid::text::int between 110 and 119 and xid::text::int <> 115)"
	loggedRows  = `insert into holdfast.event_1 (xid, seq, lane, id, type, topic, key)
		select x::text::xid8, n * 100 + x * 7 % 22, l, concat_ws('-', l, x, n), 't', 'orders', coalesce((array['noisy/k', 'calm/k', 'plain'])[n], 'calm/k')
		  from generate_series(1, 3) l, generate_series(98, 122) x, generate_series(1, 6) n
		 where n <= case x when 112 then 6 when 118 then 5 when 103 then 4 else 3 end`
	// Of a transaction that has none in the lane 2.
	strangers = "insert into holdfast.event_1 (xid, seq, lane, id, type, topic) select '113', 999, l, 'stranger', 't', 'orders' from unnest('{1,3}'::int[]) l"
)

// question is what a reader of the log asks.
type question struct {
	done, upto string // "": it opens a window
	pos        int64
	token      string
	bytes      int64
}

func ofTheWindow(token string) question {
	return question{done: windowDone, upto: windowUpto, token: token, bytes: 1 << 20}
}

// orNull is null for "".
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

const pageWords = "with p (seq, id, source, type, topic, key, time, headers, payload, letter, bytes, malformed, size) as (%s) select case when seq = 0 then source else id end from p"

// pageReaders are the statements that read pages. Their answers are the state of the reader, and the ids of its events.
var pageReaders = map[string]func(t *testing.T, tx pgx.Tx, q question) string{
	"page": func(t *testing.T, tx pgx.Tx, q question) string {
		t.Helper()
		return wordsOf(t, tx, fmt.Sprintf(pageWords, sqlschema.In("", readPage)), 2, q.done, orNull(q.upto), q.pos, 1000, q.token, q.bytes)
	},
	"page of counted bytes": func(t *testing.T, tx pgx.Tx, q question) string {
		t.Helper()
		return wordsOf(t, tx, fmt.Sprintf(pageWords, sqlschema.In("", readSizedPage)), 2, q.done, orNull(q.upto), q.pos, 1000, q.token, q.bytes)
	},
	"page without noisy tenants": func(t *testing.T, tx pgx.Tx, q question) string {
		t.Helper()
		return wordsOf(t, tx, fmt.Sprintf(pageWords, sqlschema.In("", readQuietPage)), 2, q.done, orNull(q.upto), q.pos, 1000, q.token, q.bytes, "/", []string{"nobody"}, nil, nil)
	},
}

// plannedPage asks for the events of places, and of big transactions, in both ways.
func plannedPage(t *testing.T, tx pgx.Tx, q question, xids, seqs []int64, big []string) string {
	t.Helper()
	small, sized := plannedBy(t, tx, readPlanned, q, xids, seqs, big), plannedBy(t, tx, readSizedPlanned, q, xids, seqs, big)
	if small != sized {
		t.Errorf("a planned page of small rows:\n%s, of counted bytes:\n%s", small, sized)
	}
	return sized
}

func plannedBy(t *testing.T, tx pgx.Tx, statement string, q question, xids, seqs []int64, big []string) string {
	t.Helper()
	return wordsOf(t, tx, fmt.Sprintf(pageWords, sqlschema.In("", statement)), 2, xids, q.upto, q.pos, 1000, q.token, big, seqs, q.bytes)
}

// idsOf are those of the lane 2 where a condition holds, in the order of seq.
func idsOf(t *testing.T, tx pgx.Tx, where string, args ...any) string {
	t.Helper()
	return wordsOf(t, tx, "select id from holdfast.event where lane = 2 and "+where+" order by seq", args...)
}

func placeOf(t *testing.T, tx pgx.Tx, id string) (seq int64) {
	t.Helper()
	return pgtest.Count(t, tx, "select seq from holdfast.event where id = $1", id)
}

// logged begins with the log that these tests have.
func logged(t *testing.T, db *pgtest.DB, options pgx.TxOptions, f func(tx pgx.Tx)) {
	t.Helper()
	effect.UndoneAs(t, db, options, func(tx pgx.Tx) {
		t.Helper()
		pgtest.Exec(t, tx, loggedRows)
		pgtest.Exec(t, tx, strangers)
		f(tx)
	})
}

// placesIn are where the reader of a window may stand: before it, and at events of it, of one that was in flight at done too.
func placesIn(t *testing.T, tx pgx.Tx) []int64 {
	t.Helper()
	return []int64{0, placeOf(t, tx, "2-112-2"), placeOf(t, tx, "2-103-2"), placeOf(t, tx, "2-110-2")}
}

// A page has the events of its lane and window that come after its place, and no others.
func TestLogNeighbours_APageHasTheEventsOfItsWindow(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	for name, read := range pageReaders {
		logged(t, db, pgx.TxOptions{}, func(tx pgx.Tx) {
			for _, pos := range placesIn(t, tx) {
				q := ofTheWindow(token)
				q.pos = pos
				if got, want := read(t, tx, q), "ok "+idsOf(t, tx, "seq > $1 and "+inTheWindow, pos); got != want {
					t.Errorf("%s, after %d:\n%s, want\n%s", name, pos, got, want)
				}
				q.upto = ""
				if got, want := read(t, tx, q), "ok "+idsOf(t, tx, "seq > $1 and (xid::text::int in (103, 105, 107) or xid::text::int >= 110)", pos); got != want {
					t.Errorf("%s, after %d, of a window that opens:\n%s, want\n%s", name, pos, got, want)
				}
			}
		})
	}
}

// A page ends with the first event with which it has as many bytes as it may have.
func TestLogNeighbours_APageEndsWithItsBytes(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	logged(t, db, pgx.TxOptions{}, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, "update holdfast.event_1 set id = 'i' || rpad(seq::text, 3, 'x'), source = 's', type = 't', topic = 'o', key = 'k', payload = 'four', headers = null")
		big := []string{"103", "107", "110", "111", "112", "113", "114", "116"}
		for name, read := range pageReaders {
			if name == "page" {
				continue // it counts none
			}
			for bytes, n := range map[int64]int{1: 1, 12: 1, 13: 2, 24: 2, 25: 3} {
				q := ofTheWindow(token)
				q.bytes = bytes
				if got := len(strings.Fields(read(t, tx, q))) - 1; got != n {
					t.Errorf("%s of %d bytes has %d events, want %d", name, bytes, got, n)
				}
				if got := len(strings.Fields(plannedBy(t, tx, readSizedPlanned, q, nil, nil, big))) - 1; got != n {
					t.Errorf("planned page of %d bytes has %d events, want %d", bytes, got, n)
				}
			}
		}
	})
}

// A page without the events of some tenants has all others of its window, also those without a tenant and with the tenant's name as their key.
func TestLogNeighbours_AQuietPageLeavesOutItsTenantsAndNoOthers(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	logged(t, db, pgx.TxOptions{}, func(tx pgx.Tx) {
		for _, c := range []struct {
			tenants []string
			handed  string // the end of a window that has been handed out up to the place 216
			want    string
		}{
			{[]string{"noisy"}, "", "key <> 'noisy/k'"},
			{[]string{"noisy", "plain"}, "", "key <> 'noisy/k'"},
			{[]string{"calm", ""}, "", "key = 'noisy/k'"},
			{[]string{"calm"}, "105:115:105,113", "key <> 'calm/k' and (seq > 216 or xid::text::int >= 115 or xid::text::int = 113)"},
		} {
			q := ofTheWindow(token)
			args := []any{2, q.done, q.upto, 0, 1000, q.token, q.bytes, "/", c.tenants, orNull(c.handed), 216}
			if got, want := wordsOf(t, tx, fmt.Sprintf(pageWords, sqlschema.In("", readQuietPage)), args...), "ok "+idsOf(t, tx, c.want+" and "+inTheWindow); got != want {
				t.Errorf("without %q:\n%s, want\n%s", c.tenants, got, want)
			}
		}
	})
}

// A planned page has the events of its places, each of one transaction and seq, and those of its big transactions that come after its place.
func TestLogNeighbours_APlannedPageHasWhatIsPlanned(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	logged(t, db, pgx.TxOptions{}, func(tx pgx.Tx) {
		big := []string{"101", "103", "106", "108", "111", "113", "116", "119"}
		q := ofTheWindow(token)
		for i, xid := range big {
			q.pos = placeOf(t, tx, "2-"+xid+"-2")
			if got, want := plannedPage(t, tx, q, nil, nil, big), "ok "+idsOf(t, tx, "seq > $1 and xid::text = any ($2)", q.pos, big); got != want {
				t.Errorf("after the place of the big one %d:\n%s, want\n%s", i, got, want)
			}
		}
		q.pos = 0
		seqs := []int64{placeOf(t, tx, "2-110-1"), placeOf(t, tx, "2-112-6")}
		if got := plannedPage(t, tx, q, []int64{110, 112}, seqs, []string{}); got != "ok 2-110-1 2-112-6" {
			t.Errorf("the places have %s", got)
		}
		// What is gone from its place is not replaced by what is beside it.
		seqs = []int64{999, placeOf(t, tx, "2-109-2"), placeOf(t, tx, "2-111-2"), placeOf(t, tx, "2-112-2") - 1, placeOf(t, tx, "2-112-2") + 1}
		if got := plannedPage(t, tx, q, []int64{113, 110, 110, 112, 112}, seqs, []string{}); got != "ok" {
			t.Errorf("places without events have %s", got)
		}
	})
}

// An event is sent whole up to each of the bounds, and what is larger without what is too large. The bounds are smaller here than they are: what
// the second of three events has, each of which is larger than the one before.
func TestLogNeighbours_AnEventOfTheLargestSizeIsSentWhole(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	const sizes = "with p (seq, id, source, type, topic, key, time, headers, payload, letter, bytes, malformed, size) as (%s) " +
		"select concat_ws('_', seq, octet_length(id), octet_length(source), octet_length(type), octet_length(topic), octet_length(key), octet_length(headers), octet_length(payload), malformed is not null) from p where seq > 0"
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, `insert into holdfast.event_1 (xid, seq, lane, id, source, type, topic, key, headers, payload)
			select '110', n, 2, repeat('i', 149 + n), repeat('s', 150), repeat('t', 150), repeat('o', 150), repeat('k', 150), jsonb_build_object('h', repeat('h', 290 + n)), repeat('p', 400 + n)::bytea
			  from generate_series(1, 3) n`)
		const whole, second = "1_150_150_150_150_150_300_401_f", " 2_151_150_150_150_150_301_402_f "
		for _, c := range []struct{ bound, is, third string }{
			{sqlschema.MaxTexts, "octet_length(id) + 600", "3_100_100_100_100_0_t"},
			{sqlschema.MaxPayload, "octet_length(payload)", "3_152_150_150_150_150_t"},
			{sqlschema.MaxStoredHeaders, "pg_column_size(headers)", "3_152_150_150_150_150_t"},
			{sqlschema.MaxHeaders, "octet_length(headers::text)", "3_152_150_150_150_150_t"},
		} {
			bound := fmt.Sprint(pgtest.Count(t, tx, "select "+c.is+" from holdfast.event where seq = 2"))
			for statement, args := range map[string][]any{
				readSizedPage:    {2, windowDone, windowUpto, 0, 1000, token, 1 << 20},
				readQuietPage:    {2, windowDone, windowUpto, 0, 1000, token, 1 << 20, "/", []string{"nobody"}, nil, nil},
				readSizedPlanned: {2, []int64{}, windowUpto, 0, 1000, token, []string{"110"}, []int64{}, 1 << 20},
			} {
				sql := fmt.Sprintf(sizes, strings.ReplaceAll(sqlschema.In("", statement), c.bound, bound))
				if got, want := wordsOf(t, tx, sql, args...), whole+second+c.third; got != want {
					t.Errorf("with %s of %s at most %.30s sends\n%s, want\n%s", bound, c.is, statement, got, want)
				}
			}
		}
	})
}

// A page of small rows sends a row of the largest size, and of one that is a byte larger nothing but that. Both ways say the same size.
func TestLogNeighbours_APageOfSmallRowsSendsNoOthers(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	const (
		size  = "octet_length(id || source || type || topic || key) + coalesce(octet_length(payload), 0) + coalesce(greatest(octet_length(headers::text), pg_column_size(headers)), 0)"
		said  = "concat_ws('_', seq, octet_length(id || source || type || topic || key), coalesce(octet_length(headers::text), 0), coalesce(octet_length(payload), 0), letter, "
		sizes = "with p (seq, id, source, type, topic, key, time, headers, payload, letter, bytes, malformed, size) as (%s) select " + said + "malformed is not null, size) from p where seq > 0"
	)
	effect.Undone(t, db, func(tx pgx.Tx) {
		for _, sets := range []string{
			"payload = repeat('p', 395 + seq::int)::bytea", "id = repeat('i', 395 + seq::int), payload = null", "source = repeat('s', 395 + seq::int)",
			"type = repeat('t', 395 + seq::int), letter = 7", "topic = repeat('o', 395 + seq::int)", "key = repeat('k', 395 + seq::int)",
			"headers = jsonb_build_object('h', repeat('h', 194 + seq::int))", "headers = jsonb_build_object('h', repeat('h', 194 + seq::int)), payload = null",
			"headers = jsonb_build_object('h', array_fill(1, array[100 + seq::int]))", // which takes more as it is stored
			"headers = jsonb_build_object('h', repeat('h', 6000 + seq::int))",         // which takes less
		} {
			pgtest.Exec(t, tx, "delete from holdfast.event")
			pgtest.Exec(t, tx, `insert into holdfast.event_1 (xid, seq, lane, id, source, type, topic, key, letter, payload)
				select '110', n, 2, 'i', 's', 't', 'o', 'k', 0, 'p' from generate_series(2, 3) n`)
			pgtest.Exec(t, tx, "update holdfast.event_1 set "+sets)
			bound := pgtest.Count(t, tx, "select "+size+" from holdfast.event where seq = 2")
			row := func(columns string, seq int) string {
				return pgtest.Text(t, tx, "select "+columns+" from holdfast.event where seq = $1", seq)
			}
			whole := said + "'f', " + size + ")"
			small := row(whole, 2) + " " + row("concat_ws('_', seq, 0, 0, 0, letter, 'f', "+size+")", 3)
			for statement, c := range map[string]struct {
				args []any
				want string
			}{
				readPage:         {[]any{2, windowDone, windowUpto, 0, 1000, token, bound}, small},
				readPlanned:      {[]any{2, []int64{}, windowUpto, 0, 1000, token, []string{"110"}, []int64{}, bound}, small},
				readSizedPage:    {[]any{2, windowDone, windowUpto, 0, 1000, token, 1 << 20}, row(whole, 2) + " " + row(whole, 3)},
				readSizedPlanned: {[]any{2, []int64{}, windowUpto, 0, 1000, token, []string{"110"}, []int64{}, 1 << 20}, row(whole, 2) + " " + row(whole, 3)},
			} {
				if got := wordsOf(t, tx, fmt.Sprintf(sizes, sqlschema.In("", statement)), c.args...); got != c.want {
					t.Errorf("%s: %.30s sends\n%s, want\n%s", sets, statement, got, c.want)
				}
			}
		}
	})
}

// What is next in a window is asked for again and again, until nothing is.
func TestLogNeighbours_WhatIsNextIsTheNextOfItsWindow(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	logged(t, db, pgx.TxOptions{}, func(tx pgx.Tx) {
		next := "with n (upto, segment, xid, seq, id, type, topic, key) as (" + sqlschema.In("", readNext) + ") select %s from n"
		got := ""
		for pos := int64(0); ; {
			id := wordsOf(t, tx, fmt.Sprintf(next, "id"), 2, windowDone, windowUpto, pos, token)
			if id == "" {
				break
			}
			was := pos
			if got, pos = got+" "+id, placeOf(t, tx, id); pos <= was {
				t.Fatalf("next after %d is %s, at %d", was, id, pos)
			}
		}
		if want := " " + idsOf(t, tx, inTheWindow); got != want {
			t.Errorf("one after the other there are\n%s, want\n%s", got, want)
		}
		// What is too long for its field is left out.
		pgtest.Exec(t, tx, "delete from holdfast.event_1")
		for more, want := range map[int]string{0: "255_255_249_1024", 1: "0_0_0_0"} {
			pgtest.Exec(t, tx, `insert into holdfast.event_2 (xid, seq, lane, id, type, topic, key) values ('110', $1::int, 2, repeat('i', 255 + $1::int), repeat('t', 255 + $1::int), repeat('o', 249 + $1::int), repeat('k', 1024 + $1::int))`, more)
			sizes := fmt.Sprintf(next, "concat_ws('_', octet_length(id), octet_length(type), octet_length(topic), octet_length(key))")
			if got := wordsOf(t, tx, sizes, 2, windowDone, windowUpto, more-1, token); got != want {
				t.Errorf("of one with %d more the sizes are %s, want %s", more, got, want)
			}
		}
	})
}

// The transactions that a plan takes for big ones are those of the lane with more events in the window, after the place, than it says; the places
// are those of the others.
func TestLogNeighbours_APlanIsOfItsWindow(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	logged(t, db, pgx.TxOptions{}, func(tx pgx.Tx) {
		for _, pos := range placesIn(t, tx) {
			for most := range 6 {
				got := wordsOf(t, tx, sqlschema.In("", readTransactions), 2, windowDone, windowUpto, pos, most, token)
				want := wordsOf(t, tx, "select xid::text, count(*) from holdfast.event where lane = 2 and seq > $1 and "+inTheWindow+" group by xid having count(*) >= $2 order by count(*) desc, xid limit 8", pos, most+1)
				if got != want {
					t.Errorf("with more than %d after %d there are %s, want %s", most, pos, got, want)
				}
			}
			for _, big := range [][]string{{}, {"112"}, {"103"}, {"107", "110"}} {
				got := wordsOf(t, tx, sqlschema.In("", readPlaces), 2, windowDone, windowUpto, pos, 1000, token, big)
				want := wordsOf(t, tx, "select xid::text, seq from holdfast.event where lane = 2 and seq > $1 and xid::text <> all ($2) and "+inTheWindow+" order by seq", pos, big)
				if got != want {
					t.Errorf("after %d, without %s, the places are\n%s, want\n%s", pos, big, got, want)
				}
			}
		}
	})
}

// toAStandby makes the server a standby for a transaction; farAhead is a snapshot that no server of these tests has reached.
const (
	toAStandby = "create schema standby; create function standby.pg_is_in_recovery() returns boolean language sql as 'select true'; set local search_path = standby, pg_catalog"
	farAhead   = "99999999999:99999999999:"
)

// A reader goes on as long as its server is the one under whose incarnation it has its lane, and its cursor is not ahead of it. Else it gets no events.
func TestLogNeighbours_AReaderGoesOnUntilItsServerIsAnother(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, others := tokens(t, db)
	seq := int64(0)
	plannedReader := func(t *testing.T, tx pgx.Tx, q question) string {
		t.Helper()
		return plannedPage(t, tx, q, []int64{110}, []int64{seq}, []string{"112"})
	}
	state := func(statement string, args func(q question) []any) func(t *testing.T, tx pgx.Tx, q question) string {
		return func(t *testing.T, tx pgx.Tx, q question) string {
			t.Helper()
			for word := range strings.FieldsSeq(wordsOf(t, tx, sqlschema.In("", statement), args(q)...)) {
				if s, isState := strings.CutSuffix(word, "/<nil>"); isState {
					return strings.TrimSuffix(s, "/<nil>")
				}
			}
			return "ok"
		}
	}
	for name, reader := range map[string]struct {
		ask      func(t *testing.T, tx pgx.Tx, q question) string
		page     bool // it must run in read committed
		lookDone bool // it asks whether done is ahead
		lookUpto bool
	}{
		"page":                       {pageReaders["page"], true, true, true},
		"page without noisy tenants": {pageReaders["page without noisy tenants"], true, true, true},
		"planned page":               {plannedReader, true, false, true},
		"transactions":               {state(readTransactions, func(q question) []any { return []any{2, q.done, q.upto, 0, 3, q.token} }), false, false, true},
		"places":                     {state(readPlaces, func(q question) []any { return []any{2, q.done, q.upto, 0, 9, q.token, []string{}} }), false, false, true},
		"cuts":                       {state(readCuts, func(q question) []any { return []any{q.done, 9, q.token} }), false, true, false},
		"next": {func(t *testing.T, tx pgx.Tx, q question) string {
			t.Helper()
			if wordsOf(t, tx, sqlschema.In("", readNext), 2, q.done, orNull(q.upto), 0, q.token) == "" {
				return ""
			}
			return "ok"
		}, false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			ask := func(what, before string, level pgx.TxIsoLevel, change func(q *question), want string) {
				t.Helper()
				logged(t, db, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) {
					seq = placeOf(t, tx, "2-110-1")
					pgtest.Exec(t, tx, before)
					q := ofTheWindow(token)
					change(&q)
					if name == "next" && want != "ok" {
						want = ""
					}
					got := reader.ask(t, tx, q)
					if state, events, _ := strings.Cut(got, " "); state != want || want != "ok" && events != "" {
						t.Errorf("%s: %s, want %s", what, got, want)
					}
				})
			}
			ask("its server", "select 1", pgx.ReadCommitted, func(*question) {}, "ok")
			for _, other := range others {
				ask("another incarnation", "select 1", pgx.ReadCommitted, func(q *question) { q.token = other }, "crashed")
			}
			ask("a standby", toAStandby, pgx.ReadCommitted, func(*question) {}, "standby")
			if reader.page {
				ask("another isolation", "select 1", pgx.RepeatableRead, func(*question) {}, "isolation")
			}
			if reader.lookDone {
				ask("done is ahead", "select 1", pgx.ReadCommitted, func(q *question) { q.done = farAhead }, "ahead")
			}
			if reader.lookUpto {
				ask("upto is ahead", "select 1", pgx.ReadCommitted, func(q *question) { q.upto = farAhead }, "ahead")
			}
		})
	}

	// A cursor that is as far as its server is not ahead of it.
	const now = "select pg_current_snapshot()::text"
	effect.Undone(t, db, func(tx pgx.Tx) {
		for name, read := range map[string]func(t *testing.T, tx pgx.Tx, q question) string{
			"page":                       pageReaders["page"],
			"page without noisy tenants": pageReaders["page without noisy tenants"],
			"planned page":               plannedReader,
		} {
			for try, before, after := 0, "", "-"; before != after; try++ { // while transactions of others end
				if try == 100 {
					t.Fatalf("%s: other transactions of the server ended in each of 100 tries", name)
				}
				before = pgtest.Text(t, tx, now)
				if got := read(t, tx, question{done: before, upto: before, token: token, bytes: 1}); got != "ok" {
					t.Errorf("%s at the end of the log: %s", name, got)
				}
				after = pgtest.Text(t, tx, now)
			}
		}
	})
	logged(t, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) {
		end := pgtest.Text(t, tx, now)
		for statement, args := range map[string][]any{
			readTransactions: {2, end, end, 0, 3, token},
			readPlaces:       {2, end, end, 0, 9, token, []string{}},
			readCuts:         {end, 9, token},
		} {
			if got := wordsOf(t, tx, sqlschema.In("", statement), args...); got != "" {
				t.Errorf("%.30s at the end of the log: %s", statement, got)
			}
		}
		if got := wordsOf(t, tx, sqlschema.In("", readNext), 2, windowDone, end, 0, token); got == "" {
			t.Error("nothing is next up to the end of the log")
		}
	})
}

// A backlog is cut where a stored snapshot lies after the cursor, and not ahead of the server: not at one that says of a transaction in flight that it
// has ended.
func TestLogNeighbours_ACutIsAMomentThatExisted(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, _ := tokens(t, db)
	flying := pgtest.Count(t, pgtest.Begin(t, db), "select pg_current_xact_id()::text::bigint")
	pgtest.Exec(t, db.Pool, "select pg_current_xact_id()") // ended, and later
	effect.UndoneAs(t, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) {
		now := pgtest.Text(t, tx, "select pg_current_snapshot()::text")
		end := pgtest.Count(t, tx, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
		parts := strings.Split(now, ":")
		before := pgtest.Text(t, tx, "select string_agg(x::text, ',') from pg_snapshot_xip(pg_current_snapshot()) x where x::text::bigint <= $1", flying)
		want := ""
		for i, c := range []struct {
			xid  int64
			snap string
			cut  bool
		}{
			{109, "120:120:", false}, // a transaction that was in flight at done, or had ended
			{110, "120:120:", true},
			{111, "110:110:", false}, // no later than done
			{112, "111:111:", true},
			{113, "", false},
			{114, now, true},
			{115, fmt.Sprintf("%s:%d:%s", parts[0], end+1, parts[2]), false},
			{116, fmt.Sprintf("%d:%d:", flying+1, flying+1), false},
			{117, fmt.Sprintf("%s:%d:%s", parts[0], flying+1, before), true},
			{end - 1, "121:121:", true},
			{end, "120:120:", false},
			{end + 1, "120:120:", false},
		} {
			pgtest.Exec(t, tx, "insert into holdfast.event_1 (xid, seq, lane, id, type, topic, snap) values ($1::text::xid8, $2, 2, 'e', 't', 'orders', $3::text::pg_snapshot)", fmt.Sprint(c.xid), i, orNull(c.snap))
			if c.cut {
				want += fmt.Sprintf(" %s/%d/%d", c.snap, c.xid, i)
			}
		}
		if got := " " + wordsOf(t, tx, sqlschema.In("", readCuts), "110:110:", 100, token); got != want {
			t.Errorf("cuts are\n%s, want\n%s", got, want)
		}
	})
}

// A look at a lane says what that has unread, parked and scheduled, whatever the lanes below and above have.
func TestLogNeighbours_ALookAtALaneSeesItsOwn(t *testing.T) {
	t.Parallel()
	db := migrated.Lanes(t, 5)
	token, others := tokens(t, db)
	const (
		event     = "insert into holdfast.event_1 (xid, seq, lane, id, type, topic) select x::text::xid8, x, l, 'e', 't', 'orders' from unnest('{%s}'::bigint[]) x, unnest('{%s}'::int[]) l"
		parked    = "insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) select l, 'orders', 'k', 1, 'record', %s, 'e', 's', 't', now() from unnest('{%s}'::int[]) l"
		scheduled = "insert into holdfast.scheduled (lane, due_at, id, type, topic, time) select l, %s, 'e', 't', 'orders', now() from unnest('{%s}'::int[]) l"
		later     = "now() + interval '1 microsecond'"
		done      = "103:110:103,105"
	)
	effect.UndoneAs(t, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) {
		now := pgtest.Text(t, tx, "select pg_current_snapshot()::text")
		end := pgtest.Count(t, tx, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
		look := func(name, before string, dones []*string, token, want string) {
			t.Helper()
			undo, err := tx.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, undo, before)
			lanes := []int16{2, 4}[:len(dones)]
			got := strings.NewReplacer("true", "t", "false", "f", now, "now").Replace(wordsOf(t, undo, sqlschema.In("", probeLanes), lanes, dones, token))
			if got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
			if err := undo.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
		at := func(dones ...string) (all []*string) {
			for _, d := range dones {
				all = append(all, orNull(d))
			}
			return all
		}
		nothing := "2/f/f/f/now"
		for _, c := range []struct{ name, before, want string }{
			{"nothing", "select 1", nothing},
			{"events of other lanes", fmt.Sprintf(event, "103,105,110,111", "1,3"), nothing},
			{"one that has begun since", fmt.Sprintf(event, "110", "2"), "2/t/f/f/now"},
			{"one that was in flight", fmt.Sprintf(event, "103", "2"), "2/t/f/f/now"},
			{"another one that was", fmt.Sprintf(event, "105", "2"), "2/t/f/f/now"},
			{"what had ended", fmt.Sprintf(event, "102,104,106,109", "2"), nothing},
			{"the last that the server knows", fmt.Sprintf(event, fmt.Sprint(end-1), "2"), "2/t/f/f/now"},
			{"one that the server does not know", fmt.Sprintf(event, fmt.Sprintf("%d,%d", end, end+1), "2"), nothing},
			{"parked in other lanes", fmt.Sprintf(parked, "now()", "1,3"), nothing},
			{"parked and due", fmt.Sprintf(parked, "now()", "2"), "2/f/t/f/now"},
			{"parked and due, in others not", fmt.Sprintf(parked, "now()", "2") + ";" + fmt.Sprintf(parked, later, "1,3"), "2/f/t/f/now"},
			{"parked and not due", fmt.Sprintf(parked, later, "2"), nothing},
			{"parked for good", fmt.Sprintf(parked, "'infinity'", "2"), nothing},
			{"scheduled in other lanes", fmt.Sprintf(scheduled, "now()", "1,3"), nothing},
			{"scheduled and due", fmt.Sprintf(scheduled, "now()", "2"), "2/f/f/t/now"},
			{"scheduled and not due", fmt.Sprintf(scheduled, later, "2"), nothing},
		} {
			look(c.name, c.before, at(done), token, c.want)
		}
		// The last column takes the place of done where that is of use.
		look("something is new", "select 1", at("110:110:"), token, nothing)
		look("nothing is new", "select 1", at(now), token, "2/f/f/f/<nil>")
		look("one has ended, and none has begun", "select 1", at(fmt.Sprintf("103:%d:103", end)), token, nothing)
		look("it is reading", fmt.Sprintf(event, "103,110", "2"), at(""), token, "2/f/f/f/<nil>")
		look("two lanes", fmt.Sprintf(event, "110", "3,4"), at(done, done), token, nothing+" 4/t/f/f/now")
		look("one is ahead", "select 1", at(done, farAhead), token, "")
		look("one is ahead, by one", "select 1", at(done, fmt.Sprintf("%d:%d:", end+1, end+1)), token, "")
		for _, other := range others {
			look("another incarnation", "select 1", at(done), other, "")
		}
		look("a standby", toAStandby, at(done), token, "")
	})
}
