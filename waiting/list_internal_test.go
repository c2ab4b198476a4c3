package waiting

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestARowIsListedOnceThoughItsStatementRunsAgain(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, "create sequence runs")
	pgtest.Exec(t, db.Pool, `create function deadlock_at_first(n int) returns int language plpgsql as $$
		begin
			if n = 3 and nextval('runs') = 1 then raise 'one of two' using errcode = 'deadlock_detected'; end if;
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
	if n := pgtest.Count(t, db.Pool, "select last_value from runs"); n != 2 {
		t.Errorf("the statement ran %d times", n)
	}
}
