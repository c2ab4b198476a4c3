package pgtest_test

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	a, b := pgtest.New(t), pgtest.New(t)
	pgtest.Exec(t, a, "create table things (n int)")
	pgtest.Exec(t, a, "insert into things values (1), (2)")
	if got := pgtest.Count(t, a, "select count(*) from things"); got != 2 {
		t.Errorf("things in a: %d, want 2", got)
	}
	if got := pgtest.Count(t, b, "select count(*) from pg_class where relname = 'things'"); got != 0 {
		t.Errorf("b sees %d tables of a", got)
	}
}
