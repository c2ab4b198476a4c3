package pgtest_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

var filled atomic.Int64

var model = pgtest.Model{Fill: func(ctx context.Context, pool *pgxpool.Pool) error {
	filled.Add(1)
	_, err := pool.Exec(ctx, "create table things (n int); insert into things values (1)")
	return err
}}

func TestModel_EachCopyOfAModelBeginsAsItWasMadeOnce(t *testing.T) {
	t.Parallel()
	for range 4 {
		t.Run("a test", func(t *testing.T) {
			t.Parallel()
			db := model.New(t)
			if n := pgtest.Count(t, db, "select count(*) from things"); n != 1 {
				t.Errorf("%d things", n)
			}
			pgtest.Exec(t, db, "insert into things values (2)")
			if n := filled.Load(); n != 1 {
				t.Errorf("it was made %d times", n)
			}
		})
	}
}
