package holdfast_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// definition is Postgres' own text of an object, and the script that makes it anew of that text: what pg_restore and pg_upgrade do.
type definition struct{ Name, Text, Script string }

const definitions = `
with relation as (select c.*, c.oid::regclass::text as name from pg_class c where c.relnamespace = 'holdfast'::regnamespace)
select 'constraint ' || r.name || '.' || k.conname, pg_get_constraintdef(k.oid),
       format('alter table %s drop constraint %I cascade, add constraint %2$I %s', r.name, k.conname, pg_get_constraintdef(k.oid))
  from relation r join pg_constraint k on k.conrelid = r.oid where k.contype in ('c', 'p', 'u', 'f', 'x') and k.coninhcount = 0
union all
select 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid), format('drop index %s; %s', i.indexrelid::regclass, pg_get_indexdef(i.indexrelid))
  from relation r join pg_index i on i.indrelid = r.oid where not exists (select from pg_constraint k where k.conindid = i.indexrelid)
union all
select 'view ' || r.name, pg_get_viewdef(r.oid), format('create or replace view %s with (%s) as %s', r.name, array_to_string(r.reloptions, ', '), pg_get_viewdef(r.oid))
  from relation r where r.relkind = 'v'
union all
select 'default ' || r.name || '.' || a.attname, pg_get_expr(d.adbin, d.adrelid), format('alter table %s alter column %I set default %s', r.name, a.attname, pg_get_expr(d.adbin, d.adrelid))
  from relation r join pg_attrdef d on d.adrelid = r.oid join pg_attribute a on a.attrelid = r.oid and a.attnum = d.adnum where a.attgenerated = ''
union all
select 'trigger ' || r.name || '.' || t.tgname, pg_get_triggerdef(t.oid), format('drop trigger %I on %s; %s', t.tgname, r.name, pg_get_triggerdef(t.oid))
  from relation r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
union all
select 'policy ' || r.name || '.' || p.polname, concat_ws(' ', p.polcmd, pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)),
       format('drop policy %I on %s; create policy %1$I on %2$s', p.polname, r.name) || coalesce(' using (' || pg_get_expr(p.polqual, p.polrelid) || ')', '') ||
       coalesce(' with check (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
  from relation r join pg_policy p on p.polrelid = r.oid
union all
select 'function ' || p.oid::regprocedure, pg_get_functiondef(p.oid), pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = 'holdfast'::regnamespace
order by 1`

func definitionsOf(t *testing.T, db *pgtest.DB) map[string]definition {
	t.Helper()
	rows, err := db.Query(t.Context(), definitions)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[definition])
	if err != nil {
		t.Fatal(err)
	}
	all, kinds := map[string]definition{}, map[string]bool{}
	for _, d := range list {
		all[d.Name] = d
		kind, _, _ := strings.Cut(d.Name, " ")
		kinds[kind] = true
	}
	if len(kinds) != 7 || len(all) < 150 {
		t.Fatalf("there are %d definitions of the kinds %v", len(all), kinds)
	}
	return all
}

// A dump has the texts that Postgres makes of a schema, and a restored one was made of these. Both must be the schema, also after
// the next restore and for the check.
func TestASchemaMadeOfItsOwnTextsIsTheSame(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, db *pgtest.DB) {
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Fatal(err)
		}
		before := definitionsOf(t, db)
		for _, d := range before {
			pgtest.Exec(t, db.Pool, d.Script, pgx.QueryExecModeSimpleProtocol)
		}
		after := definitionsOf(t, db)
		for name, d := range before {
			if diff := cmp.Diff(d.Text, after[name].Text); diff != "" {
				t.Errorf("%s (- as schema.sql makes it, + as its own text makes it): write it so that both are equal\n%s", name, diff)
			}
		}
		if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Error(err)
		}
		if installed, built, err := holdfast.SchemaHashes(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil || installed != built {
			t.Errorf("the hash is %s, that of the build %s: %v", installed, built, err)
		}
	})
}

// Installations of before 2026-11-28 have nested conditions, and what pg_restore makes of them has not.
func TestGroupsThatMakeNoDifferenceAreNoDrift(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, c := range []struct {
		change string
		drift  bool
	}{
		{`check (octet_length(topic) between 1 and 249 and topic !~ '[^a-zA-Z0-9._-]' and topic not in ('.', '..'))`, false},
		{`check (octet_length(topic) >= 1 and (octet_length(topic) <= 249 and (topic !~ '[^a-zA-Z0-9._-]' and topic not in ('.', '..'))))`, false},
		{`check (octet_length(topic) between 1 and 249 and topic !~ '[^a-zA-Z0-9._-]' or topic not in ('.', '..'))`, true},
		{`check (octet_length(topic) between 1 and 249 and (topic !~ '[^a-zA-Z0-9._-]' or topic not in ('.', '..')))`, true},
		{`check (not (octet_length(topic) between 1 and 249 and topic !~ '[^a-zA-Z0-9._-]') and topic not in ('.', '..'))`, true},
	} {
		pgtest.Exec(t, db.Pool, "alter table holdfast.scheduled drop constraint topic_is_a_kafka_name, add constraint topic_is_a_kafka_name "+c.change)
		if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); (err != nil) != c.drift {
			t.Errorf("%s: %v", c.change, err)
		}
		installed, built, err := holdfast.SchemaHashes(t.Context(), db.Pool, holdfast.SchemaConfig{})
		if err != nil || (installed != built) != c.drift {
			t.Errorf("%s: the hash is %s, that of the build %s: %v", c.change, installed, built, err)
		}
	}
}
