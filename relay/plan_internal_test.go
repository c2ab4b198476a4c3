package relay

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Postgres plans a prepared statement anew for each of its first five calls, and goes on doing so when the plans made
// for known values look cheaper than the general one. Planning these costs several times what running them does.
func TestPlan_StatementsOfEveryPollAreNotPlannedAnew(t *testing.T) {
	t.Parallel()
	pool, r := openLog(t, 8, 200)
	for i := range 40 {
		appendMany(t, pool, fmt.Sprintf("key %d", i), 25)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	done, window := r.at.cursor.done, ""
	if err := conn.QueryRow(t.Context(), "select pg_current_snapshot()::text").Scan(&window); err != nil {
		t.Fatal(err)
	}
	lanes, epochs, poss := []int16{0, 1, 2, 3, 4, 5, 6, 7}, make([]int64, 8), make([]int64, 8)
	dones, uptos := make([]*string, 8), make([]*string, 8)
	for i := range dones {
		dones[i], uptos[i] = &done, new(string)
	}
	for name, call := range map[string]func() (string, []any){
		"page": func() (string, []any) {
			return r.sql.In(readPage), []any{0, done, (*string)(nil), 0, 200, r.token, r.bytes}
		},
		"sized page": func() (string, []any) {
			return r.sql.In(readSizedPage), []any{0, done, (*string)(nil), 0, 200, r.token, r.bytes}
		},
		"probe": func() (string, []any) { return r.sql.In(probeLanes), []any{lanes, dones, r.token} },
		"save": func() (string, []any) {
			return r.sql.In(saveLanes), []any{"relay", time.Minute, lanes, epochs, dones, uptos, poss, r.token, 1, poss}
		},
	} {
		sql, args := call()
		const calls = 20
		for range calls {
			if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var general, custom int
		err := conn.QueryRow(t.Context(), "select generic_plans, custom_plans from pg_prepared_statements where statement = $1", sql).Scan(&general, &custom)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if custom > 5 || general+custom < calls {
			t.Errorf("%s was planned anew for %d of %d calls, want at most 5:\n%s", name, custom, general+custom, strings.SplitN(sql, "\n", 2)[0])
		}
	}
}
