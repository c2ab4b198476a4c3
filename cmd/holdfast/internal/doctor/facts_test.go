package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// wantFinding wants one of a check's findings to have a state, and to say something.
func wantFinding(t *testing.T, found []Finding, err error, state, says string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.State == state && strings.Contains(f.Says+"\n"+f.Command, says) {
			if (f.Command == "") != (state == OK) {
				t.Errorf("its command is %q: %+v", f.Command, f)
			}
			return
		}
	}
	t.Errorf("no finding is %s and says %q: %+v", state, says, found)
}

func of(db *pgtest.DB) *Doctor {
	return &Doctor{Pool: db.Pool, Schema: holdfast.SchemaConfig{Schema: "holdfast"}}
}

func TestFacts_DoctorNoticesASchemaThatHasDrifted(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	db := migrated.New(t)
	p := of(db)
	found, err := p.drift(t.Context())
	wantFinding(t, found, err, OK, "the schema has the hash of this build")
	for _, c := range []struct{ name, harm, says, mend string }{
		{"a column that somebody added", "alter table holdfast.inbox add column more text", "column inbox.more", "alter table holdfast.inbox drop column more"},
		{"an index that is gone", "drop index holdfast.stored_due", "lacks index stored_due", "create index stored_due on holdfast.stored (consumer, type, next_at, place) where next_at < 'infinity' and type <> ''"},
		{"a function that was changed", "create or replace function holdfast.lock_number(key text) returns integer language sql stable parallel safe as 'select 1'", "function lock_number", ""},
	} {
		pgtest.Exec(t, db.Pool, c.harm)
		found, err := p.drift(t.Context())
		wantFinding(t, found, err, Fail, "the hash of the schema is ")
		wantFinding(t, found, err, Fail, c.says)
		if c.mend != "" {
			pgtest.Exec(t, db.Pool, c.mend)
			found, err = p.drift(t.Context())
			wantFinding(t, found, err, OK, "the schema has the hash of this build")
		}
	}
	// What people may add or tune does not count, nor does the name of the schema.
	other := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), other.Pool, holdfast.SchemaConfig{Schema: "events", Lanes: 3, MaxPayload: 1000}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, other.Pool, "create index mine on events.inbox (received_at); alter table events.inbox set (fillfactor = 50); create table events.notes (n int)")
	found, err = (&Doctor{Pool: other.Pool, Schema: holdfast.SchemaConfig{Schema: "events"}}).drift(t.Context())
	wantFinding(t, found, err, OK, "the schema has the hash of this build")
	found, err = (&Doctor{Pool: other.Pool, Schema: holdfast.SchemaConfig{Schema: "none"}}).drift(t.Context())
	wantFinding(t, found, err, Fail, "holdfast migrate")
}

func TestFacts_DoctorNoticesMissingRights(t *testing.T) {
	db := migrated.New(t)
	role := "doctor_" + db.Config().ConnConfig.Database
	pgtest.Exec(t, db.Pool, "create role "+role+" login password 'doctor'; grant usage on schema holdfast to "+role)
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "drop owned by "+role+"; drop role "+role) })
	p := &Doctor{Pool: db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "doctor" }), Schema: holdfast.SchemaConfig{Schema: "holdfast"}}
	found, err := p.rights(t.Context(), "producer")
	wantFinding(t, found, err, Fail, "to be a producer it lacks")
	pgtest.Exec(t, db.Pool, "grant execute on all functions in schema holdfast to "+role)
	found, err = p.rights(t.Context(), "producer")
	wantFinding(t, found, err, OK, "the user has the rights of a producer")
	needs, found := p.Needs(t.Context())
	wantFinding(t, found, nil, NotMade, "this user may not read what needs a person")
	if needs != nil {
		t.Errorf("of what it may not read %v needs a person", needs)
	}
	found, err = of(db).rights(t.Context(), "")
	wantFinding(t, found, err, Warn, "is a superuser")
}

// Nothing is wrong with a service because its user may not look at what belongs to others.
func TestFacts_DoctorFailsNoServiceForWhatItMayNotSee(t *testing.T) {
	db := migrated.New(t)
	for _, role := range []string{"producer", "relay", "consumer", "web"} {
		p := &Doctor{Pool: roletest.As(t, db, role), Schema: holdfast.SchemaConfig{Schema: "holdfast"}}
		hidden := 0
		for _, f := range p.Examine(t.Context(), Options{Role: role, Pause: time.Millisecond}) {
			if f.State == Fail {
				t.Errorf("a %s: %+v", role, f)
			}
			if f.State == NotMade && strings.Contains(f.Says, "may not look at it") && strings.Contains(f.Command, "holdfast_reader") {
				hidden++
			}
		}
		if hidden == 0 {
			t.Errorf("a %s may look at all of it", role)
		}
	}
}

func TestFacts_DoctorNoticesWhatHoldsXminAndTheLog(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	db := migrated.New(t)
	p := of(db)
	p.patience = 1
	found, err := p.xmin(t.Context())
	wantFinding(t, found, err, OK, "no transaction, slot or standby")
	found, err = p.log(t.Context())
	wantFinding(t, found, err, OK, "no transaction has held a segment")

	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	pid := pgtest.Count(t, tx, "select pg_backend_pid()")
	pgtest.Exec(t, tx, "select holdfast.write('orders', 'k', 't', '')")
	pgtest.Exec(t, db.Pool, "select pg_sleep(3)") // sleep: the age of a transaction is what is looked at
	found, err = p.xmin(t.Context())
	wantFinding(t, found, err, Warn, fmt.Sprintf("pg_terminate_backend(%d)", pid))
	found, err = p.log(t.Context())
	wantFinding(t, found, err, Warn, fmt.Sprintf("pg_terminate_backend(%d)", pid))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err = p.xmin(t.Context())
	wantFinding(t, found, err, OK, "no transaction, slot or standby")

	gid := "doctor " + db.Config().ConnConfig.Database
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		pgtest.Exec(t, tx, "select holdfast.write('orders', 'k', 't', '')")
		pgtest.Exec(t, tx, "prepare transaction '"+gid+"'")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "rollback prepared '"+gid+"'") })
	pgtest.Exec(t, db.Pool, "select pg_sleep(3)") // sleep: as above
	found, err = p.xmin(t.Context())
	wantFinding(t, found, err, Warn, "rollback prepared '"+gid+"'")
	found, err = p.log(t.Context())
	wantFinding(t, found, err, Warn, "rollback prepared '"+gid+"'")
}

func TestFacts_DoctorNoticesAPoolerAndItsMode(t *testing.T) {
	db := migrated.New(t)
	found, err := of(db).pooler(t.Context())
	if err != nil || len(found) != 1 || found[0].State != OK || strings.Contains(found[0].Says, "transaction mode") {
		t.Errorf("without a pooler: %+v, %v", found, err)
	}
	refusing, err := pgxpool.New(t.Context(), pgtest.StatementBouncer(t, db)+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer refusing.Close()
	found, err = (&Doctor{Pool: refusing}).pooler(t.Context())
	wantFinding(t, found, err, Fail, "a pooler in statement mode is before Postgres: it refuses transactions")
	dsn := pgtest.Bouncer(t, db)
	for mode, want := range map[string]struct{ state, says string }{
		"exec":            {OK, "a pooler in transaction mode is before Postgres, and pgx prepares no statement by name"},
		"cache_statement": {Warn, "default_query_exec_mode=exec"},
	} {
		config, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.DefaultQueryExecMode = map[string]pgx.QueryExecMode{"exec": pgx.QueryExecModeExec, "cache_statement": pgx.QueryExecModeCacheStatement}[mode]
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		found, err := (&Doctor{Pool: pool}).pooler(t.Context())
		wantFinding(t, found, err, want.state, want.says)
	}
}

func TestFacts_DoctorNoticesTwoGroupsOfOneConsumer(t *testing.T) {
	db := migrated.New(t)
	p := of(db)
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, group_id) values ('billing', 'orders', 0, 'a'), ('billing', 'orders', 1, 'a'), ('mail', 'orders', 0, 'b')")
	found, err := p.twice(t.Context(), time.Millisecond)
	wantFinding(t, found, err, OK, "each consumer has one consumer group")
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_position set group_id = 'c' where consumer = 'billing' and partition = 1")
	found, err = p.twice(t.Context(), time.Millisecond)
	wantFinding(t, found, err, Fail, "groups a, c share consumer billing")

	// Each takes all partitions from the other, so that at no time two groups are to be seen.
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_position set group_id = 'a' where consumer = 'billing'")
	ctx, stop := context.WithCancel(t.Context())
	swapped := make(chan struct{})
	t.Cleanup(func() { stop(); <-swapped })
	go func() {
		defer close(swapped)
		for ctx.Err() == nil {
			_, _ = db.Pool.Exec(ctx, "update holdfast.consumer_position set group_id = case group_id when 'a' then 'c' else 'a' end where consumer = 'billing'")
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	wait.Until(t, "doctor sees both groups", func() bool {
		found, err := p.twice(t.Context(), 30*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found, func(f Finding) bool {
			return f.State == Fail && strings.Contains(f.Says, "groups a, c share consumer billing")
		})
	})
}

func TestFacts_DoctorNoticesTopicsThatAreSetUpWrong(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	db := migrated.New(t)
	p := of(db)
	cluster := kafkatest.New(t)
	small, large := cluster.Topic(t, 1, "max.message.bytes", "2000"), cluster.Topic(t, 2, "max.message.bytes", "2000000")
	client := NewKafka(kafkago.Connection{Brokers: cluster.Brokers})
	defer client.Close()
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_position (consumer, topic, partition) values ('billing', 'gone.for.good', 0)")
	found, err := p.kafka(t.Context(), client, []string{small, large})
	wantFinding(t, found, err, OK, "the brokers answer; 3 topics checked")
	wantFinding(t, found, err, Fail, "--add-config max.message.bytes=1048576")
	wantFinding(t, found, err, Fail, "kafka-topics.sh --create --topic gone.for.good")
	// Asking whether it is hidden has not created it. The client reads the topics afresh every few seconds: so another one is asked.
	other := NewKafka(kafkago.Connection{Brokers: cluster.Brokers})
	defer other.Close()
	again, err := p.kafka(t.Context(), other, nil)
	wantFinding(t, again, err, Fail, "kafka-topics.sh --create --topic gone.for.good")
	wantFinding(t, found, err, Warn, "a partition has one replica")
	for _, f := range found {
		if f.Check == "topic "+large && strings.Contains(f.Says, "max.message.bytes") && f.State != OK {
			t.Errorf("a topic of 2 MB: %+v", f)
		}
	}
	dead := NewKafka(kafkago.Connection{Brokers: []string{"127.0.0.1:1"}})
	defer dead.Close()
	found, err = p.kafka(t.Context(), dead, nil)
	wantFinding(t, found, err, Fail, "no broker answers: check the address, the network, and --tls and --sasl-mechanism: ")
	wantFinding(t, found, err, Fail, "holdfast doctor --brokers HOST:PORT,... --tls")
	found, err = p.kafka(t.Context(), nil, nil)
	wantFinding(t, found, err, NotMade, "pass --brokers")
}
