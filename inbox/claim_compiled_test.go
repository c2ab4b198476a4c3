package inbox

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Postgres compiles statements that it expects to cost much, each time anew, and beside much that is due it expects that of a claim.
func TestClaimCompiled_AClaimIsNotCompiled(t *testing.T) {
	b := setup(t)
	pool := b.db.PoolOf(t, 1)
	in := b.inboxOn(pool)
	in.Handle("order.placed", effectOf)
	in.registry.start()
	b.store(in, event("1", "a"))
	pgtest.Exec(t, b.db, "create table seen (jit text)")
	pgtest.Exec(t, b.db, "create function see() returns trigger language plpgsql as $$ begin insert into seen values (current_setting('jit')); return new; end $$")
	pgtest.Exec(t, b.db, "create trigger see before update on holdfast.stored for each row execute function see()")
	pgtest.Exec(t, pool, "set jit = on")
	got, err := in.claims.claim(t.Context(), 8)
	if err != nil || len(got) != 1 {
		t.Fatalf("claimed %d, %v", len(got), err)
	}
	if n := b.count("select count(*) from seen where jit = 'off'"); n != 1 {
		t.Error("the claim may be compiled")
	}
	// What others make on the connection is theirs.
	if n := pgtest.Count(t, pool, "select count(*) where current_setting('jit') = 'on'"); n != 1 {
		t.Error("the connection keeps the setting")
	}
}
