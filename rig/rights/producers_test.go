package rights

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
)

// doors are all ways in which a producer writes an event.
var doors = map[string]func(ctx context.Context, tx pgx.Tx, topic, source string) error{
	"outbox.Write": func(ctx context.Context, tx pgx.Tx, topic, source string) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: topic, Source: source, Type: "t"})
	},
	"outbox.Write of a scheduled one": func(ctx context.Context, tx pgx.Tx, topic, source string) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: topic, Source: source, Type: "t", NotBefore: time.Now().Add(time.Hour)})
	},
	"outbox.Queue": func(ctx context.Context, tx pgx.Tx, topic, source string) error {
		batch := &pgx.Batch{}
		if err := outbox.Queue(batch, holdfast.Event{Topic: topic, Source: source, Type: "t"}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	},
	"write": func(ctx context.Context, tx pgx.Tx, topic, source string) error {
		_, err := tx.Exec(ctx, "select holdfast.write($1, 'k', 't', null, source => $2)", topic, source)
		return err
	},
	"write of a scheduled one": func(ctx context.Context, tx pgx.Tx, topic, source string) error {
		_, err := tx.Exec(ctx, "select holdfast.write($1, 'k', 't', null, source => $2, not_before => now() + interval '1 hour')", topic, source)
		return err
	},
	"append_one": func(ctx context.Context, tx pgx.Tx, topic, source string) error {
		_, err := tx.Exec(ctx, "select holdfast.append_one('e', $2, 't', $1, '', null, null, null)", topic, source)
		return err
	},
	"append": func(ctx context.Context, tx pgx.Tx, topic, source string) error {
		_, err := tx.Exec(ctx, "select holdfast.append('{e}', array[$2], '{t}', array[$1], '{\"\"}', '{null}', null, null, null, null)", topic, source)
		return err
	},
}

// through tries every door, and wants each to say the same: nothing, or the text.
func through(t *testing.T, pool *pgxpool.Pool, role, topic, source, want string) {
	t.Helper()
	for name, write := range doors {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if role != "" {
			pgtest.Exec(t, tx, "set local role "+role)
		}
		err = write(t.Context(), tx, topic, source)
		_ = tx.Rollback(t.Context())
		var pg *pgconn.PgError
		if want == "" && err != nil || want != "" && (!errors.As(err, &pg) || pg.Code != "42501" || pg.Message != "write event: "+want) {
			t.Errorf("%s to %s from %s: %v, want %q", name, topic, source, err, want)
		}
		if want != "" && strings.HasPrefix(name, "outbox") && name != "outbox.Queue" &&
			(!errors.Is(err, sqlschema.ErrNoRights) || !strings.Contains(err.Error(), "an administrator binds users to topics") || strings.Contains(err.Error(), "grant")) {
			t.Errorf("%s says %v, which does not help", name, err)
		}
	}
}

func TestProducers_ABoundProducerWritesOnlyToItsTopics(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	prefix := roletest.Make(t, db)
	producer := prefix + "_producer"
	bind := func(role, topic, source string) {
		pgtest.Exec(t, db.Pool, "insert into holdfast.producer_binding (role, topic, source) values ($1, $2, $3)", role, topic, source)
	}
	shop, user := roletest.Login(t, db, "", producer)
	free, _ := roletest.Login(t, db, "", producer)
	through(t, shop, "", "payments", "bank", "") // Nobody is bound yet.
	bind(user, "orders.*", "shop")
	bind(user, "mail", "*")
	topics := "user " + user + " may write to mail, orders.* only (table producer_binding)"
	sources := "user " + user + " may write to topic orders.placed with source 'shop' only (table producer_binding)"
	for _, c := range []struct{ topic, source, want string }{
		{"orders.placed", "shop", ""}, {"orders.", "shop", ""}, {"mail", "anything", ""}, {"mail", "", ""},
		{"payments", "shop", "topic is 'payments': " + topics}, {"orders", "shop", "topic is 'orders': " + topics}, {"mail2", "shop", "topic is 'mail2': " + topics},
		{"Mail", "shop", "topic is 'Mail': " + topics},
		{"orders.placed", "bank", "source is 'bank': " + sources}, {"orders.placed", "", "source is '': " + sources}, {"orders.placed", "shop2", "source is 'shop2': " + sources},
	} {
		through(t, shop, "", c.topic, c.source, c.want)
	}
	err := pgx.BeginFunc(t.Context(), shop, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{Topic: "mail", Type: "t"}, holdfast.Event{Topic: "orders.placed", Source: "shop", Type: "t"}, holdfast.Event{Topic: "payments", Source: "shop", Type: "t"})
	})
	if err == nil || !strings.Contains(err.Error(), "topic is 'payments': "+topics) || pgtest.Count(t, db.Pool, "select count(*) from holdfast.event") != 0 {
		t.Errorf("one of three events: %v", err)
	}
	through(t, shop, producer, "payments", "shop", "topic is 'payments': "+topics) // after set role
	through(t, free, "", "payments", "bank", "")                                   // who is not listed
	through(t, db.Pool, "", "payments", "bank", "")                                // a superuser
	owner, _ := roletest.Login(t, db, "", prefix+"_owner")
	through(t, owner, "", "payments", "bank", "")

	// A binding of a group holds for its members, also without inheritance, and in a function that runs with others' rights.
	_, group := roletest.Login(t, db, "")
	bind(group, "invoices", "billing")
	member, name := roletest.Login(t, db, "noinherit", producer, group)
	want := "topic is 'payments': user " + name + " may write to invoices only (table producer_binding)"
	through(t, member, producer, "payments", "billing", want)
	through(t, member, producer, "invoices", "billing", "")
	pgtest.Exec(t, db.Pool, `create function public.place() returns text language sql security definer as $$ select holdfast.write('payments', '', 't', null) $$`)
	if _, err := member.Exec(t.Context(), "select public.place()"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("in a function of a superuser: %v", err)
	}
	pgtest.Exec(t, db.Pool, "alter role "+group+" rename to "+group+"x") // The binding stays.
	defer pgtest.Exec(t, db.Pool, "alter role "+group+"x rename to "+group)
	through(t, member, producer, "payments", "billing", want)
	pgtest.Exec(t, db.Pool, "delete from holdfast.producer_binding")
	through(t, shop, "", "payments", "bank", "")
	for _, bad := range []string{"", "a b", "*.dlq", "a**"} {
		if _, err := db.Exec(t.Context(), "insert into holdfast.producer_binding (role, topic) values ($1, $2)", user, bad); err == nil || !strings.Contains(err.Error(), "topic_is_a_topic_or_a_prefix") {
			t.Errorf("topic %q: %v", bad, err)
		}
	}
}

// PgBouncer logs in under the names of its clients, so a binding holds, whatever connections clients share.
func TestProducers_ABindingHoldsBehindAPooler(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	prefix := roletest.Make(t, db)
	_, user := roletest.Login(t, db, "", prefix+"_producer", prefix+"_consumer")
	pgtest.Exec(t, db.Pool, "insert into holdfast.producer_binding (role, topic) values ($1, 'orders')", user)
	roletest.BindConsumer(t, db, user, "billing", "")
	pgtest.Exec(t, db.Pool, "insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at) select c, '', 'e', 'orders', '', 'handled', now() from unnest('{billing,shipping}'::text[]) c")
	config, err := pgxpool.ParseConfig(pgtest.Bouncer(t, &pgtest.DB{Pool: db.Pool, DSN: roletest.DSNOf(t, db, user)}))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	through(t, pool, "", "payments", "", "topic is 'payments': user "+user+" may write to orders only (table producer_binding)")
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.inbox"); n != 1 {
		t.Errorf("it sees %d rows, want its own", n)
	}
}

// What the database says about who did what, and when, is not what somebody writes, and nobody who acts on letters can remove it.
func TestProducers_TheTrailIsSignedByTheDatabaseAndStays(t *testing.T) {
	t.Parallel()
	db, prefix := twoConsumers(t)
	operator, user := roletest.Login(t, db, "", prefix+"_operator")
	generous, other := roletest.Login(t, db, "", prefix+"_operator")
	pgtest.Exec(t, db.Pool, "grant insert on holdfast.letter_action, holdfast.stored_action to "+other) // more than roles.sql has
	const forged = "insert into holdfast.letter_action (letter, action, by, reason, login, at) values (1, 'discard', 'bob', '', 'bob', '2020-01-01')"
	if state, _ := errorOf(t, operator, "", forged); state != "42501" {
		t.Errorf("an operator chooses login and time (%q)", state)
	}
	pgtest.Exec(t, db.Pool, "truncate holdfast.letter_action")
	pgtest.Exec(t, generous, forged)
	tx, err := operator.Begin(t.Context()) // A transaction that is open for long does not date its actions back.
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "select pg_sleep(0.2)")
	pgtest.Exec(t, tx, "insert into holdfast.letter_action (letter, action, by, reason, payload) values (1, 'edit', 'bob', 'why', 'before')")
	pgtest.Exec(t, tx, "insert into holdfast.stored_action (action, consumer, source, event_id, type, topic, key, by, reason) values ('retry', 'billing', '', '9', 't', 'o', '', 'bob', '')")
	if n := pgtest.Count(t, tx, "select count(*) from (select at from holdfast.letter_action where action = 'edit' union all select at from holdfast.stored_action where event_id = '9') a where at >= now() + interval '0.2 s' and at <= clock_timestamp()"); n != 2 {
		t.Error("actions have the time at which their transaction began")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter_action where by = 'bob' and at > now() - interval '1 hour' and login = case action when 'edit' then $1 else $2 end", user, other); n != 2 {
		t.Error("the actions are not signed with the users of the sessions")
	}
	for _, sql := range []string{
		"delete from holdfast.letter", "delete from holdfast.letter_action", "update holdfast.letter_action set by = 'eve'", "truncate holdfast.letter_action",
		"delete from holdfast.stored_action", "update holdfast.stored_action set login = 'eve'", "delete from holdfast.letter_replay", "update holdfast.letter_replay set by = 'eve'",
	} {
		if state, _ := errorOf(t, operator, "", sql); state != "42501" {
			t.Errorf("an operator may: %s (%q)", sql, state)
		}
	}
	const purge = "select holdfast.purge_letters(60000000, 100)"
	pgtest.Exec(t, db.Pool, "update holdfast.letter set last_at = now() - interval '1 year'")
	if n := pgtest.Count(t, operator, purge); n != 0 {
		t.Errorf("%d open letters are purged", n)
	}
	if state, _ := errorOf(t, operator, "", "select holdfast.purge_letters(0, 100)"); state != "22023" {
		t.Errorf("letters that were closed just now are purged (%q)", state)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'replaying' where id = 2")
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'discarded' where id = 1")
	if n := pgtest.Count(t, operator, purge); n != 1 {
		t.Errorf("%d letters are purged, want the one that is closed", n)
	}
	if n := pgtest.Count(t, operator, "select count(*) from holdfast.letter_action where letter = 1 and by = 'bob' and payload is null"); n != 2 {
		t.Errorf("%d actions outlived their letter without payloads, want 2", n)
	}
}

// Check asks for what each part needs, and warns of who is held back by nothing. It raises no false alarm.
func TestProducers_TheRightsOfAUserAreChecked(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	prefix := roletest.Make(t, db)
	check := func(pool *pgxpool.Pool, part string) (string, string) {
		t.Helper()
		warnings, err := holdfast.CheckRights(t.Context(), pool, holdfast.SchemaConfig{}, part)
		if err != nil {
			return strings.Join(warnings, "\n"), err.Error()
		}
		return strings.Join(warnings, "\n"), ""
	}
	want := func(pool *pgxpool.Pool, part, warning, problem string) {
		t.Helper()
		w, p := check(pool, part)
		if (w == "") != (warning == "") || !strings.Contains(w, warning) || (p == "") != (problem == "") || !strings.Contains(p, problem) {
			t.Errorf("%s: warned of %q, refused for %q; want %q, %q", part, w, p, warning, problem)
		}
	}
	pools, names := map[string]*pgxpool.Pool{}, map[string]string{}
	for _, part := range []string{"producer", "relay", "consumer", "web", "operator", "reader"} {
		pools[part], names[part] = roletest.Login(t, db, "", prefix+"_"+part)
		want(pools[part], part, "", "")
		want(pools[part], "", "", "")
		pool, _ := roletest.Login(t, db, "")
		want(pool, part, "", "to be a "+part+" it lacks")
		want(db.Pool, part, "is a superuser: no grant", "")
	}
	want(db.Pool, "", "is a superuser: no grant", "")
	want(pools["producer"], "relay", "", "execute on append_unchecked, execute on expire_written_once, execute on publish_letter, execute on reclaim, insert (origin,")
	owner, _ := roletest.Login(t, db, "", prefix+"_owner")
	want(owner, "relay", "which owns the schema: it may do everything there", "")
	want(owner, "", "", "")
	want(pools["web"], "nobody", "", `part is "nobody": it must be one of consumer, operator, producer, reader, relay, web`)

	roletest.BindConsumer(t, db, names["relay"], "billing", "")
	want(pools["consumer"], "consumer", "is bound to no consumer, while others are", "")
	want(pools["operator"], "operator", "", "")
	roletest.BindConsumer(t, db, names["consumer"], "billing", "")
	want(pools["consumer"], "consumer", "", "")
	bypass, name := roletest.Login(t, db, "bypassrls", prefix+"_consumer")
	roletest.BindConsumer(t, db, name, "billing", "")
	want(bypass, "consumer", "has a role with bypassrls", "")

	problem := func(want string) {
		t.Helper()
		for who, pool := range map[string]*pgxpool.Pool{"superuser": db.Pool, "reader": pools["reader"]} {
			if err := holdfast.Check(t.Context(), pool, holdfast.SchemaConfig{}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Check says %v, want %q", who, err, want)
			}
		}
	}
	problem("")
	pgtest.Exec(t, db.Pool, "alter table holdfast.inbox disable row level security")
	problem("and off for inbox")
	for _, table := range parts {
		pgtest.Exec(t, db.Pool, "alter table holdfast."+table+" disable row level security")
	}
	want(pools["consumer"], "consumer", "", "is bound to consumers, but row security is off")
	pgtest.Exec(t, db.Pool, "update holdfast.consumer_binding set letter_topic = ''")
	want(pools["consumer"], "consumer", "", "")
	pgtest.Exec(t, db.Pool, "insert into holdfast.producer_binding (role, topic) values ($1, 'orders')", names["producer"])
	problem("")
	pgtest.Exec(t, db.Pool, "create or replace function holdfast.producers_bound() returns boolean language sql stable parallel safe as ' select false '")
	problem("producers are bound, and the function producers_bound says that none is")
	pgtest.Exec(t, db.Pool, "update holdfast.producer_binding set topic = 'mail'")
	problem("")
	gone := fmt.Sprintf("gone%d", time.Now().UnixNano())
	pgtest.Exec(t, db.Pool, "create role "+gone)
	pgtest.Exec(t, db.Pool, "insert into holdfast.producer_binding (role, topic) values ($1, 'orders')", gone)
	problem("")
	number := fmt.Sprint(pgtest.Count(t, db.Pool, "select $1::text::regrole::oid::bigint", gone))
	pgtest.Exec(t, db.Pool, "drop role "+gone)
	problem("bindings name roles that do not exist, so they have no effect: " + number)
}
