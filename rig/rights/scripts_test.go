package rights

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// guides are the folders of docs/guides/migrate, with the tables that their scripts are written for.
var guides = map[string]struct{ tables, insert, late string }{
	"outbox-table": {
		`create table public.outbox (id bigint generated always as identity primary key, event_id uuid not null default gen_random_uuid(), topic text not null, key text not null,
			type text not null, payload jsonb not null, created_at timestamptz not null default now(), published_at timestamptz)`,
		`insert into public.outbox (topic, key, type, payload) values ('orders', 'k', 'placed', '{"a": 1}')`,
		"update public.outbox set created_at = '2020-01-01'",
	},
	"debezium": {
		`create table public.outbox (id uuid primary key default gen_random_uuid(), aggregatetype text not null, aggregateid text not null, type text not null, payload jsonb)`,
		`insert into public.outbox (aggregatetype, aggregateid, type, payload) values ('orders', 'k', 'placed', '{"a": 1}')`,
		"create publication dbz_publication for table public.outbox",
	},
	"watermill": {
		`create table public.watermill_forwarder_topic ("offset" bigserial, uuid varchar(36) not null, created_at timestamp not null default current_timestamp, payload json, metadata json,
			transaction_id xid8 not null, primary key (transaction_id, "offset"));
		create table public.watermill_offsets_forwarder_topic (consumer_group varchar(255) primary key, offset_acked bigint, last_processed_transaction_id xid8 not null);
		insert into public.watermill_offsets_forwarder_topic values ('', 0, '0')`,
		`insert into public.watermill_forwarder_topic (uuid, payload, metadata, transaction_id) values ('u',
			'{"uuid": "u", "destination_topic": "orders", "metadata": {"key": "k", "type": "placed"}, "payload": "e30="}', '{}', pg_current_xact_id())`,
		"",
	},
	"river": {
		`create type public.river_job_state as enum ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
		create table public.river_job (id bigserial primary key, state public.river_job_state not null default 'available', created_at timestamptz not null default now(),
			scheduled_at timestamptz not null default now(), finalized_at timestamptz, kind text not null, args jsonb not null, metadata jsonb not null default '{}')`,
		`insert into public.river_job (kind, args) values ('publish_event', '{"id": "e", "topic": "orders", "key": "k", "type": "placed", "payload": {"a": 1}}')`,
		"update public.river_job set created_at = '2020-01-01'",
	},
}

// call is the name of a function that a text calls.
var call = regexp.MustCompile(`\b([a-z_0-9]+)\(`)

// traps makes a function or operator in public for each of Postgres' own that has the name, for each choice of argument types
// that Postgres has none for: where a call has them, or converts to them sooner, it is found. Each raises an exception.
const traps = `do $do$
declare
    types   constant text[] := array(select format('%%I.%%I', t.typnamespace::regnamespace, t.typname) from pg_type t
                                      where t.typname in ('text', 'jsonb', 'json', 'bytea', 'uuid', 'int4', 'timestamptz', '_text', 'river_job_state'));
    script  text;
    made    integer := 0;
begin
    perform set_config('search_path', 'pg_catalog', true);
    create function public.trap() returns void language plpgsql as $f$ begin raise exception 'code of others runs as %%', current_user; end $f$;
    for script in
        with choice (args, list) as (
            select array[a], a from unnest(types) a union all select array[a, b], a || ', ' || b from unnest(types) a, unnest(types) b
        ), name as (
            select distinct p.proname, case when p.provariadic <> 0 then 2 else least(p.pronargs, 2) end as arity
              from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind in ('f', 'a') and p.proname = any (string_to_array('%s', ','))
        )
        select format('create function public.%%I(%%s) returns text language sql as $f$ select public.trap()::text $f$', n.proname, c.list)
          from name n join choice c on cardinality(c.args) = n.arity
        union all
        select format('create function public.op(%%s) returns text language sql as $f$ select public.trap()::text $f$', c.list) from choice c where cardinality(c.args) = 2
        union all
        select format('create function public.is(%%s) returns boolean language sql as $f$ select public.trap()::text::boolean $f$', c.list) from choice c where cardinality(c.args) = 2
        union all
        select format('create operator public.%%s (function = public.%%s, leftarg = %%s, rightarg = %%s)', o, case when o in ('||', '->', '->>', '+', '-') then 'op' else 'is' end, c.args[1], c.args[2])
          from choice c, unnest(array['=', '<>', '<', '>', '||', '->', '->>', '+', '-', '~', '!~']) o
         where cardinality(c.args) = 2 and to_regoperator(format('pg_catalog.%%s(%%s,%%s)', o, c.args[1], c.args[2])) is null
    loop
        execute script;
        made := made + 1;
    end loop;
    if made < 500 then raise exception '%% are no traps', made; end if;
end $do$`

// others is a user who may create in public, and has made traps for all that the texts call.
func others(t *testing.T, db *pgtest.DB, texts ...string) *pgxpool.Pool {
	t.Helper()
	names := map[string]bool{}
	for _, m := range call.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		names[m[1]] = true
	}
	pool, name := roletest.Login(t, db, "")
	pgtest.Exec(t, db.Pool, "grant create on schema public to "+name)
	pgtest.Exec(t, pool, fmt.Sprintf(traps, strings.Join(slices.Sorted(maps.Keys(names)), ",")))
	return pool
}

// Whoever may create in public makes functions and operators that fit better than those of Postgres, and the functions and tables of
// the scripts before these run. Nothing of it may run with the rights of whoever runs the scripts, or of the triggers' owner.
func TestScripts_TheScriptsOfTheGuideRunNothingOfOthers(t *testing.T) {
	t.Parallel()
	for name, guide := range guides {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := migrated.New(t)
			pgtest.Exec(t, db.Pool, guide.tables)
			files, err := filepath.Glob(filepath.Join("../../docs/guides/migrate", name, "*.sql"))
			if err != nil || len(files) < 5 {
				t.Fatalf("the scripts are %q, %v", files, err)
			}
			text := map[string]string{}
			for _, file := range append(files, "../../docs/guides/migrate/published.sql") {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				text[filepath.Base(file)] = string(content)
			}
			mallory := others(t, db, slices.Collect(maps.Values(text))...)
			table := "public." + regexp.MustCompile(`on (?:public\.)?(\w+) for each row`).FindStringSubmatch(text["switch.sql"])[1]
			pgtest.Exec(t, db.Pool, "grant insert, select on "+table+" to public; grant usage on all sequences in schema public to public")
			for _, m := range regexp.MustCompile(`function (?:public\.)?(\w+_(?:forward|mark))\(\) returns`).FindAllStringSubmatch(text["switch.sql"], -1) {
				pgtest.Exec(t, mallory, "create or replace function public."+m[1]+"() returns trigger language plpgsql as $$ begin perform public.trap(); end $$")
			}
			if m := regexp.MustCompile(`function ((?:public\.)?\w+_event\()(.*\))`).FindStringSubmatch(text["mapping.sql"]); m == nil {
				t.Fatal("mapping.sql makes no function")
			} else {
				pgtest.Exec(t, mallory, "create function "+m[1]+m[2]+" language plpgsql as $$ begin perform public.trap(); end $$")
			}
			if name == "debezium" {
				pgtest.Exec(t, mallory, `create table public.outbox_switch (lsn pg_lsn not null);
					create function public.on_switch() returns trigger language plpgsql as $$ begin perform public.trap(); end $$;
					create trigger on_switch before insert or delete on public.outbox_switch for each statement execute function public.on_switch()`)
			}

			run := func(file string) {
				t.Helper()
				if _, err := db.Pool.Exec(t.Context(), text[file], pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
			pgtest.Exec(t, db.Pool, guide.insert) // which waits for the old relay
			run("mapping.sql")
			run("check.sql")
			run("switch.sql")
			insert := func(pool *pgxpool.Pool) { // What follows is the trigger's doing.
				t.Helper()
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), guide.insert)
					return err
				})
				if err != nil {
					t.Errorf("insert: %v", err)
				}
			}
			before := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event")
			insert(mallory)
			insert(db.Pool)
			if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event"); n != before+2 {
				t.Errorf("%d events were written, want 2", n-before)
			}
			if n := pgtest.Count(t, db.Pool, `select count(*) from pg_trigger g join pg_proc p on p.oid = g.tgfoid where not g.tgisinternal and g.tgrelid = $1::regclass
					and (not 'search_path=pg_catalog, pg_temp' = any (p.proconfig) or pg_get_userbyid(p.proowner) <> current_user or has_function_privilege('public', p.oid, 'execute'))`, table); n != 0 {
				t.Errorf("%d trigger functions are of others, have a search path of others, or may be called by others", n)
			}
			run("published.sql")
			if name == "debezium" {
				run("confirmed.sql")
			}
			run("rollback.sql")
			run("switch.sql")
			pgtest.Exec(t, db.Pool, guide.late)
			if name == "debezium" { // The slot is the server's: that of another name and of nobody.
				slot := "s" + strings.ToLower(rand.Text())
				text["finish.sql"] = strings.ReplaceAll(text["finish.sql"], "('debezium')", "('"+slot+"')")
				_, err := db.Pool.Exec(t.Context(), text["finish.sql"], pgx.QueryExecModeSimpleProtocol)
				if refused := pgError(err); refused == nil || refused.Code != "42704" {
					t.Errorf("finish.sql without a slot: %v", err)
				}
				return
			}
			run("finish.sql")
		})
	}
}

func pgError(err error) *pgconn.PgError {
	var refused *pgconn.PgError
	errors.As(err, &refused)
	return refused
}

// The scripts of the schema and of the roles run as a superuser, or as the owner of everything.
func TestScripts_MigrateAndRolesRunNothingOfOthers(t *testing.T) {
	skip.InShort(t, "it makes thousands of functions")
	t.Parallel()
	db := pgtest.New(t)
	text := holdfast.SchemaSQL()
	for version := 2; version <= holdfast.SchemaVersion; version++ {
		upgrade, err := os.ReadFile(fmt.Sprintf("../../migrations/%d.sql", version))
		if err != nil {
			t.Fatal(err)
		}
		text += string(upgrade)
	}
	roles, err := holdfast.RolesSQL(holdfast.SchemaConfig{}, "")
	if err != nil {
		t.Fatal(err)
	}
	others(t, db, text, roles, "hashtext(current_setting(concat_ws(to_regclass(to_regprocedure(btrim(")
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
	for version := 1; version < holdfast.SchemaVersion; version++ {
		c := holdfast.SchemaConfig{Schema: fmt.Sprint("from", version)}
		clean := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "pg_catalog" })
		migrated.Script(t, clean, c.Schema, fmt.Sprintf("../../migrations/testdata/%d.sql", version))
		if err := holdfast.Migrate(t.Context(), db.Pool, c); err != nil {
			t.Errorf("from version %d: %v", version, err)
		}
	}
	printed, err := holdfast.SQL(holdfast.SchemaConfig{Schema: "printed"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Pool.Exec(t.Context(), printed, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Errorf("the printed script: %v", err)
	}
	roletest.Make(t, db)
	for _, schema := range []string{"holdfast", "printed"} {
		if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: schema}); err != nil {
			t.Error(err)
		}
	}
}
