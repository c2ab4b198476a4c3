//go:build linux

package torture

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestAStepOfTheClockMovesEveryTimeThatIsComparedWithIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).Pool
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), `select table_name || '.' || column_name from information_schema.columns
		where table_schema = 'holdfast' and column_name in ('lease_until', 'seen_until', 'next_at', 'due_at')
		and table_name not like 'idempotency%' and data_type like 'timestamp%'`) // no part has a guard
	columns, err := pgx.AppendRows([]string(nil), rows, pgx.RowTo[string])
	if err != nil || len(columns) < 8 {
		t.Fatalf("%q, %v", columns, err)
	}
	for _, c := range columns {
		table, column, _ := strings.Cut(c, ".")
		moves := fmt.Sprintf("update holdfast.%s set %s = ", table, column)
		n := 0
		for _, sql := range clockSteps {
			if strings.HasPrefix(sql, moves) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is moved by %d statements", c, n)
		}
	}
	for _, by := range []string{"10 minutes", "-10 minutes"} {
		s := &stage{ground: &ground{admin: pool}}
		heal, err := stepClock(t.Context(), s, by)
		if err == nil {
			err = heal(t.Context())
		}
		if err != nil {
			t.Errorf("by %s: %v", by, err)
		}
	}
}
