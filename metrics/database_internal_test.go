package metrics

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestDatabase_ASampleIsWhatTheDatabaseHolds(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	write := func(es ...holdfast.Event) {
		if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, es...) }); err != nil {
			t.Fatal(err)
		}
	}
	write(holdfast.Event{Topic: "orders", Type: "x", Key: "k", Time: time.Now().Add(-time.Hour)}, holdfast.Event{Topic: "orders", Type: "x", Key: "k", NotBefore: time.Now().Add(time.Hour)})
	pgtest.Exec(t, db, "update holdfast.scheduled set due_at = now() - interval '1 second'")
	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time)
		select 0, 'orders', 'k', n, 'record', now(), now() - interval '2 hours', n::text, '', 't', now() from generate_series(1, 3) n`)
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, first_at)
		select case when n < 4 then 'billing' else 'mail' end, 'orders', (n % 2)::text, n, 's', n::text, 't', now(), '', now() - interval '3 hours' from generate_series(1, 4) n`)
	pgtest.Exec(t, db, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('mail', 't', 'a', now() + interval '1 hour')")
	pgtest.Exec(t, db, `insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, hash) values
		('inbox', 'billing', 'r', 'open', '1', 's', 't', 'orders', 'k', now(), ''), ('inbox', 'billing', 'r', 'replaying', '2', 's', 't', 'orders', 'k', now(), ''),
		('inbox', 'billing', 'r', 'discarded', '3', 's', 't', 'orders', 'k', now(), ''), ('relay', '', 'r', 'open', '1', 's', 't', 'orders', 'k', now(), '')`)

	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, partition) values
		(1, 'gone', 'k', 9, 'topic', now(), '9', '', 't', now(), null), (1, 'orders', 'l', 10, 'partition', now(), '10', '', 't', now(), 2), (2, 'orders', 'm', 11, 'partition', now(), '11', '', 't', now(), 2),
		(2, 'orders', 'n', 12, 'partition', now(), '12', '', 't', now(), 3)`)
	pgtest.Exec(t, db, `insert into holdfast.relay (name, seen_until, trouble) values ('a', now() + interval '1 hour', ''), ('b', now() + interval '1 hour', 'dial'), ('dead', now() - interval '1 hour', 'dial');
		update holdfast.lane set owner = 'a', lease_until = now() + interval '1 hour' where lane = 0;
		insert into holdfast.consumer_position (consumer, topic, partition, position, held) values ('billing', 'orders', 0, 3, 'gone'), ('billing', 'orders', 1, 3, null), ('mail', 'orders', 0, 9, null)`)
	pgtest.Exec(t, db, `insert into holdfast.consumer_backfill (consumer, node, began_at, told_at, partitions, partitions_left, done, remaining, per_second, waits, ended_at, error) values
		('a', 'n', now(), now() - interval '1 hour', 1, 0, 5, 0, 1, null, now() - interval '1 hour', null),
		('b', 'n', now(), now() - interval '2 hours', 1, 1, 1, 7, 1, '9 events wait', null, null),
		('c', 'n', now(), now(), 1, 1, 1, 8, 0, 'the consumer is paused', null, null),
		('d', 'n', now(), now() - interval '3 hours', 1, 1, 1, 9, 0, null, now() - interval '3 hours', 'stopped')`)

	pgtest.Exec(t, db, `insert into holdfast.dependency (consumer, name, away, until) values ('billing', 'bank', true, now() - interval '1 hour'), ('billing', 'mail', false, now()), ('billing', 'stripe', true, now()), ('crm', 'bank', true, now())`)

	// A role that monitors and may see no payload can sample.
	monitor, _ := roletest.Login(t, db, "", roletest.Make(t, db)+"_reader")
	d, err := newDatabase(monitor, DatabaseConfig{Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.sample(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	near := func(d, want time.Duration) bool { return d >= want && d < want+time.Hour }
	if s.Lanes != 1 || !near(s.Oldest, time.Hour) || s.Waiting != 7 || !near(s.OldestWaiting, 2*time.Hour) || s.Scheduled != 1 {
		t.Errorf("got %+v", s)
	}
	if len(s.Stored) != 2 || s.Stored[0].Consumer != "billing" || s.Stored[0].Events != 3 || s.Stored[0].Keys != 2 || s.Stored[0].NoHandler != 3 || !near(seconds(s.Stored[0].Oldest), 3*time.Hour) ||
		s.Stored[1].Consumer != "mail" || s.Stored[1].Events != 1 || s.Stored[1].NoHandler != 0 {
		t.Errorf("stored: %+v", s.Stored)
	}
	if len(s.Letters) != 2 || s.Letters[0] != (openLetters{Origin: "inbox", Consumer: "billing", Open: 1}) || s.Letters[1] != (openLetters{Origin: "relay", Open: 1}) {
		t.Errorf("letters: %+v", s.Letters)
	}
	lanes := int(pgtest.Count(t, db, "select count(*) from holdfast.lane"))
	if s.Unowned != lanes-1 || s.Relays != 2 || s.Troubled != 1 || s.Empty != 3 || s.HeldTopics != 1 || s.HeldPartitions != 2 {
		t.Errorf("relays: %+v", s)
	}
	if len(s.Positions) != 2 || s.Positions[0] != (state.Progress{Consumer: "billing", Partitions: 2, Held: 1, Position: 6}) || s.Positions[1] != (state.Progress{Consumer: "mail", Partitions: 1, Position: 9}) {
		t.Errorf("positions: %+v", s.Positions)
	}
	for i := range s.Backfills {
		s.Backfills[i].Told = s.Backfills[i].Told.Truncate(time.Hour)
	}
	if want := []backfillOf{{Consumer: "b", Remaining: 7, Told: 2 * time.Hour}, {Consumer: "c", Remaining: 8, Waiting: true}, {Consumer: "d", Remaining: 9, Told: 3 * time.Hour},
		{Consumer: "a", Done: true, Told: time.Hour}}; !slices.Equal(s.Backfills, want) {
		t.Errorf("backfills: %+v, want %+v", s.Backfills, want)
	}
	away := map[string]float64{}
	for _, r := range s.readings() {
		if r.Index == 23 {
			away[strings.Join(r.Labels, " ")] = r.Value
		}
	}
	if want := map[string]float64{"billing bank": 0, "billing mail": 0, "billing stripe": 1, "crm bank": 1}; !maps.Equal(away, want) {
		t.Errorf("away: %v, want %v", away, want)
	}
	sizes := map[string]int64{}
	for _, of := range s.Sizes {
		sizes[of.Table] = of.Bytes
	}
	if sizes["log"] <= 0 || sizes["inbox"] <= 0 || len(sizes) != 10 {
		t.Errorf("sizes: %v", sizes)
	}
	// It is kept.
	pgtest.Exec(t, db, "delete from holdfast.parked")
	if again, err := d.sample(t.Context()); err != nil || again.Waiting != 7 || again.At != s.At {
		t.Errorf("it was read again: %+v, %v", again, err)
	}
}
