package relay

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Every statement that a relay makes while it works finds its rows by an index, on tables that are large: a log of
// 200,000 events, 20,000 parked ones in 2,000 queues, 20,000 scheduled ones, 5,000 letters.
func TestPlan_TheStatementsOfTheRelayUseTheirIndexesOnLargeTables(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		// Transactions of ten events, every thousandth row with a snapshot.
		`insert into holdfast.event_0 (xid, lane, id, type, topic, key, snap)
			select (1000 + n / 10)::text::xid8, n % 8, n::text, 't', 'orders', (n % 5000)::text,
			       case when n % 1000 = 0 then format('%s:%s:', 1000 + n / 10, 1000 + n / 10)::pg_snapshot end
			  from generate_series(1, 200000) n`,
		`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, partition)
			select n % 8, 'orders', (n % 2000)::text, n, 'record', case when n < 100 then now() else 'infinity' end, n::text, '', 't', now(),
			       case when n % 500 = 3 then 3 end
			  from generate_series(1, 20000) n`,
		`insert into holdfast.scheduled (lane, due_at, id, type, topic, time)
			select n % 8, now() + n * interval '1 second', n::text, 't', 'orders', now() from generate_series(1, 20000) n`,
		`insert into holdfast.letter (origin, reason, holds, event_id, source, type, topic, key, time, hash, lane, state)
			select 'relay', 'r', n % 50 = 0, n::text, '', 't', 'orders', (n % 2000)::text, now(), '', n % 8, case when n % 10 = 0 then 'open' else 'replayed' end
			  from generate_series(1, 5000) n`,
		"insert into holdfast.parked_lease (lane, topic, key, place) select n % 8, 'orders', n::text, 0 from generate_series(1, 20000) n",
		"analyze holdfast.parked_lease", "analyze holdfast.event_0", "analyze holdfast.parked", "analyze holdfast.scheduled", "analyze holdfast.letter",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	const token = "'00000000-0000-0000-0000-000000000000'"
	const done, upto = "'12000:12010:12003,12005'", "'12500:12500:'"
	var asked []string
	role := roletest.Make(t, db) + "_relay"
	segments := func(index string) (all []string) {
		for n := range 4 {
			all = append(all, fmt.Sprintf("event_%d_%s", n, index))
		}
		return all
	}
	for _, row := range []struct {
		statement, literals string
		indexes             []string
	}{
		{readPage, "3, " + done + ", " + upto + ", 0, 2000, " + token + ", 4000000", segments("lane_xid_seq")},
		{readSizedPage, "3, " + done + ", " + upto + ", 0, 2000, " + token + ", 4000000", segments("lane_xid_seq")},
		{readPage, "3, " + done + ", null, 0, 2000, " + token + ", 4000000", segments("lane_xid_seq")},
		{readSizedPage, "3, " + done + ", null, 0, 2000, " + token + ", 4000000", segments("lane_xid_seq")},
		{readQuietPage, "3, " + done + ", " + upto + ", 0, 2000, " + token + ", 4000000, '/', '{acme}', " + upto + ", 7", segments("lane_xid_seq")},
		{readQuietPage, "3, " + done + ", null, 0, 2000, " + token + ", 4000000, '/', '{acme}', null, 0", segments("lane_xid_seq")},
		{readPlanned, "3, '{12011,12012}', " + upto + ", 0, 2000, " + token + ", '{12020,12021}', '{120110,120120}', 4000000", segments("lane_xid_seq")},
		{readSizedPlanned, "3, '{12011,12012}', " + upto + ", 0, 2000, " + token + ", '{12020,12021}', '{120110,120120}', 4000000", segments("lane_xid_seq")},
		{readTransactions, "3, " + done + ", " + upto + ", 0, 500, " + token, segments("lane_xid_seq")},
		{readPlaces, "3, " + done + ", " + upto + ", 0, 50000, " + token + ", '{12020,12021}'", segments("lane_xid_seq")},
		{readCuts, done + ", 20, " + token, segments("cut")},
		{probeLanes, "'{0,1,2,3,4,5,6,7}', array_fill(" + done + "::text, '{8}'), " + token, append(segments("lane_xid_seq"), "parked_due", "scheduled_pkey")},
		{loadHeld, "3", []string{"letter_holds"}},
		{fixHead, "3, 'orders', '11'", []string{"parked_pkey"}},
		{parkEvents, "3, '{orders}', '{11}', '{record}', '{0}', '{e}', '{i}', '{s}', '{t}', '{now}', '{null}', '{null}', '{7}', '{1}', '{3}'", []string{"parked_pkey", "letter_holds"}},
		{leaseParked, "3, '{orders}', '{11}', '{0}'", nil},
		{endLeases, "3, '{orders}', '{11}', '{0}'", []string{"parked_lease_pkey"}},
		{beginLeases, "3, 'relay 1', 7, " + token, []string{"parked_lease_pkey"}},
		{closeLetters, "'{1,2,3}'", []string{"letter_open"}},
		{readDue, "3, '{}', 50, '{orders}', '{12}', '{0}', 100, 1000000", []string{"parked_due", "parked_pkey"}},
		{listDue, "3, '{}', 50, '{orders}', '{12}', '{0}'", []string{"parked_due"}},
		{readHeads, "3, '{orders}', '{11}', '{11}', 100, 1000000", []string{"parked_pkey"}},
		{nameHead, "3, 'orders', '11', 0", []string{"parked_pkey"}},
		{nameWaiting, "3, 'orders', 3, 0, true", []string{"parked_holds", "parked_pkey", "letter_holds"}},
		{deleteParked, "3, '{orders}', '{11}', '{11}'", []string{"parked_pkey"}},
		{delayParked, "3, '{orders}', '{11}', '{11}', '{1}', '{e}', '{1}'", []string{"parked_pkey"}},
		{deadLetterParked, "3, 'orders', '11', 11, 1, 'e', 'r', 'f', false", []string{"parked_pkey", "letter_pkey"}},
		{resumeQueues, "3, '{orders}', '{11}'", []string{"parked_pkey", "letter_holds"}},
		{readProbe, "3, 'orders', 3, 0", []string{"parked_holds", "parked_pkey", "letter_holds"}},
		{holdParked, "3, '{orders}', '{11}', '{11}', '{3}'", []string{"parked_pkey"}},
		{resumeHeld, "3, 'orders', 3, 100, null", []string{"parked_holds", "parked_pkey", "letter_holds"}},
		{loadHolds, "3", []string{"parked_holds"}},
		{listQueues, "3, 100, 'orders', '11'", []string{"parked_pkey"}},
		{keylessGone, "3, '{orders}'", []string{"parked_pkey"}},
		{moveScheduled, "3, 100, 1000000, null", []string{"scheduled_pkey"}},
		{moveScheduled, "3, 1, 1000000, 120110", []string{"scheduled_pkey"}},
		{nameScheduled, "3", []string{"scheduled_pkey"}},
		{readNext, "3, " + done + ", " + upto + ", 0, " + token, segments("lane_xid_seq")},
		{readNext, "3, " + done + ", null, 0, " + token, segments("lane_xid_seq")},
		{deadLetterEvents, "3, " + done + ", " + upto + ", '{120110,120120}', '{r,r}', '{f,f}', '{f,f}'", segments("lane_xid_seq")},
		{deadLetterScheduled, "3, 'r', 'f', null", []string{"scheduled_pkey"}},
		{deadLetterScheduled, "3, 'r', 'f', 120110", []string{"scheduled_pkey"}},
	} {
		asked = append(asked, row.statement)
		plantest.Allowed(t, db.Pool, role, row.statement, row.literals)
		for _, plan := range plantest.Of(t, db.Pool, row.statement, row.literals) {
			plan.Uses(row.indexes...)
			plan.NeverReadsAllOf("event_[0-3]", "parked", "parked_lease", "scheduled", "letter")
		}
	}
	const lanes, one, adopts = "a row a lane or relay", "one row in all", "once, by a person, with all relays stopped"
	plantest.EveryStatement(t, asked, map[string]string{
		"relay.save": lanes, "relay.heartbeat": lanes, "relay.leave": lanes, "relay.claim": lanes, "relay.release": lanes, "relay.fence": lanes,
		"relay.server": one, "relay.interpret": "reads no table", "relay.unflushed": "reads no table", "relay.incarnation": one, "relay.segments": one, "relay.birth": one, "relay.holders": "the locks of the server", "relay.paused": "a row for each pause",
		"relay.adopt_snapshot": adopts, "relay.adopt_lock": adopts, "relay.adopt_events": adopts, "relay.adopt_lanes": adopts, "relay.adopt_sequence": adopts,
		"relay.adopt_incarnation": adopts, "relay.adopt_birth_gone": adopts, "relay.adopt_birth": adopts, "relay.replace_cluster": adopts,
		"relay.publish_letter":      "a function, which reads a letter by its primary key",
		"relay.expire_written_once": "a function: TestDedupe_ExpiredDedupeKeysAreRemovedByTheIndex counts what it reads",
		"relay.rotate":              "a function over the row of the table segments, and the size of a segment",
		"relay.reclaim":             "a function: TestPlan_ASegmentIsReclaimedWithoutReadingItAll counts what it reads",
	})
}

// reclaim keeps everybody from reading the log while it looks for what is unread. Its plans are those of a function, so what
// they read is counted instead.
func TestPlan_ASegmentIsReclaimedWithoutReadingItAll(t *testing.T) {
	skip.InShort(t, "it takes 14 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	const rows = 200_000
	pgtest.Exec(t, db.Pool, `insert into holdfast.event_1 (lane, id, type, topic, key) select n % 8, n::text, 't', 'orders', (n % 5000)::text from generate_series(1, $1) n`, rows)
	for _, state := range []struct{ name, before, want string }{
		{"nobody has looked at its statistics", "select", "emptied"},
		{"analyzed", "select", "emptied"},
		{"analyzed, and what was in flight at a cursor lies elsewhere", "update holdfast.lane set done = format('%s:%s:%s', e.xid - 1, pg_snapshot_xmax(pg_current_snapshot()), e.xid - 1)::pg_snapshot from (select xid::text::bigint from holdfast.event_1 limit 1) e (xid)", "emptied"},
		{"unread", "update holdfast.lane set done = '3:3:' where lane = 7", "unread"},
		{"in flight at a cursor", "update holdfast.lane set done = format('%s:%s:%s', e.xid, pg_snapshot_xmax(pg_current_snapshot()), e.xid)::pg_snapshot from (select xid from holdfast.event_1 limit 1) e where lane = 7", "unread"},
		{"with rows of a lane below all", "delete from holdfast.lane where lane = 0", "unread"},
		{"with rows of a lane above all", "delete from holdfast.lane where lane = 7", "unread"},
		{"with rows of a lane between others", "delete from holdfast.lane where lane = 3", "unread"},
	} {
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "update holdfast.lane set done = pg_current_snapshot()")
		if state.name != "nobody has looked at its statistics" {
			pgtest.Exec(t, tx, "analyze holdfast.event_1")
		}
		pgtest.Exec(t, tx, state.before)
		const read = `select coalesce(sum(seq_tup_read) + sum(idx_tup_fetch), 0)::bigint from pg_stat_xact_all_tables where relname = 'event_1' and schemaname = 'holdfast'`
		before := pgtest.Count(t, tx, read)
		var result string
		if err := tx.QueryRow(t.Context(), "select holdfast.reclaim(1, (select token from holdfast.incarnation), 30000)").Scan(&result); err != nil {
			t.Fatal(err)
		}
		if result != state.want {
			t.Errorf("%s: it is %q, want %q", state.name, result, state.want)
		}
		if n := pgtest.Count(t, tx, read) - before; n > 100 {
			t.Errorf("%s: %d rows of %d were read under the lock", state.name, n, rows)
		}
		_ = tx.Rollback(t.Context())
	}
}
