package dlq

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// What is done about one letter, or one named replay, is found by an index, on tables that are large: 20,000 letters with
// as many actions and inbox rows, 10,000 stored and 20,000 parked events, 40,000 steps, 5,000 named replays. What reads many letters is in
// queries_test.go.
func TestPlan_OneLetterIsFoundByItsIndexes(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, state)
			select 'inbox', 'billing', 'r', n % 50 = 0, n::text, 's', 't', 'orders', (n % 2000)::text, now(), '', case when n % 10 = 0 then 'open' else 'replayed' end
			  from generate_series(1, 20000) n`,
		`insert into holdfast.letter_replay (name, filter, upto, by, reason, ended_at)
			select n::text, '{}', n, 'ann', '', case when n % 100 > 0 then now() end from generate_series(1, 5000) n`,
		`insert into holdfast.letter_action (letter, action, by, reason, replay) select n, 'replay', 'ann', '', 1 + n % 5000 from generate_series(1, 20000) n`,
		`insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at)
			select 'billing', 's', n::text, 'orders', '', 'dead', now() from generate_series(1, 20000) n`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, letter, next_at)
			select 'billing', 'orders', (n % 2000)::text, n, 's', n::text, 't', now(), '', n, 'infinity' from generate_series(1, 10000) n`,
		`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
			select n % 8, 'topic ' || n % 10, (n % 2000)::text, n, 'topic', 'infinity', n::text, 's', 't', now() from generate_series(1, 20000) n`,
		`insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result)
			select 'billing', 's', (n / 2)::text, '', 'step ' || n % 2, '', '{}' from generate_series(1, 40000) n`,
		`insert into holdfast.letter (origin, reason, holds, event_id, source, type, topic, key, time, hash, lane)
			select 'relay', 'r', true, n::text, 's', 't', 'topic 1', (n % 2000)::text, now(), '', n % 8 from generate_series(1, 2000) n`,
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	tables := []string{"letter", "letter_replay", "letter_action", "inbox", "inbox_step", "stored", "parked"}
	for _, table := range tables {
		pgtest.Exec(t, db.Pool, "analyze holdfast."+table)
	}
	var asked []string
	role := roletest.Make(t, db) + "_operator"
	for _, c := range []struct {
		statement, literals string
		indexes             []string
	}{
		{lastLetter, "", []string{"letter_pkey"}},
		{readAddress, "12", []string{"letter_pkey"}},
		{takeLetter, "12", []string{"letter_pkey"}},
		{wholeLetter, "12", []string{"letter_pkey"}},
		{letterUnhandled, "12", []string{"letter_pkey", "inbox_pkey"}},
		{markLetter, "12, 'replaying'", []string{"letter_open"}},
		{closeLetter, "12", []string{"letter_open"}},
		{recordAction, "12, 'replay', 'ann', '', 7", []string{"letter_action_replay"}},
		{findReplay, "'100'", []string{"letter_replay_unended", "letter_action_replay"}},
		{beginReplay, "'100', '{}', 'ann', ''", []string{"letter_pkey", "letter_replay_unended"}},
		{endReplay, "'100', 0", []string{"letter_replay_unended"}},
		{storeLetter, "12", []string{"letter_pkey", "stored_consumer_source_event_id_key"}},
		{storeResult, "12", []string{"letter_pkey", "inbox_pkey"}},
		{unstoreLetter, "12", []string{"letter_pkey", "stored_consumer_source_event_id_key"}},
		{discardResult, "12", []string{"letter_pkey", "inbox_pkey"}},
		{wakeQueue, "12", []string{"letter_pkey", "stored_pkey", "letter_holds_inbox"}},
		{readUnfit, "12", []string{"letter_pkey"}},
		{forgetSteps, "12", []string{"letter_pkey", "inbox_step_pkey"}},
		{keepVersion, "12, 'ann', ''", []string{"letter_pkey"}},
		{editHash, "12, '', ''", []string{"letter_pkey", "letter_action_letter"}},
		{editResult, "12, ''", []string{"letter_pkey", "inbox_pkey"}},
		{editLetter, "12, '', ''", []string{"letter_pkey"}},
		{listActions, "12", []string{"letter_action_letter"}},
		{reopenEvent, "'billing', 's', '12', 't', 'orders', '12', null, null, '', '', '', 'r', 'ann', 'w'", []string{"inbox_pkey", "letter_event"}},
	} {
		asked = append(asked, c.statement)
		plantest.Allowed(t, db.Pool, role, c.statement, c.literals)
		for _, plan := range plantest.Of(t, db.Pool, c.statement, c.literals) {
			plan.Uses(c.indexes...)
			plan.NeverReadsAllOf(tables...)
		}
	}
	const person = "for a person, by a filter of theirs"
	plantest.EveryStatement(t, asked, map[string]string{
		"dlq.list": person, "dlq.groups": person, "dlq.walk": person, "dlq.count": person, "dlq.purge": person, "dlq.count_purge": person,
		"dlq.replay": "its function finds the letter by its id",
	})
}
