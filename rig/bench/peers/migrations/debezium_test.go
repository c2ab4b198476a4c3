package migrations

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// routerTable has the columns that Debezium's event router expects by default.
const routerTable = `create table outbox (
	id            uuid primary key,
	aggregatetype varchar(255) not null,
	aggregateid   varchar(255) not null,
	type          varchar(255) not null,
	payload       jsonb
)`

const routerPrefix = "outbox.event."

func intoRouter(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	_, err := tx.Exec(ctx, "insert into outbox (id, aggregatetype, aggregateid, type, payload) values ($1, $2, $3, $4, $5::jsonb)",
		e.ID, strings.TrimPrefix(e.Topic, routerPrefix), e.Key, e.Type, string(e.Payload))
	return err
}

// connector is a turn of what stands for Debezium, which is not in Go: it reads the table's inserts from the WAL, by the same
// plugin, slot and publication, publishes them with the headers id, ce_id and ce_type, and only then confirms the position.
func connector(s *service, sender *kafka.Writer) func(context.Context) error {
	return func(ctx context.Context) error {
		rows, err := s.Db.Query(ctx, "select data from pg_logical_slot_peek_binary_changes('debezium', null, 50, 'proto_version', '1', 'publication_names', 'dbz_publication')")
		if err != nil {
			return err
		}
		changes, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		var events []oldEvent
		var end uint64
		for _, change := range changes {
			switch change[0] {
			case 'I':
				columns, err := inserted(change)
				if err != nil {
					return err
				}
				events = append(events, oldEvent{ID: columns[0], Key: columns[2], Type: columns[3], Payload: columns[4]})
			case 'C': // flags, the commit's own position, the position after it
				end = binary.BigEndian.Uint64(change[10:])
			}
		}
		if end == 0 {
			return nil
		}
		if len(events) > 0 {
			if err := sender.WriteMessages(ctx, messages(events)...); err != nil {
				return err
			}
		}
		_, err = s.Db.Exec(ctx, "select pg_replication_slot_advance('debezium', $1::text::pg_lsn)", fmt.Sprintf("%X/%X", end>>32, uint32(end)))
		return err
	}
}

// inserted are the columns, as text, of pgoutput's message of an insert.
func inserted(message []byte) (columns []string, err error) {
	rest := bytes.NewReader(message[1+4+1:]) // after the relation's id and 'N'
	var count uint16
	err = binary.Read(rest, binary.BigEndian, &count)
	for range count {
		kind, readErr := rest.ReadByte()
		if err = errors.Join(err, readErr); err != nil || kind != 't' {
			return nil, fmt.Errorf("a column of kind %q, %v", kind, err)
		}
		var size uint32
		err = binary.Read(rest, binary.BigEndian, &size)
		text := make([]byte, min(int(size), rest.Len()))
		_, readErr = rest.Read(text)
		columns, err = append(columns, string(text)), errors.Join(err, readErr)
	}
	if err == nil && len(columns) != 5 {
		err = fmt.Errorf("the row has %d columns", len(columns))
	}
	return columns, err
}

func TestDebezium_DebeziumsOutboxMovesWhileItIsRead(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	settings := pgtest.NoSync()
	settings["wal_level"] = "logical"
	db := pgtest.On(t, pgtest.Own(t, pgtest.Options{Settings: settings}).DSN)
	s := setup(t, db, "debezium")
	s.Topics = []string{routerPrefix + s.Topic()}
	if err := s.Cluster.Server.CreateTopic(t.Context(), s.Topic(), 3, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Cluster.Server.DeleteTopic(context.Background(), s.Topic()) })
	for _, sql := range []string{routerTable, "create publication dbz_publication for table outbox",
		"select pg_create_logical_replication_slot('debezium', 'pgoutput')"} {
		pgtest.Exec(t, s.Db, sql)
	}
	sender := s.sender()
	debezium := func() (stop func()) { return s.repeat("Debezium", connector(s, sender)) }
	consumer := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	stopDebezium, stopService := debezium(), s.write(intoRouter)
	s.goesOn("Debezium publishes")
	s.run("mapping.sql")
	s.checks("insert into outbox values (gen_random_uuid(), 'no topic!', 'k', 'changed', '{}')",
		`topic is 'outbox.event.no topic!': at most 249 letters, digits, dots, underscores and hyphens, and not "." or ".."`)

	// Debezium goes on until it has all that was written before the switch; only then may holdfast publish.
	toHoldfast := func() (stopRelay func()) {
		s.run("switch.sql")
		s.Await("confirmed.sql says true", func() bool { return s.says("confirmed.sql") })
		stopDebezium()
		return s.relay(nil)
	}
	stopRelay := toHoldfast()
	s.goesOn("holdfast publishes")
	stopDirect := s.write(direct)
	s.goesOn("holdfast publishes what changed services write")

	// Back, and there again.
	stopDirect()
	s.run("rollback.sql")
	s.awaitPublished()
	stopRelay()
	stopDebezium = debezium()
	s.goesOn("Debezium publishes again")
	stopRelay = toHoldfast()
	stopDirect = s.write(direct)
	s.goesOn("holdfast publishes again")

	stopService()
	s.run("finish.sql")
	if n := s.Count("select count(*) from pg_replication_slots"); n != 0 {
		t.Errorf("%d slots are left, which keep the WAL", n)
	}
	s.goesOn("holdfast publishes without the table")
	stopDirect()
	v := s.Finish([]func(){stopRelay}, []func(){consumer}, "billing")
	t.Log(v)
	v.MustHold(t)

	// What was written between a switch and the stop of the connector is there twice, and what was written between that and
	// the rollback. Both have the same id and payload: an inbox handled each once.
	old, new, _ := s.published()
	both := 0
	for id := range old {
		if new[id] > 0 {
			both++
		}
	}
	if both == 0 || len(old) < some || len(new) < some {
		t.Errorf("published by Debezium %d, by holdfast %d, by both %d: want some of each", len(old), len(new), both)
	}
	t.Logf("published by Debezium %d, by holdfast %d, by both %d", len(old), len(new), both)
}
