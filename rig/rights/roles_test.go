package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// granted is what a role may do: "select on lane", "select (lane) on event", "execute on append".
func granted(who string) map[string]bool {
	may := map[string]bool{}
	for _, grant := range roletest.Grants[who] {
		privileges, objects, on := strings.Cut(grant, " on ")
		if !on { // membership of a role of the server
			continue
		}
		objects = strings.TrimPrefix(strings.TrimPrefix(objects, "function "), "sequence ")
		for object := range strings.SplitSeq(objects, ", ") {
			for _, privilege := range privilegesOf(privileges) {
				verb, columns, some := strings.Cut(strings.TrimSuffix(privilege, ")"), " (")
				if !some {
					may[verb+" on "+strings.TrimPrefix(object, "holdfast.")] = true
					continue
				}
				for column := range strings.SplitSeq(columns, ", ") {
					may[verb+" ("+strings.Trim(column, `"`)+") on "+strings.TrimPrefix(object, "holdfast.")] = true
				}
			}
		}
	}
	// public may read these views, which show a role what its own rights allow, and ask what it is bound to itself.
	may["select on installation"], may["execute on last_errors"], may["execute on own_consumers"] = true, true, true
	may["select on current_incarnation"] = may["select on incarnation"]
	for _, column := range []string{"consumer", "topic", "key"} { // for consumer_hold
		may["select ("+column+") on pause"] = true
	}
	may["select on inbox_events"] = may["select on inbox"]
	may["select on idempotency_keys"] = may["select on idempotency"] || may["select (body_hash) on idempotency"]
	for _, view := range []string{"lane_hold", "consumer_hold"} {
		may["select on "+view] = may["select on letter"] || may["select (state) on letter"]
	}
	all := func(table string, columns ...string) bool {
		for _, column := range columns {
			if !may["select on "+table] && !may["select ("+column+") on "+table] {
				return false
			}
		}
		return true
	}
	may["select on waiting_in_schedule"] = all("scheduled", "lane", "due_at", "seq", "id", "source", "type", "topic", "key", "time")
	may["select on backlog"] = all("lane", "lane", "owner", "lease_until", "done", "upto", "pos") && all("event", "lane", "xid", "seq", "time") &&
		all("parked", "lane", "why", "id", "first_at") && all("scheduled", "lane", "due_at")
	may["select on waiting_in_relays"] = may["select on lane_hold"] &&
		all("parked", "lane", "topic", "key", "place", "why", "attempts", "next_at", "errors", "first_at", "id", "source", "type", "time", "letter", "partition")
	may["select on waiting_in_consumers"] = may["select on consumer_hold"] && may["select on consumer_type"] &&
		all("stored", "consumer", "topic", "key", "place", "source", "event_id", "type", "time", "partition", "offset", "attempts", "errors", "next_at", "first_at", "failed_at", "lease_until", "letter")
	may["select on waiting"] = may["select on waiting_in_relays"] && may["select on waiting_in_consumers"] && may["select on waiting_in_schedule"]
	return may
}

// refused reports whether a statement is refused for a missing right. Nothing of it stays.
func refused(t *testing.T, conn *pgxpool.Conn, role, sql string) bool {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, "set local role "+role)
	_, err = tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "42501"
}

// Each role tries every statement that the tables, sequences and functions of the schema allow, and is refused those that
// roles.SQL does not grant it, and no other.
func TestRoles_ARoleMayDoWhatItsPartNeedsAndNothingElse(t *testing.T) {
	skip.InShort(t, "it takes 9 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	prefix := roletest.Make(t, db)
	conn, err := db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	type statement struct{ Right, SQL string }
	ask := func(sql string) (all []statement) {
		t.Helper()
		rows, err := conn.Query(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[statement]); err != nil {
			t.Fatal(err)
		}
		return all
	}
	const relations = ` from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'v')`
	columns := ask(`select format('select (%s) on %s', a.attname, c.relname), format('select %I from %s limit 0', a.attname, c.oid::regclass)` + relations +
		` union all select format('update (%s) on %s', a.attname, c.relname), format('update %s set %I = default where false', c.oid::regclass, a.attname)` + relations + ` and c.relkind = 'r'` +
		` union all select format('insert (%s) on %s', a.attname, c.relname), format('insert into %s (%I) overriding system value select null::%s where false', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod))` +
		relations + ` and c.relkind = 'r'`)
	const tables = ` from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r'`
	whole := slices.Concat(
		ask(`select 'delete on ' || c.relname, format('delete from %s where false', c.oid::regclass)`+tables),
		ask(`select 'truncate on ' || c.relname, format('truncate %s', c.oid::regclass)`+tables),
		ask(`select 'usage on ' || c.relname, format('select nextval(%L)', c.oid::regclass) from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'S'`),
		ask(`select 'execute on ' || p.proname, format('select holdfast.%I(%s)', p.proname,
				(select string_agg('null::' || format_type(t, null), ', ' order by n) from unnest(p.proargtypes::oid[]) with ordinality u (t, n)))
			from pg_proc p where p.pronamespace = 'holdfast'::regnamespace and p.provariadic = 0 and p.prorettype <> 'trigger'::regtype`),
		ask(`select 'drop on ' || c.relname, format('drop table %s cascade', c.oid::regclass)`+tables),
		[]statement{{"execute on lock", "select holdfast.lock('k')"}, {"create on holdfast", "create table holdfast.more ()"}, {"drop on holdfast", "drop schema holdfast cascade"},
			{"alter on holdfast", "alter table holdfast.letter disable trigger all"}},
	)
	if len(columns) < 800 || len(whole) < 100 {
		t.Fatalf("there are %d columns and %d other things to try", len(columns), len(whole))
	}
	tried := 0
	for _, who := range []string{"producer", "relay", "consumer", "web", "operator", "reader"} {
		may, used := granted(who), map[string]bool{"usage on schema holdfast": true}
		role := prefix + "_" + who
		for _, s := range columns {
			of := s.Right[:strings.Index(s.Right, " (")] + s.Right[strings.Index(s.Right, ") on ")+1:] // "select on lane"
			if got, want := refused(t, conn, role, s.SQL), !may[s.Right] && !may[of]; got != want {
				t.Errorf("%s: %s: refused %t, want %t", who, s.SQL, got, want)
			}
			used[s.Right], used[of] = true, true
			tried++
		}
		for _, s := range whole {
			if got, want := refused(t, conn, role, s.SQL), !may[s.Right]; got != want {
				t.Errorf("%s: %s: refused %t, want %t", who, s.SQL, got, want)
			}
			used[s.Right] = true
			tried++
		}
		for right, may := range may {
			if may && !used[right] {
				t.Errorf("%s: nothing tries %q", who, right)
			}
		}
	}
	t.Logf("%d statements", tried)
	owner := prefix + "_owner"
	for _, sql := range []string{"create table holdfast.more ()", "truncate holdfast.inbox", "alter table holdfast.letter add column more int", "drop function holdfast.append"} {
		if refused(t, conn, owner, sql) {
			t.Errorf("owner: %s is refused", sql)
		}
	}
}

// The functions run with the rights of an owner who is no superuser, and every part works with its role.
func TestRoles_TheOwnerOfTheRolesNeedsNoSuperuser(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	prefix := roletest.Make(t, db)
	as := func(who string) *pgxpool.Pool {
		return db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = prefix + "_" + who })
	}
	pgtest.Exec(t, as("producer"), "select holdfast.write('orders', 'k', 't', 'by SQL')")
	if got := pgtest.Count(t, as("relay"), "select count(*) from holdfast.event"); got != 1 {
		t.Errorf("the relay sees %d events", got)
	}
	pgtest.Exec(t, as("relay"), "select holdfast.reclaim(1, (select token from holdfast.incarnation), 100)")
	pgtest.Exec(t, as("relay"), "update holdfast.segments set current = 2") // which writes a function anew
	pgtest.Exec(t, as("producer"), "select holdfast.write('orders', 'k', 't', 'by SQL')")
	if got := pgtest.Count(t, db.Pool, "select count(*) from only holdfast.event_2"); got != 1 {
		t.Errorf("after a rotation by a relay, %d events are in the segment", got)
	}
	if err := holdfast.Check(t.Context(), as("reader"), holdfast.SchemaConfig{}); err != nil {
		t.Errorf("reader: %v", err)
	}
	if err := holdfast.Migrate(t.Context(), as("owner"), holdfast.SchemaConfig{MaxPayload: 1000}); err != nil { // which writes a function anew
		t.Errorf("owner: %v", err)
	}
	if n := pgtest.Count(t, db.Pool, `select count(*) from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relowner <> $1::regrole and c.relkind in ('r', 'v', 'S', 'i')`, prefix+"_owner"); n != 0 {
		t.Errorf("%d relations have another owner", n)
	}
}

// Whoever owns the schema and may create roles can run the script.
func TestRoles_RolesAreMadeWithoutASuperuser(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	admin := fmt.Sprintf("admin_%d", time.Now().UnixNano())
	pgtest.Exec(t, db.Pool, "create role "+admin+" createrole")
	t.Cleanup(func() {
		db.Exec(context.Background(), "drop owned by "+admin+" cascade")
		db.Exec(context.Background(), "drop role "+admin)
	})
	var name string
	if err := db.Pool.QueryRow(t.Context(), "select current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "grant create on database "+pgx.Identifier{name}.Sanitize()+" to "+admin)
	pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = admin })
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{Schema: "outbox"}); err != nil {
		t.Fatal(err)
	}
	prefix := "p" + admin
	script, err := holdfast.RolesSQL(holdfast.SchemaConfig{Schema: "outbox"}, prefix)
	if err != nil {
		t.Fatal(err)
	}
	roletest.DropAtEnd(t, db, prefix)
	for range 2 { // The second time it changes nothing.
		if _, err := pool.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	producer := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = prefix + "_producer" })
	pgtest.Exec(t, producer, "select outbox.write('orders', 'k', 't', 'by SQL')")
}

func TestRoles_ThePrefixOfRolesIsChecked(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"a b", "A", "pg_x", "x;drop", strings.Repeat("x", 51)} {
		if _, err := holdfast.RolesSQL(holdfast.SchemaConfig{}, prefix); err == nil || !strings.Contains(err.Error(), "prefix is") {
			t.Errorf("%q: %v", prefix, err)
		}
	}
	if _, err := holdfast.RolesSQL(holdfast.SchemaConfig{Schema: "a b"}, ""); err == nil || !strings.Contains(err.Error(), "schema is") {
		t.Errorf("%v", err)
	}
}
