package find

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// What a consumer keeps for long is found by an index, and so is a key in the log. The other tables are small, or are read whole.
func TestPlan_LargeTablesAreSearchedByTheirIndexes(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at)
			select 'c' || n % 3, 's' || n % 5, n::text, 'orders', '', 'handled', now() from generate_series(1, 20000) n`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
			select 'billing', 'orders', (n % 2000)::text, n, 's', n::text, 't', now(), '', 'infinity' from generate_series(1, 10000) n`,
		`insert into holdfast.event_0 (lane, id, type, topic, key) select n % 8, n::text, 't', 'orders', (n % 2000)::text from generate_series(1, 20000) n`,
		`insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time) select n % 8, now() + interval '1 hour', n::text, 't', 'orders', (n % 2000)::text, now() from generate_series(1, 20000) n`,
		`insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash, state)
			select 'inbox', 'billing', 'r', n::text, 's', 't', 'orders', (n % 2000)::text, now(), '', 'replayed' from generate_series(1, 2000) n`,
		`insert into holdfast.letter_action (letter, action, by, reason) select n % 2000, 'replay', 'ann', '' from generate_series(1, 20000) n`,
		`insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body_hash, owner, expires_at)
			select 'principal:' || n % 100, 'pay', n::text, '', 1, 'complete', 201, '{}', '', gen_random_uuid(), now() from generate_series(1, 20000) n`,
		`insert into holdfast.idempotency_expired (scope, operation, key, fingerprint, created_at, expires_at, keep_until)
			select 'principal:' || n % 100, 'pay', n::text, '', now(), now(), now() from generate_series(1, 20000) n`,
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	tables := []string{"inbox", "stored", "event_0", "scheduled", "letter", "letter_action", "idempotency", "idempotency_expired"}
	for _, table := range tables {
		pgtest.Exec(t, db.Pool, "analyze holdfast."+table)
	}
	var asked []string
	role := roletest.Make(t, db) + "_operator"
	for _, c := range []struct {
		statement, literals string
		index, table        string
	}{
		{findInbox, "'77', '', '', '', 101", "inbox_pkey", "inbox"},
		{findStored, "'77', '', '', '', 101", "stored_consumer_source_event_id_key", "stored"},
		{findLogOfKey, "'77', '', '', '77', 101", "event_0_lane_xid_seq", "event_0"},
		{findScheduledOfKey, "'77', '', '', '77', 101", "scheduled_pkey", "scheduled"},
		{findKeys, "'77', 101, '', ''", "idempotency_expired_key", "idempotency_expired"},
		{findKey, "'77', 101, 'principal:77', 'pay'", "idempotency_pkey", "idempotency"},
		{findActions, "'77', '', '', '', 101", "letter_action_letter", "letter_action"},
	} {
		asked = append(asked, c.statement)
		plantest.Allowed(t, db.Pool, role, c.statement, c.literals)
		for _, plan := range plantest.Of(t, db.Pool, c.statement, c.literals) {
			plan.Uses(c.index)
			plan.NeverReadsAllOf(c.table)
		}
	}
	const whole = "it has no index by id: limitSearch bounds it"
	plantest.EveryStatement(t, asked, map[string]string{
		"find.scheduled": whole, "find.log": whole, "find.parked": whole, "find.starts": whole, "find.letters": whole, "find.limit": "it reads no table",
	})
}
