package waiting

import (
	"reflect"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// What is done about one event, or a batch of a lane, is found by an index, on tables that are large: 10,000 events in consumers, 20,000 in
// relays, and 22,000 letters. A page of a list reads no more than it has.
func TestPlan_WhatWaitsIsFoundByIndexes(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, state)
			select 'inbox', 'billing', 'r', n % 50 = 0, n::text, 's', 't', 'orders', (n % 2000)::text, now(), '', case when n % 10 = 0 then 'open' else 'replayed' end
			  from generate_series(1, 20000) n`,
		`insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at)
			select 'billing', 's', n::text, 'orders', '', 'dead', now() from generate_series(1, 20000) n`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, letter, next_at)
			select 'billing', 'orders', (n % 2000)::text, n, 's', n::text, 't', now(), '', n, 'infinity' from generate_series(1, 10000) n`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
			select 'zeta', 'orders', (n % 3)::text, 20000 + n, 's', 'z' || n, 't', now(), '', 'infinity' from generate_series(1, 10) n`,
		`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
			select n % 8, 'topic ' || n % 10, (n % 2000)::text, n, 'topic', 'infinity', n::text, 's', 't', now() from generate_series(1, 20000) n`,
		`insert into holdfast.letter (origin, reason, holds, event_id, source, type, topic, key, time, hash, lane)
			select 'relay', 'r', true, n::text, 's', 't', 'topic 1', (n % 2000)::text, now(), '', n % 8 from generate_series(1, 2000) n`,
		"insert into holdfast.parked_lease (lane, topic, key, place) select n % 8, 'topic 2', n::text, 0 from generate_series(1, 20000) n",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	tables := []string{"letter", "inbox", "stored", "parked", "parked_lease"}
	for _, table := range tables {
		pgtest.Exec(t, db.Pool, "analyze holdfast."+table)
	}
	const all = "'', '', '', '', '', '', '', false, -1"
	var asked []string
	role := roletest.Make(t, db) + "_operator"
	for _, c := range []struct {
		statement, literals string
		indexes             []string
	}{
		{retryConsumer, "'billing', 'orders', '12', 12", []string{"stored_pkey", "letter_holds_inbox"}},
		{giveUpConsumer, "'billing', 'orders', '12', 12, 'r', 'open', 'dead'", []string{"stored_pkey", "inbox_pkey", "letter_pkey", "letter_event"}},
		{giveUpRelay, "3, 'topic 1', '11', '', -9, 1000000, 100, 1000, true, 'discarded', 'r', 'ann', 'w'", []string{"parked_pkey", "parked_lease_pkey", "letter_(pkey|open)"}},
		{redirectRelay, "3, 'topic 1', '', '11', 5, 1000000, 100, 1000, true, 'topic-2', 'n'", []string{"parked_pkey", "parked_lease_pkey", "letter_holds"}},
		{countLeft, "3, 'topic 1', '', 1000000", []string{"parked_pkey"}},
		{wakeKey, "'billing', 'orders', '12'", []string{"stored_pkey", "letter_holds_inbox"}},
		{resumeRelay, "3, 'topic 1', '{11,19}', '19', 5", []string{"parked_pkey", "letter_holds"}},
		{wouldRetry, "'billing', 'orders', '12', 12", []string{"stored_pkey", "letter_holds_inbox"}},
		{stillWaits, "'billing', 'orders', '12', 12, 'failed', true", []string{"stored_pkey", "letter_holds_inbox"}},
	} {
		asked = append(asked, c.statement)
		plantest.Allowed(t, db.Pool, role, c.statement, c.literals)
		for _, plan := range plantest.Of(t, db.Pool, c.statement, c.literals) {
			plan.Uses(c.indexes...)
			plan.NeverReadsAllOf(tables...)
		}
	}
	// What reads by the filter of a person is planned for that filter (manual.Look).
	for _, c := range []struct {
		statement, literals string
		indexes             []string
	}{
		{showConsumer, "'', '', '', '', '', '12', '', false, -1, true", []string{"stored_consumer_source_event_id_key", "stored_pkey"}},
		{listRelay, all + ", 100, 3, 'topic 1', '11', 5", []string{"parked_pkey"}},
		{listConsumer, all + ", 100, 'billing', 'orders', '12', 5", []string{"stored_pkey"}},
		{listConsumer, "'zeta', '', '', '', '', '', '', false, -1, 100, '', '', '', -1", []string{"stored_pkey"}},
		{groupConsumer, "'zeta', '', '', '', '', '', '', false, -1", []string{"stored_(pkey|age|due)"}},
	} {
		asked = append(asked, c.statement)
		plantest.Allowed(t, db.Pool, role, c.statement, c.literals)
		for _, plan := range plantest.Custom(t, db.Pool, c.statement, c.literals) {
			plan.Uses(c.indexes...)
			plan.NeverReadsAllOf(tables...)
		}
	}
	const log = "it only writes a log"
	const person = "for a person, by a filter of theirs"
	const few = "a row for each pause"
	plantest.EveryStatement(t, asked, map[string]string{
		"waiting.list_schedule": person, "waiting.group_relay": person, "waiting.group_schedule": person, "waiting.show_relay": person, "waiting.show_schedule": person, "waiting.count_relay": person, "waiting.retry_relay": person,
		"waiting.count_retry": person, "waiting.cancel_scheduled": person, "waiting.where_is": person, "waiting.consumers": person,
		"waiting.lock_lane": "a row a lane", "waiting.lane_owner": "a row a lane", "waiting.disown_lane": "a row a lane", "waiting.bound_relay": "it reads no table",
		"waiting.pause": few, "waiting.resume": few, "waiting.paused": few, "waiting.topic_is_paused": few,
		"waiting.record_pause": log, "waiting.record_stored": log,
	})
}

// Every reason has a place where an event can wait for it, and what a filter names nowhere reads nothing.
func TestPlan_WhereTheEventsOfAFilterCanWait(t *testing.T) {
	two := 2
	for name, row := range map[string]struct {
		filter Filter
		want   []place
	}{
		"all":                            {Filter{}, []place{inRelay, inConsumer, inSchedule}},
		"of relays":                      {Filter{Origin: "relay"}, []place{inRelay, inSchedule}},
		"of consumers":                   {Filter{Origin: "inbox"}, []place{inConsumer}},
		"of a consumer":                  {Filter{Consumer: "billing"}, []place{inConsumer}},
		"of a partition":                 {Filter{Partition: &two}, []place{inRelay}},
		"scheduled":                      {Filter{Why: Scheduled}, []place{inSchedule}},
		"scheduled in a consumer":        {Filter{Why: Scheduled, Consumer: "billing"}, nil},
		"for a topic":                    {Filter{Why: Topic}, []place{inRelay}},
		"for a topic, in a consumer":     {Filter{Why: Topic, Consumer: "billing"}, nil},
		"for a partition":                {Filter{Why: Partition}, []place{inRelay}},
		"without a handler":              {Filter{Why: NoHandler}, []place{inConsumer}},
		"without a handler, in a relay":  {Filter{Why: NoHandler, Origin: "relay"}, nil},
		"failed":                         {Filter{Why: Failed}, []place{inRelay, inConsumer}},
		"of a partition, in a consumer ": {Filter{Partition: &two, Consumer: "billing"}, nil},
	} {
		if got := row.filter.places(); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}
