package migrations

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// outboxTable is the table in mapping.sql's first lines.
const outboxTable = `create table outbox (
	id            bigint generated always as identity primary key,
	event_id      uuid not null default gen_random_uuid(),
	topic         text not null,
	key           text not null,
	type          text not null,
	payload       jsonb not null,
	created_at    timestamptz not null default now(),
	published_at  timestamptz
)`

func intoTable(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	_, err := tx.Exec(ctx, "insert into outbox (event_id, topic, key, type, payload) values ($1, $2, $3, $4, $5::jsonb)", e.ID, e.Topic, e.Key, e.Type, string(e.Payload))
	return err
}

// fromTable is a turn of the relay that many have written: it locks rows, publishes them and marks them, in a transaction.
func fromTable(db *pgtest.DB, sender *kafka.Writer) func(context.Context) error {
	return func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select event_id::text, key, type, payload::text from outbox where published_at is null order by id limit 20 for update skip locked")
			if err != nil {
				return err
			}
			events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[oldEvent])
			if err != nil || len(events) == 0 {
				return err
			}
			if err := sender.WriteMessages(ctx, messages(events)...); err != nil {
				return err
			}
			var ids []string
			for _, e := range events {
				ids = append(ids, e.ID)
			}
			_, err = tx.Exec(ctx, "update outbox set published_at = now() where event_id = any($1::uuid[])", ids)
			return err
		})
	}
}

func TestTable_AHandWrittenOutboxTableMovesWhileWritersGoOn(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	s := setup(t, pgtest.New(t), "outbox-table")
	pgtest.Exec(t, s.Db, outboxTable)
	sender := s.sender()
	oldRelay := func() (stop func()) { return s.repeat("old relay", fromTable(s.Db, sender)) }
	consumer := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	stopOld, stopService := oldRelay(), s.write(intoTable)
	s.goesOn("the old relay publishes")

	s.run("mapping.sql")
	s.checks("insert into outbox (topic, key, type, payload) values ('', 'k', 'changed', '{}')", "topic is empty: name the Kafka topic")

	// A transaction that stays open makes the switch give up, and everything goes on as before.
	tx, err := s.Db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late := s.event("late", 1)
	if err := s.record(t.Context(), tx, late, 1, intoTable); err != nil {
		t.Fatal(err)
	}
	if err := s.try("switch.sql"); !isLockTimeout(err) {
		t.Errorf("switch.sql beside an open transaction: %v", err)
	}
	s.goesOn("the old relay publishes after a switch that failed")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	// The relay of holdfast and the old one run through the switch: the old one finds nothing any more.
	stopRelay := s.relay(nil)
	s.run("switch.sql")
	stopOld()
	s.goesOn("holdfast publishes")
	stopDirect := s.write(direct)
	s.goesOn("holdfast publishes what changed services write")

	// Back, and there again. Without a relay published.sql does not say true.
	stopDirect()
	stopRelay()
	s.Await("published.sql says that an event waits", func() bool { return !s.says("../published.sql") })
	s.run("rollback.sql")
	if s.says("../published.sql") {
		t.Error("published.sql says true, and an event waits")
	}
	stopRelay = s.relay(nil)
	s.awaitPublished()
	stopRelay()
	s.Await("a row waits for the old relay", func() bool { return s.Count("select count(*) from outbox where published_at is null") > 0 })
	s.refuses("finish.sql", "outbox has rows that are not published: run switch.sql first")
	stopOld = oldRelay()
	s.goesOn("the old relay publishes again")
	stopRelay = s.relay(nil)
	s.run("switch.sql")
	stopOld()
	stopDirect = s.write(direct)
	s.goesOn("holdfast publishes again")

	stopService()
	s.refuses("finish.sql", "a service has inserted into outbox within the last hour")
	pgtest.Exec(t, s.Db, "update outbox set created_at = created_at - interval '2 hours'")
	s.run("finish.sql")
	s.goesOn("holdfast publishes without the table")
	stopDirect()
	v := s.Finish([]func(){stopRelay}, []func(){consumer}, "billing")
	t.Log(v)
	v.MustHold(t)
	s.nothingTwice()
}

func TestTable_AServiceNeedsNoRightsToHoldfast(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	s := setup(t, pgtest.New(t), "outbox-table")
	pgtest.Exec(t, s.Db, outboxTable)
	s.run("mapping.sql")
	s.run("switch.sql")
	role := pgx.Identifier{"shop " + s.Topic()}.Sanitize()
	pgtest.Exec(t, s.Db, "create role "+role)
	t.Cleanup(func() { pgtest.Exec(t, s.Db, "drop owned by "+role); pgtest.Exec(t, s.Db, "drop role "+role) })
	pgtest.Exec(t, s.Db, "grant insert on outbox to "+role)
	e := s.event("k1", 1)
	err := pgx.BeginFunc(t.Context(), s.Db, func(tx pgx.Tx) error {
		pgtest.Exec(t, tx, "set local role "+role)
		return intoTable(t.Context(), tx, e)
	})
	if n := s.Count("select count(*) from holdfast.event where id = $1 and key = 'k1' and type = 'changed'", e.ID); err != nil || n != 1 {
		t.Errorf("%d events, %v", n, err)
	}
}

func TestTable_ASwitchWithTooMuchToMoveChangesNothing(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	s := setup(t, pgtest.New(t), "outbox-table")
	pgtest.Exec(t, s.Db, outboxTable)
	s.run("mapping.sql")
	pgtest.Exec(t, s.Db, "insert into outbox (topic, key, type, payload) select 'orders', 'k', 'changed', '{}' from generate_series(1, 2501)")
	// The bound of the file would take minutes on a busy machine.
	smaller := strings.Replace(s.text("switch.sql"), "constant bigint := 100000", "constant bigint := 2500", 1)
	if err := s.tryText(smaller); err == nil || !strings.Contains(err.Error(), "more than 2500 rows are not published yet: let the old relay catch up first") {
		t.Errorf("switch.sql: %v", err)
	}
	if n := s.Count("select count(*) from pg_trigger where tgname like 'holdfast%' and tgrelid = 'outbox'::regclass"); n != 0 {
		t.Errorf("%d triggers are there", n)
	}
	pgtest.Exec(t, s.Db, "delete from outbox where id = 1")
	if err := s.tryText(smaller); err != nil {
		t.Fatal(err)
	}
	if n := s.Count("select count(*) from holdfast.event"); n != 2500 {
		t.Errorf("%d of 2500 events were moved", n)
	}
	if n := s.Count("select count(*) from (select id, lag(id) over (order by seq) as before from (select e.seq, o.id from holdfast.event e join outbox o on o.event_id::text = e.id) x) y where before > id"); n != 0 {
		t.Errorf("%d events come before the one that was inserted before them", n)
	}
}
