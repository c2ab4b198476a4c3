package holdfast_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestSchemaCheck_CheckSaysWhatWasChanged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ change, want string }{
		{"alter table holdfast.inbox alter column partition type bigint", `column inbox.partition is "bigint", it must be "integer"`},
		{`alter table holdfast.watermark alter column entity type text collate "POSIX"`, `column watermark.entity is "text collate "POSIX" not null"`},
		{"alter table holdfast.inbox alter column attempts drop default", "column inbox.attempts is"},
		{"alter table holdfast.letter alter column hash drop not null", `column letter.hash is "bytea", it must be "bytea not null"`},
		{"alter table holdfast.letter add column extra text not null default ''", "column letter.extra is \"text not null default ''::text\", it must not be there"},
		{"alter table holdfast.letter drop constraint origin_is_known", "lacks constraint letter.origin_is_known"},
		{"alter table holdfast.letter drop constraint state_is_known, add constraint state_is_known check (state <> '')", "constraint letter.state_is_known is"},
		{"alter table holdfast.lane add constraint few check (lane < 400)", "constraint lane.few is"},
		{"alter table holdfast.inbox add constraint result_is_known check (result in ('handled', 'stored', 'dead', 'skipped', 'discarded'))", "constraint inbox.result_is_known is"},
		{"alter table holdfast.inbox drop constraint inbox_pkey", "lacks constraint inbox.inbox_pkey"},
		{"drop index holdfast.letter_event; create index letter_event on holdfast.letter (consumer, source, event_id, hash) where origin = 'inbox'", "index letter_event is"},
		{"alter table holdfast.incarnation set logged", `table incarnation is "logged", it must be "unlogged"`},
		{"alter table holdfast.event_2 no inherit holdfast.event", `table event_2 is "logged", it must be "logged inherits event"`},
		{"alter table holdfast.lane enable row level security", "with row security"},
		{"drop policy own_rows on holdfast.stored", "lacks policy stored.own_rows"},
		{"drop policy own_rows on holdfast.stored; create policy own_rows on holdfast.stored using (true)", "policy stored.own_rows is"},
		{"drop trigger sign on holdfast.letter_action", "lacks trigger letter_action.sign"},
		{"create or replace view holdfast.lane_hold as select lane, topic, key, id as letter, state from holdfast.letter", "view lane_hold is"},
		{"alter sequence holdfast.event_seq cache 100", "cache 100"},
		{"create or replace function holdfast.last_errors(errors text[]) returns text[] language sql immutable parallel safe as 'select errors'", "function last_errors() is"},
		{"alter function holdfast.append_one security invoker", "function append_one() is"},
		{"create or replace function holdfast.lanes() returns integer language sql immutable parallel safe as ' select 9 '", "function lanes() is"},
	} {
		t.Run(c.change, func(t *testing.T) {
			t.Parallel()
			db := migrated.New(t)
			pgtest.Exec(t, db.Pool, c.change)
			for what, err := range map[string]error{
				"Check":   holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}),
				"Migrate": holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}),
			} {
				if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`), c.want) || !strings.Contains(err.Error(), "holdfast migrate --print") {
					t.Errorf("%s says %v, want %s", what, err, c.want)
				}
			}
		})
	}
}

// What an owner tunes and adds is theirs.
func TestSchemaCheck_CheckLeavesTuningAndAdditionsAlone(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, change := range []string{
		"alter table holdfast.inbox set (autovacuum_vacuum_scale_factor = 0.01)",
		"alter table holdfast.inbox replica identity full",
		"alter table holdfast.stored alter column payload set compression pglz, alter column payload set storage external",
		"alter table holdfast.stored alter column payload set statistics 0, alter column key set (n_distinct = -1)",
		"alter index holdfast.letter_event set (fillfactor = 70, deduplicate_items = off)",
		"alter index holdfast.inbox_pkey set (fillfactor = 70)",
		"cluster holdfast.inbox using inbox_pkey",
		"create index mine_by_age on holdfast.watermark (updated_at)",
		"create table holdfast.mine (a text primary key)",
		"create function holdfast.mine() returns trigger language plpgsql as 'begin return new; end'",
		"create trigger mine before insert on holdfast.letter for each row execute function holdfast.mine()",
		"create view holdfast.mine_as_well as select 1 as one",
		"grant select on holdfast.inbox to public",
	} {
		pgtest.Exec(t, db.Pool, change)
	}
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
}

// An older build runs on a newer schema unless that says it must not: then a rollback of processes needs none of the schema.
func TestSchemaCheck_ANewerSchemaIsRefusedOnlyIfItSaysSo(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, "update holdfast.installation set version = $1 + 1, compatible_from = $1", holdfast.SchemaVersion)
	pgtest.Exec(t, db.Pool, "drop table holdfast.watermark") // whatever the newer build did
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.installation set compatible_from = version")
	for what, err := range map[string]error{
		"Check":   holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}),
		"Migrate": holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}),
	} {
		if !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), "use a newer build") {
			t.Errorf("%s says %v", what, err)
		}
	}
}
