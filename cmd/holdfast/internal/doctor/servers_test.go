package doctor

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
)

// A query on a standby that tells its primary of it (hot_standby_feedback) keeps dead rows on the primary. With a slot it is the
// slot that holds them.
func TestServers_DoctorNoticesAStandbyThatHoldsXmin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, slot, says, command string }{
		{"a standby", "", "holds xmin for ", "hot_standby_feedback = off"},
		{"its slot", "archive", "replication slot 'archive' has held xmin for ", "pg_drop_replication_slot('archive')"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
			db := pgtest.On(t, server.DSN)
			if c.slot != "" {
				pgtest.Exec(t, db.Pool, "select pg_create_physical_replication_slot($1)", c.slot)
			}
			standby, err := pgtest.InitStandby(t.Context(), server, pgtest.Options{Settings: map[string]string{
				"hot_standby_feedback": "on", "wal_receiver_status_interval": "1", "primary_slot_name": c.slot}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(standby.Stop)
			there, err := pgx.Connect(t.Context(), standby.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer there.Close(t.Context())
			if _, err := there.Exec(t.Context(), "begin isolation level repeatable read; select 1"); err != nil {
				t.Fatal(err)
			}
			p := of(db)
			p.patience, p.behind = 3600, 1000
			found, err := p.xmin(t.Context())
			wantFinding(t, found, err, OK, "no transaction, slot or standby has held xmin")
			pgtest.Exec(t, db.Pool, "do $$ begin for i in 1..1500 loop perform pg_current_xact_id(); commit; end loop; end $$")
			wait.Until(t, "doctor sees it", func() bool {
				found, err = p.xmin(t.Context())
				return err != nil || found[0].State == Warn
			})
			wantFinding(t, found, err, Warn, c.says)
			wantFinding(t, found, err, Warn, c.command)
		})
	}
}

// The server's clock cannot be set here. But a schema before pg_catalog in search_path may have a clock of its own.
func TestServers_DoctorNoticesAClockThatIsWrong(t *testing.T) {
	db := migrated.New(t)
	found, err := of(db).clock(t.Context())
	wantFinding(t, found, err, OK, "agrees with the database's")
	pgtest.Exec(t, db.Pool, `create schema late;
		create function late.clock_timestamp() returns timestamptz language sql as $$ select pg_catalog.clock_timestamp() - interval '1 hour 30 seconds' $$`)
	pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "late, pg_catalog" })
	found, err = (&Doctor{Pool: pool}).clock(t.Context())
	wantFinding(t, found, err, Warn, "the clock of this machine is -1h0m")
}

func TestServers_DoctorNoticesTopicsThatAreForbidden(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	db := migrated.New(t)
	cluster := kafkatest.Own(t, "authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found", "true")
	secret, closed := cluster.Topic(t, 1), cluster.Topic(t, 1)
	client := NewKafka(kafkago.Connection{Brokers: cluster.Brokers})
	defer client.Close()
	deny := func(topic string, operation kafka.ACLOperationType) {
		answer, err := client.CreateACLs(t.Context(), &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			ResourcePatternType: kafka.PatternTypeLiteral, Principal: "User:ANONYMOUS", Host: "*", Operation: operation, PermissionType: kafka.ACLPermissionTypeDeny}}})
		if err != nil || len(answer.Errors) > 0 && answer.Errors[0] != nil {
			t.Fatal(answer, err)
		}
	}
	deny(secret, kafka.ACLOperationTypeDescribe)
	// Where a topic has a rule, only what a rule allows is allowed.
	if _, err := client.CreateACLs(t.Context(), &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{{ResourceType: kafka.ResourceTypeTopic, ResourceName: closed,
		ResourcePatternType: kafka.PatternTypeLiteral, Principal: "User:ANONYMOUS", Host: "*", Operation: kafka.ACLOperationTypeDescribe, PermissionType: kafka.ACLPermissionTypeAllow}}}); err != nil {
		t.Fatal(err)
	}
	var found []Finding
	wait.Until(t, "the rules hold", func() bool {
		var err error
		if found, err = of(db).kafka(t.Context(), client, []string{secret, closed}); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found, func(f Finding) bool { return f.Check == "topic "+secret && f.State == Fail })
	})
	wantFinding(t, found, nil, Fail, "this user may not use the topic")
	wantFinding(t, found, nil, Fail, "kafka-acls.sh --add --topic "+secret)
	wantFinding(t, found, nil, Warn, "this user may not read the topic's configuration")
}

// Three brokers are three nodes of the imitation: one real broker has one replica of everything.
func TestServers_DoctorNoticesAcknowledgementsThatCountTooFewOrTooMany(t *testing.T) {
	db := migrated.New(t)
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Nodes: 3})
	client := NewKafka(kafkago.Connection{Brokers: cluster.Brokers})
	defer client.Close()
	topics := []string{"few", "all", "fit"}
	for i, least := range []string{"1", "3", "2"} {
		answer, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topics[i], NumPartitions: 1, ReplicationFactor: 3,
			ConfigEntries: []kafka.ConfigEntry{{ConfigName: "min.insync.replicas", ConfigValue: least}}}}})
		if err != nil || answer.Errors[topics[i]] != nil {
			t.Fatal(answer, err)
		}
	}
	found, err := of(db).kafka(t.Context(), client, topics)
	wantFinding(t, found, err, Warn, "min.insync.replicas is 1: an acknowledged event may be on one broker only")
	wantFinding(t, found, err, Warn, "min.insync.replicas is 3 of 3 replicas: one broker that restarts stops all writing")
	wantFinding(t, found, err, OK, "3 replicas, min.insync.replicas 2")
}
