package plantest

import "testing"

func TestPlanTest_OnlyAConditionOnAnIndexFindsRowsByIt(t *testing.T) {
	for name, c := range map[string]struct {
		plan string
		want bool
	}{
		"a condition":                           {"Index Scan using due on stored s\n  Index Cond: (next_at <= now())\n  Filter: (x = 1)", true},
		"a bitmap":                              {"Bitmap Heap Scan on stored s\n  Recheck Cond: (a = 1)\n  ->  Bitmap Index Scan on due\n        Index Cond: (a = 1)", true},
		"an arbiter":                            {"Insert on inbox\n  Conflict Resolution: NOTHING\n  Conflict Arbiter Indexes: due\n  ->  Result", true},
		"a filter on all of it":                 {"Limit\n  ->  Index Scan using due on stored s\n        Filter: (next_at <= clock_timestamp())", false},
		"a condition on another":                {"Nested Loop\n  ->  Index Scan using due on stored s\n        Filter: (a = 1)\n  ->  Index Scan using other on letter l\n        Index Cond: (b = 1)", false},
		"a condition on another below a result": {"Nested Loop\n  ->  Index Scan using due on stored s\n  ->  Limit\n        Index Cond: (b = 1)", false},
		"another with a longer name":            {"Index Scan using due_at on stored s\n  Index Cond: (next_at <= now())", false},
		"no index":                              {"Seq Scan on stored s\n  Filter: (a = 1)", false},
	} {
		if got := finds(c.plan, "due"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
