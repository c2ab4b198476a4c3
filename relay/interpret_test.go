package relay_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// Every statement that reads the log asks for the token of the incarnation. A function in its view writes down under which setting.
func TestInterpret_NothingThatReadsTheLogIsCompiled(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	b := newBroker()
	run(t, db.Pool, b, relay.Config{})
	arrives(t, b, writeEach(t, db.Pool, "first", 1)...)
	for _, sql := range []string{
		"create table seen (statement text, jit text)",
		`create function see() returns boolean volatile language plpgsql as $$ begin
			insert into seen values (split_part(current_query(), e'\n', 1), current_setting('jit')); return true; end $$`,
		"do $$ begin execute 'create or replace view holdfast.current_incarnation with (security_invoker = true) as select * from (' || rtrim(pg_get_viewdef('holdfast.current_incarnation'), ';') || ') v where public.see()'; end $$",
		"do $$ begin execute 'create or replace view holdfast.backlog with (security_invoker = true) as select * from (' || rtrim(pg_get_viewdef('holdfast.backlog'), ';') || ') v where public.see()'; end $$",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	for range 3 {
		arrives(t, b, writeEach(t, db.Pool, "next", 20)...)
	}
	wait.Until(t, "a page was read", func() bool {
		return pgtest.Count(t, db, "select count(*) from seen where statement = '-- relay.sized_page'") > 0
	})
	asked, err := relay.New(db.Pool, b, relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := asked.Backlog(t.Context()); err != nil {
		t.Error(err)
	}
	for _, statement := range []string{"-- relay.sized_page", "-- backlog.read"} {
		if of := pgtest.Text(t, db, "select coalesce(string_agg(distinct jit, ', '), 'never run') from seen where statement = $1", statement); of != "off" {
			t.Errorf("jit of %s: %s", statement, of)
		}
	}
	// The connections are those of the service, which may want it otherwise.
	if n := pgtest.Count(t, db, "select count(*) from seen where statement = '-- relay.probe' and jit = 'off'"); n > 0 {
		t.Errorf("%d connections keep the setting", n)
	}
}
