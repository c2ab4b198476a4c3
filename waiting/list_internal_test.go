package waiting

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestList_ARowIsListedOnceThoughItsStatementRunsAgain(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	// The lock is the session's, so it stays when the transaction fails.
	pgtest.Exec(t, db.Pool, `create function deadlock_at_first(n int) returns int language plpgsql as $$
		begin
			if n = 3 and not exists (select from pg_locks l where l.locktype = 'advisory' and l.objid = 77) then
				perform pg_advisory_lock(77);
				raise 'one of two' using errcode = 'deadlock_detected';
			end if;
			return n;
		end $$`)
	r, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := look(t.Context(), r, "select deadlock_at_first(n) from generate_series(1, 4) n", nil, pgx.RowTo[int])
	if err != nil || !slices.Equal(got, []int{1, 2, 3, 4}) {
		t.Errorf("got %v, %v", got, err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from pg_locks l where l.locktype = 'advisory' and l.objid = 77"); n != 1 {
		t.Error("the statement did not fail at first")
	}
	settings, err := look(t.Context(), r, "select concat_ws(' ', current_setting('transaction_read_only'), current_setting('plan_cache_mode'), current_setting('lock_timeout'), current_setting('statement_timeout'))", nil, pgx.RowTo[string])
	if want := "on force_custom_plan 5s 30s"; err != nil || len(settings) != 1 || settings[0] != want {
		t.Errorf("a list is read with %q, %v, want %s", settings, err, want)
	}
}
