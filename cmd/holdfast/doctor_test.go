package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
)

// wantFinding wants one of a check's findings to have a state, and to say something.
func wantFinding(t *testing.T, found []finding, err error, state, says string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.State == state && strings.Contains(f.Says+"\n"+f.Command, says) {
			if (f.Command == "") != (state == stateOK) {
				t.Errorf("its command is %q: %+v", f.Command, f)
			}
			return
		}
	}
	t.Errorf("no finding is %s and says %q: %+v", state, says, found)
}

func patientOf(db *pgtest.DB) *patient {
	return &patient{pool: db.Pool, schema: holdfast.SchemaConfig{Schema: "holdfast"}}
}

func TestDoctorNoticesASchemaThatHasDrifted(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	db := installed(t)
	p := patientOf(db)
	found, err := p.drift(t.Context())
	wantFinding(t, found, err, stateOK, "the schema has the hash of this build")
	for _, c := range []struct{ name, harm, says, mend string }{
		{"a column that somebody added", "alter table holdfast.inbox add column more text", "column inbox.more", "alter table holdfast.inbox drop column more"},
		{"an index that is gone", "drop index holdfast.stored_due", "lacks index stored_due", "create index stored_due on holdfast.stored (consumer, type, next_at, place) where next_at < 'infinity' and type <> ''"},
		{"a function that was changed", "create or replace function holdfast.lock_number(key text) returns integer language sql stable parallel safe as 'select 1'", "function lock_number", ""},
	} {
		pgtest.Exec(t, db.Pool, c.harm)
		found, err := p.drift(t.Context())
		wantFinding(t, found, err, stateFail, "the hash of the schema is ")
		wantFinding(t, found, err, stateFail, c.says)
		if c.mend != "" {
			pgtest.Exec(t, db.Pool, c.mend)
			found, err = p.drift(t.Context())
			wantFinding(t, found, err, stateOK, "the schema has the hash of this build")
		}
	}
	// What people may add or tune does not count, nor does the name of the schema.
	other := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), other.Pool, holdfast.SchemaConfig{Schema: "events", Lanes: 3, MaxPayload: 1000}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, other.Pool, "create index mine on events.inbox (received_at); alter table events.inbox set (fillfactor = 50); create table events.notes (n int)")
	found, err = (&patient{pool: other.Pool, schema: holdfast.SchemaConfig{Schema: "events"}}).drift(t.Context())
	wantFinding(t, found, err, stateOK, "the schema has the hash of this build")
	found, err = (&patient{pool: other.Pool, schema: holdfast.SchemaConfig{Schema: "none"}}).drift(t.Context())
	wantFinding(t, found, err, stateFail, "holdfast migrate")
}

func TestDoctorNoticesMissingRights(t *testing.T) {
	db := installed(t)
	role := "doctor_" + db.Config().ConnConfig.Database
	pgtest.Exec(t, db.Pool, "create role "+role+" login password 'doctor'; grant usage on schema holdfast to "+role)
	t.Cleanup(func() { pgtest.Exec(t, db.Pool, "drop owned by "+role+"; drop role "+role) })
	p := &patient{pool: db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "doctor" }), schema: holdfast.SchemaConfig{Schema: "holdfast"}}
	found, err := p.rights(t.Context(), "producer")
	wantFinding(t, found, err, stateFail, "to be a producer it lacks")
	pgtest.Exec(t, db.Pool, "grant execute on all functions in schema holdfast to "+role)
	found, err = p.rights(t.Context(), "producer")
	wantFinding(t, found, err, stateOK, "the user has the rights of a producer")
	needs, found := p.needs(t.Context())
	wantFinding(t, found, nil, stateSkip, "this user may not read what needs a person")
	var out bytes.Buffer
	if needy, err := (&doctorCmd{}).print(&out, found, needs); needy || err != nil || strings.Contains(out.String(), "nothing needs a person") {
		t.Errorf("needy %v, %v: %s", needy, err, out.String())
	}
	found, err = patientOf(db).rights(t.Context(), "")
	wantFinding(t, found, err, stateWarn, "is a superuser")
}

func TestDoctorNoticesWhatHoldsXminAndTheLog(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	db := installed(t)
	p := patientOf(db)
	p.patience = 1
	found, err := p.xmin(t.Context())
	wantFinding(t, found, err, stateOK, "no transaction, slot or standby")
	found, err = p.log(t.Context())
	wantFinding(t, found, err, stateOK, "no transaction has held a segment")

	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	pid := pgtest.Count(t, tx, "select pg_backend_pid()")
	pgtest.Exec(t, tx, "select holdfast.write('orders', 'k', 't', '')")
	pgtest.Exec(t, db.Pool, "select pg_sleep(3)") // sleep: the age of a transaction is what is looked at
	found, err = p.xmin(t.Context())
	wantFinding(t, found, err, stateWarn, fmt.Sprintf("pg_terminate_backend(%d)", pid))
	found, err = p.log(t.Context())
	wantFinding(t, found, err, stateWarn, fmt.Sprintf("pg_terminate_backend(%d)", pid))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err = p.xmin(t.Context())
	wantFinding(t, found, err, stateOK, "no transaction, slot or standby")

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
	wantFinding(t, found, err, stateWarn, "rollback prepared '"+gid+"'")
	found, err = p.log(t.Context())
	wantFinding(t, found, err, stateWarn, "rollback prepared '"+gid+"'")
}

func TestDoctorNoticesAPoolerAndItsMode(t *testing.T) {
	db := installed(t)
	found, err := patientOf(db).pooler(t.Context())
	if err != nil || len(found) != 1 || found[0].State != stateOK || strings.Contains(found[0].Says, "transaction mode") {
		t.Errorf("without a pooler: %+v, %v", found, err)
	}
	refusing, err := pgxpool.New(t.Context(), pgtest.StatementBouncer(t, db)+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer refusing.Close()
	found, err = (&patient{pool: refusing}).pooler(t.Context())
	wantFinding(t, found, err, stateFail, "a pooler in statement mode is before Postgres: it refuses transactions")
	dsn := pgtest.Bouncer(t, db)
	for mode, want := range map[string]struct{ state, says string }{
		"exec":            {stateOK, "a pooler in transaction mode is before Postgres, and pgx prepares no statement by name"},
		"cache_statement": {stateWarn, "default_query_exec_mode=exec"},
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
		found, err := (&patient{pool: pool}).pooler(t.Context())
		wantFinding(t, found, err, want.state, want.says)
	}
}

func TestDoctorNoticesTwoRelaysOfOneName(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := installed(t)
	p := patientOf(db)
	one := startSidecar(t, db, nil, "--brokers", "127.0.0.1:1", "--lease", "1s")
	wantUntil(t, p, "no relay claims its own lanes again")
	two := startSidecar(t, db, nil, "--brokers", "127.0.0.1:1", "--lease", "1s")
	wantUntil(t, p, "relay the sidecar has claimed ")
	_, _ = one.Process.Kill(), two.Process.Kill()
}

// wantUntil looks at the names of relays until the finding says it.
func wantUntil(t *testing.T, p *patient, says string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		found, err := p.twice(t.Context(), 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(found[0].Says, says) && pgtest.Count(t, p.pool, claimedLanes) > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("doctor does not say %q: %+v", says, found)
		}
	}
}

func TestDoctorNoticesTwoGroupsOfOneConsumer(t *testing.T) {
	db := installed(t)
	p := patientOf(db)
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, group_id) values ('billing', 'orders', 0, 'a'), ('billing', 'orders', 1, 'a'), ('mail', 'orders', 0, 'b')")
	found, err := p.twice(t.Context(), time.Millisecond)
	wantFinding(t, found, err, stateOK, "each consumer has one consumer group")
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_position set group_id = 'c' where consumer = 'billing' and partition = 1")
	found, err = p.twice(t.Context(), time.Millisecond)
	wantFinding(t, found, err, stateFail, "groups a, c share consumer billing")

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
		return slices.ContainsFunc(found, func(f finding) bool {
			return f.State == stateFail && strings.Contains(f.Says, "groups a, c share consumer billing")
		})
	})
}

func TestDoctorNoticesTopicsThatAreSetUpWrong(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	db := installed(t)
	p := patientOf(db)
	cluster := kafkatest.New(t)
	small, large := cluster.Topic(t, 1, "max.message.bytes", "2000"), cluster.Topic(t, 2, "max.message.bytes", "2000000")
	client := newKafkaClient(kafkago.Connection{Brokers: cluster.Brokers})
	defer client.close()
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_position (consumer, topic, partition) values ('billing', 'gone.for.good', 0)")
	found, err := p.kafka(t.Context(), client, []string{small, large})
	wantFinding(t, found, err, stateOK, "the brokers answer; 3 topics checked")
	wantFinding(t, found, err, stateFail, "--add-config max.message.bytes=1048576")
	wantFinding(t, found, err, stateFail, "kafka-topics.sh --create --topic gone.for.good")
	// Asking whether it is hidden has not created it. The client reads the topics afresh every few seconds: so another one is asked.
	other := newKafkaClient(kafkago.Connection{Brokers: cluster.Brokers})
	defer other.close()
	again, err := p.kafka(t.Context(), other, nil)
	wantFinding(t, again, err, stateFail, "kafka-topics.sh --create --topic gone.for.good")
	wantFinding(t, found, err, stateWarn, "a partition has one replica")
	for _, f := range found {
		if f.Check == "topic "+large && strings.Contains(f.Says, "max.message.bytes") && f.State != stateOK {
			t.Errorf("a topic of 2 MB: %+v", f)
		}
	}
	dead := newKafkaClient(kafkago.Connection{Brokers: []string{"127.0.0.1:1"}})
	defer dead.close()
	found, err = p.kafka(t.Context(), dead, nil)
	wantFinding(t, found, err, stateFail, "no broker answers")
	found, err = p.kafka(t.Context(), nil, nil)
	wantFinding(t, found, err, stateSkip, "pass --brokers")
}

func TestDoctorPrintsEachCheckAndItsCommand(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	db := installed(t)
	out := wantStatus(t, 0, "the schema has the hash of this build", "doctor", "--pause", "1ms", "--workers", "2", "--pool-size", "5")
	for _, want := range []string{"add pool_max_conns=6 to the connection string", "the clock of this machine agrees", "connections are used", "each consumer has one consumer group", "no relay claims its own lanes again", "\nnothing needs a person\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not say %q:\n%s", want, out)
		}
	}
	// It ends with the list of status.
	pgtest.Exec(t, db.Pool, "insert into holdfast.pause (topic, by, reason) values ('orders', 'ann', 'a test')")
	const paused = ", by ann: holdfast resume --topic orders --reason WHY"
	wantStatus(t, 1, paused, "status")
	wantStatus(t, 1, paused, "doctor", "--pause", "1ms")
	wantStatus(t, 1, paused, "doctor", "--pause", "1ms", "--json")
	pgtest.Exec(t, db.Pool, "delete from holdfast.pause")
	pgtest.Exec(t, db.Pool, "drop index holdfast.stored_due")
	out = wantStatus(t, 1, `"state":"fail"`, "doctor", "--pause", "1ms", "--json")
	var object struct{ Checks []finding }
	if err := json.Unmarshal([]byte(out), &object); err != nil || len(object.Checks) < 9 || object.Checks[0].Check != "schema" || object.Checks[0].Command != "holdfast migrate --print" {
		t.Errorf("%v: %s", err, out)
	}
	wantStatus(t, 2, "--sasl-user is empty", "doctor", "--brokers", "127.0.0.1:1", "--sasl-mechanism", "plain")
}
