package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// With Kafka away and 500 events waiting for 75 s, and with an hour of stored events, status said that nothing needs a person.
func TestStatusAges_StatusNeverSaysAllIsWellWhileEventsWait(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	db := installed(t)
	const write = `select holdfast.write('orders', 'k' || n, 'order.placed', '{}', "time" => now() - interval '%s') from generate_series(1, 500) n`
	const stored = `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at, errors)
		select 'billing', 'orders', 'k' || n %% 300, n, 's', n::text, 't', now(), '', case when n <= 300 then now() + interval '1 minute' else 'infinity' end, now() - interval '%s', '{boom}' from generate_series(1, 900) n`
	const parked = `insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time) values (3, 'orders', 'k', 1, '%s', now(), now() - interval '%s', 'e', 's', 't', now())`
	for _, c := range []struct {
		name, sql string
		args      []string
		says      string
		status    int
	}{
		{"events wait for 70 s", fmt.Sprintf(write, "70 seconds"), nil, "lanes 0 to 7 have events that are not published, the oldest of them for 1m1", 1},
		{"and the relay knows why", fmt.Sprintf(write, "70 seconds") + "; insert into holdfast.relay (name, seen_until, trouble) values ('r', now() + interval '1 minute', 'dial tcp: refused')", nil,
			"relay r gets no answer from the broker: check its address, its credentials and the network: dial tcp: refused", 1},
		{"events wait for 30 s", fmt.Sprintf(write, "30 seconds"), nil, "nothing needs a person", 0},
		{"events wait for 50 s, which is too long", fmt.Sprintf(write, "50 seconds"), []string{"--max-unpublished-age=40s"}, "not published", 1},
		{"events wait for long, which nobody minds", fmt.Sprintf(write, "75 minutes"), []string{"--max-unpublished-age=0"}, "nothing needs a person", 0},
		{"old events after one of the future", "select holdfast.write('orders', 'k1', 'order.placed', '{}', \"time\" => now() + interval '1 year'); " + fmt.Sprintf(write, "70 seconds"), nil, "lanes 0 to 7 have events that are not published, the oldest of them for 1m1", 1},
		{"a scheduled event that should be in the log", "insert into holdfast.scheduled (lane, due_at, id, type, topic, time) values (3, now() - interval '2 minutes', 'e', 't', 'orders', now())", nil, "lane 3 has events that are not published, the oldest of them for 2m", 1},
		{"a scheduled event", "insert into holdfast.scheduled (lane, due_at, id, type, topic, time) values (3, now() + interval '2 minutes', 'e', 't', 'orders', now())", nil, "nothing needs a person", 0},
		{"an hour of failing keys", fmt.Sprintf(stored, "1 hour"), nil, "consumer billing has 900 waiting events of 300 keys, the oldest for 1h0m", 1},
		{"ten minutes of failing keys", fmt.Sprintf(stored, "10 minutes"), nil, "nothing needs a person", 0},
		{"ten minutes, which is too long", fmt.Sprintf(stored, "10 minutes"), []string{"--max-waiting-age=9m"}, "the oldest for 10m", 1},
		{"a partition that has been down for long", fmt.Sprintf(parked, "partition", "16 minutes"), nil, "lane 3 has 1 event that has waited for more than 15 minutes", 1},
		{"an event that waits in a relay for 3 minutes, which is too long", fmt.Sprintf(parked, "record", "3 minutes"), []string{"--max-waiting-age=2m"}, "lane 3 has 1 event that has waited for more than 2 minutes", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			pgtest.Exec(t, db.Pool, "truncate holdfast.parked, holdfast.stored, holdfast.scheduled, holdfast.event_0, holdfast.relay")
			pgtest.Exec(t, db.Pool, "update holdfast.lane set owner = 'r', lease_until = now() + interval '1 minute', done = pg_current_snapshot()")
			pgtest.Exec(t, db.Pool, c.sql)
			wantStatus(t, c.status, c.says, append([]string{"status"}, c.args...)...)
		})
	}
}

func TestStatusAges_StatusSaysWhatAnOutageOfKafkaHolds(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	db := installed(t)
	pgtest.Exec(t, db.Pool, `select holdfast.write('orders', 'k' || n, 'order.placed', '{}', "time" => now() - interval '75 seconds') from generate_series(1, 500) n`)
	s := startSidecar(t, db, nil, "--brokers", "127.0.0.1:1")
	const noted = "select count(*) from holdfast.relay where trouble like '%connection refused%'"
	wait.Until(t, "the relay has noted that Kafka is away", func() bool { return pgtest.Count(t, db.Pool, noted) == 1 })
	wait.Until(t, "the sidecar owns all lanes", func() bool { return pgtest.Count(t, db.Pool, claimedLanes) == 8 })
	wait.Until(t, "status says what is wrong, and what holds the lanes", func() bool { // which have met it one after the other
		status, out, _ := call(t, "status")
		return status == 1 && strings.Contains(out, "relay the sidecar gets no answer from the broker: check its address, its credentials and the network: ") &&
			strings.Contains(out, "HELD BY") && strings.Contains(out, "broker: ") && strings.Contains(out, "connection refused")
	})
	s.stop(t, db)
}

func TestStatusAges_StatusShowsTheLagOfConsumers(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := installed(t)
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Topics: map[string]int{"orders": 2}})
	produce(t, cluster.Brokers, "orders", 1, 7)
	pgtest.Exec(t, db.Pool, `insert into holdfast.consumer_position (consumer, topic, partition, position, owner) values
		('billing', 'orders', 0, 0, 'n'), ('billing', 'orders', 1, 3, 'n'), ('billing', 'gone', 0, 5, 'n')`)
	out := wantStatus(t, 0, "nothing needs a person", "status", "--brokers", cluster.Brokers[0])
	for _, want := range []string{"orders  0  0  0  n", "orders  1  3  4  n", "gone  0  5  -  n"} {
		if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
			return strings.Contains(strings.Join(strings.Fields(line), "  "), want)
		}) {
			t.Errorf("status does not say %q:\n%s", want, out)
		}
	}
	if out := wantStatus(t, 0, "nothing needs a person", "status"); !strings.Contains(strings.Join(strings.Fields(out), " "), "orders 1 3 - n") {
		t.Errorf("status knows the lag without brokers:\n%s", out)
	}
	wantStatus(t, 1, "Kafka does not say where the partitions end, so the lag of consumers is not known", "status", "--brokers", "127.0.0.1:1")
}

// produce writes n records to a partition.
func produce(t *testing.T, brokers []string, topic string, partition, n int) {
	t.Helper()
	client := kafka.Client{Addr: kafka.TCP(brokers...)}
	var records []kafka.Record
	for range n {
		records = append(records, kafka.Record{Value: kafka.NewBytes([]byte("x"))})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer, err := client.Produce(ctx, &kafka.ProduceRequest{Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...)})
	if err == nil {
		err = answer.Error
	}
	if err != nil {
		t.Fatal(err)
	}
}

// doctor and the console go by the same limits as status without flags.
func TestStatusAges_TheLimitsOfStatusAreTheDefaults(t *testing.T) {
	t.Parallel()
	var c cli
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"status"}); err != nil || state.Limits(c.Status.Limits) != state.DefaultLimits {
		t.Errorf("%+v, %v", c.Status.Limits, err)
	}
}
