package inbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Every statement that an inbox makes while it works finds its rows by an index, on tables that are large: 50,000 settled
// events, 40,000 stored ones in 2,000 queues, 5,000 letters and as many actions, positions, starts and watermarks. Half of
// them are of one consumer, the others of 50.
func TestPlan_TheHotStatementsUseTheirIndexes(t *testing.T) {
	skip.InShort(t, "it takes 11 s beside the others")
	b := setup(t)
	const whose = "case when n % 2 = 0 then 'billing' else 'consumer ' || n % 100 end"
	for _, sql := range []string{
		`insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result)
			select ` + whose + `, '', n::text, 'orders', n % 12, n, '', now() - n * interval '1 second', 'handled' from generate_series(1, 50000) n`,
		// Keys with followers that sleep, and events without a key; a hundred heads are due.
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
			select ` + whose + `, 'orders', case when n % 20 < 2 then '' else (n % 2000)::text end, n, '', n::text, 'order.placed', now(), '',
			       case when n < 100 then now() else 'infinity' end
			  from generate_series(1, 40000) n`,
		// Heads that wait for a node that handles their type.
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
			select ` + whose + `, 'orders', 'split ' || n, n, '', 'split ' || n, 'order.split', now(), '', now() from generate_series(100001, 104000) n`,
		`insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, state)
			select 'inbox', ` + whose + `, 'r', n % 50 < 2, n::text, '', 'order.placed', 'orders', (n % 2000)::text, now(), '', case when n % 10 < 2 then 'open' else 'replayed' end
			  from generate_series(1, 5000) n`,
		`insert into holdfast.letter_action (letter, action, by, reason, hash) select n, 'edit', '', '', '' from generate_series(1, 5000) n`,
		`insert into holdfast.consumer_position (consumer, topic, partition) select ` + whose + `, 'topic ' || n / 100, n % 100 from generate_series(1, 5000) n`,
		`insert into holdfast.start (consumer, source, event_id) select ` + whose + `, '', n::text from generate_series(1, 5000) n`,
		`insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) select ` + whose + `, '', n::text, '', 'charge', '', '1' from generate_series(1, 5000) n`,
		`insert into holdfast.watermark (consumer, entity, version) select ` + whose + `, n::text, n from generate_series(1, 5000) n`,
	} {
		pgtest.Exec(t, b.db, sql)
	}
	tables := []string{"inbox", "stored", "letter", "letter_action", "consumer_position", "start", "inbox_step", "watermark"}
	for _, table := range tables {
		pgtest.Exec(t, b.db, "analyze holdfast."+table)
	}
	var asked []string
	role := roletest.Make(t, b.db) + "_consumer"
	bound, user := roletest.Login(t, b.db, "", role)
	roletest.BindConsumer(t, b.db, user, "billing", "") // The plans of a user whom row security holds back find rows by the same indexes.
	many := func(value, of string) string { return fmt.Sprintf("array_fill(%s::%s, '{100}')", value, of) }
	const token = "'00000000-0000-0000-0000-000000000000'"
	const partition, key, row = "'billing', 'topic 7', 8, 1", "'billing', 'orders', '12'", "'billing', 'orders', '12', 12, " + token
	for _, c := range []struct {
		statement, literals string
		indexes             []string
	}{
		{recordSQL, "'billing', 'orders', 8, '', '12', '12', 0, '', 1, null, 1, 'orders', 8", []string{"inbox_pkey", "stored_pkey", "letter_holds_inbox", "consumer_position_pkey"}},
		{recordUnpausedSQL, "'billing', 'orders', 8, '', '12', '12', 0, '', 1, null, 1, 'orders', 8", []string{"inbox_pkey", "stored_pkey", "letter_holds_inbox", "consumer_position_pkey"}},
		{recordManySQL, "'billing', " + many("'orders'", "text") + ", " + many("8", "int") + ", " + many("''", "text") + ", " + many("'12'", "text") + ", " + many("'12'", "text") + ", " + many("0", "bigint") + ", " + many("''", "bytea") + ", 1, null, 1, 'orders', 8, true", []string{"inbox_pkey", "stored_pkey", "letter_holds_inbox", "consumer_position_pkey"}},
		{freshSQL, "'billing', " + many("'orders'", "text") + ", " + many("8", "int") + ", " + many("1", "bigint") + ", " + many("'orders'", "text") + ", " + many("''", "text") + ", " + many("'12'", "text") + ", " + many("'12'", "text") + ", true", []string{"inbox_pkey", "stored_pkey", "letter_holds_inbox", "consumer_position_pkey"}},
		{knownSQL, "'billing', '', '12'", []string{"inbox_pkey"}},
		{knownManySQL, "'billing', " + many("''", "text") + ", " + many("'12'", "text"), []string{"inbox_pkey"}},
		{settleSQL, "'billing', '', '12', 'orders', 8, 0, '', 'handled', 1", []string{"inbox_pkey"}},
		{storeSQL, key + ", '', 'e', 't', now(), '{}', '', '', 0, 8, 1, '{}', 1, 1, true, false, 100, 1, 0", []string{"stored_consumer_source_event_id_key", "stored_pkey", "letter_holds_inbox"}},
		{storeManySQL, key + strings.Repeat(", "+many("''", "text"), 3) + ", " + many("now()", "timestamptz") + ", " + many("'{}'", "text") + strings.Repeat(", "+many("''", "bytea"), 2) + ", " + many("0", "bigint") + ", 8, 0, '{}', 0, null, true, true, 100, 100, 0",
			[]string{"stored_consumer_source_event_id_key", "stored_pkey", "letter_holds_inbox"}},
		{unrecordSQL, "'billing', '', '12'", []string{"inbox_pkey"}},
		// Of one who has half of them these two may as well read all, the first up to its limit.
		{storedCountSQL, "'consumer 7', 100", []string{"stored_(pkey|consumer_source_event_id_key)"}},
		{letterSQL, "'billing', 'r', 'f', true, '12', '', 't', 'orders', '12', now(), '{}', '', '', 8, 0, 1, '{}', 1, true, 1", []string{"letter_event"}},
		{letterReopenSQL, "12, 1, 'r', 'f', '{e}'", []string{"letter_pkey"}},
		{letterReplayedSQL, "12", []string{"letter_open"}},
		{editedSQL, "'billing', '', '12', '{\"\"}'", []string{"letter_event", "letter_action_letter"}},
		{claimSQL, "'billing', '{order.placed}', 8, " + token + ", 1000000, '{}', 1000000, true, null, 0, true", []string{"stored_due", "stored_pkey", "stored_active", "letter_holds_inbox"}},
		{takeSQL, row, []string{"stored_pkey"}},
		{isHeadSQL, key + ", 7", []string{"stored_pkey"}},
		{dropSQL, row, []string{"stored_pkey"}},
		{nextSQL, key + ", '{order.placed}', " + token + ", 1000000, 1000000", []string{"stored_pkey", "stored_active", "letter_holds_inbox"}},
		{resumeSQL, key, []string{"stored_pkey", "letter_holds_inbox"}},
		{deferSQL, key, []string{"stored_pkey", "stored_active"}},
		{activeSQL, "'billing'", []string{"stored_active"}},
		{sweepSQL, "'billing'", []string{"stored_pkey", "letter_holds_inbox"}},
		{retrySQL, row + ", 1, 0, '{e}', 0", []string{"stored_pkey"}},
		{stillStoredSQL, row, []string{"stored_pkey"}},
		{watermarkSQL, "'billing', '12', 1", []string{"watermark_pkey"}},
		{watermarkIsSQL, "'billing', '12', 1", []string{"watermark_pkey"}},
		{startsSQL, "'billing', " + many("''", "text") + ", " + many("'12'", "text"), []string{"start_pkey"}},
		{startSQL, "'billing', " + many("''", "text") + ", " + many("'12'", "text") + ", " + many("1", "int"), []string{"start_pkey"}},
		{takeBackStartSQL, "'billing', " + many("''", "text") + ", " + many("'12'", "text") + ", " + many("1", "int"), []string{"start_pkey"}},
		{stepSQL, "'billing', '', '12', '', 'charge'", []string{"inbox_step_pkey"}},
		{stepDoneSQL, "'billing', '', '12', '', 'charge', '', '1'", []string{"inbox_step_pkey"}},
		{forgetStartSQL, "'billing', " + many("''", "text") + ", " + many("'12'", "text"), []string{"start_pkey"}},
	} {
		asked = append(asked, c.statement)
		plantest.Allowed(t, b.db.Pool, role, c.statement, c.literals)
		for _, plan := range append(plantest.Of(t, b.db.Pool, c.statement, c.literals), plantest.Of(t, bound, c.statement, c.literals)...) {
			plan.Uses(c.indexes...)
			plan.NeverReadsAllOf(tables...)
		}
	}
	plantest.Allowed(t, b.db.Pool, role, writeBackfillSQL, "'billing', 'node', 1, 1, 1, 1, 1, 1, '', false, ''")
	plantest.Allowed(t, b.db.Pool, role, dependencySQL, "'billing', 'stripe'")
	plantest.Allowed(t, b.db.Pool, role, dependencyIsSQL, "'billing', 'stripe', true, 1, 1, 1, 'e', 'node'")
	plantest.Allowed(t, b.db.Pool, role, dependencyTrySQL, "'billing', '{stripe}', 1, 'node'")
	plantest.Allowed(t, b.db.Pool, role, pausedSQL, "'billing'")
	const noTable, small = "it reads no table", "a row a type and node, or one in all"
	plantest.EveryStatement(t, asked, map[string]string{
		"inbox.open": noTable, "inbox.open_fenced": noTable, "inbox.open_group": noTable, "inbox.lock": noTable, "inbox.try_lock": noTable,
		"inbox.declare": small, "inbox.stop": small, "inbox.undeclare": small, "inbox.declared": small, "inbox.skip": small, "inbox.write_backfill": "a row for each consumer",
		"inbox.interpret": noTable, "inbox.paused": "a row for each pause and dependency", "inbox.dependency": "a row for each dependency", "inbox.dependency_is": "a row for each dependency",
		"inbox.dependency_try": "a row for each dependency", "inbox.awaits_client": "a view of the server's sessions",
		"inbox.publish_letter": "a function, which reads a letter by its primary key",
	})
}

// Where one key has all that is stored, Postgres takes any row for one of a key's queue, and would read the table until it meets one.
// The statements find the queue by its index all the same: those of the hot key, and those of keys that have nothing stored.
func TestPlan_TheHotStatementsUseTheirIndexesBesideAHotKey(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'billing', 'orders', 'hot', n, '', n::text, 'order.placed', now(), '', case when n = 1 then now() else 'infinity' end
		  from generate_series(1, 50000) n`)
	pgtest.Exec(t, b.db, "vacuum analyze holdfast.stored")
	many := func(value, of string) string { return fmt.Sprintf("array_fill(%s::%s, '{100}')", value, of) }
	const token = "'00000000-0000-0000-0000-000000000000'"
	for _, key := range []string{"'billing', 'orders', 'hot'", "'billing', 'orders', 'cold'"} {
		row := key + ", 7, " + token
		for _, c := range []struct{ statement, literals string }{
			{recordSQL, "'billing', 'orders', 8, '', '12', " + key[len("'billing', 'orders', "):] + ", 0, '', 1, null, 1, 'orders', 8"},
			{recordUnpausedSQL, "'billing', 'orders', 8, '', '12', " + key[len("'billing', 'orders', "):] + ", 0, '', 1, null, 1, 'orders', 8"},
			{recordManySQL, "'billing', " + many("'orders'", "text") + ", " + many("8", "int") + ", " + many("''", "text") + ", " + many("'12'", "text") + ", " + many("'12'", "text") + ", " + many("0", "bigint") + ", " + many("''", "bytea") + ", 1, null, 1, 'orders', 8, true"},
			{freshSQL, "'billing', " + many("'orders'", "text") + ", " + many("8", "int") + ", " + many("1", "bigint") + ", " + many("'orders'", "text") + ", " + many("''", "text") + ", " + many("'12'", "text") + ", " + many("'12'", "text") + ", true"},
			{storeSQL, key + ", '', 'e', 't', now(), '{}', '', '', 0, 8, 1, '{}', 1, 1, true, false, null, 1, 0"},
			{storeManySQL, key + strings.Repeat(", "+many("''", "text"), 3) + ", " + many("now()", "timestamptz") + ", " + many("'{}'", "text") + strings.Repeat(", "+many("''", "bytea"), 2) + ", " + many("0", "bigint") + ", 8, 0, '{}', 0, null, true, true, null, 100, 0"},
			{takeSQL, row},
			{isHeadSQL, key + ", 7"},
			{dropSQL, row},
			{claimSQL, "'billing', '{order.placed}', 8, " + token + ", 1000000, '{}', 1000000, true, null, 0, true"},
			{nextSQL, key + ", '{order.placed}', " + token + ", 1000000, 1000000"},
			{resumeSQL, key},
			{deferSQL, key},
			{sweepSQL, "'billing'"},
			{retrySQL, row + ", 1, 0, '{e}', 0"},
			{stillStoredSQL, row},
		} {
			for _, plan := range plantest.Of(t, b.db.Pool, c.statement, c.literals) {
				plan.NeverReadsAllOf("stored")
			}
		}
	}
}
