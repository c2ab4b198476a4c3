package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestSQL_EachOperandOfAConditionIsLeftOut(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]string{
		"select 1 from a where x = 1":                                              {"where true"},
		"select 1 from a where x and y order by z":                                 {"where y order", "where x order"},
		"select 1 from a where x and (y or z and u) limit 1":                       {"where (y or z and u) limit", "where x limit", "x and ( z and u)", "x and (y)", "(y or u)", "(y or z)"},
		"select 1 from a join b on a.i is null where x between 1 and 2":            {"join b on true where x", "where true"},
		"update a set x = 1 from b where x and not exists (select from c where y)": {"where not exists (select from c where y)", "where x", "from c where true"},
		"insert into a values (1) on conflict (x) where y do nothing":              {"(x) where true do"},
		"if x or y then return 1; end if;":                                         {"if y then", "if x then"},
		"select 1 -- where a and b\n from c where d":                               {"c where true"},
		"select 'where a and b' from c":                                            nil,
		"select case when x and y then 1 else 2 end":                               {"when y then", "when x then"},
		"select coalesce(x, y) from a where f(x, y) and z":                         {"where z", "where f(x, y)"},
	} {
		var got []string
		for _, c := range conditions(sql) {
			if c.kind == "drop" {
				got = append(got, sql[:c.from]+c.is+sql[c.to:])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s\n\thas become %q", sql, got)
			continue
		}
		for _, w := range want {
			if !slices.ContainsFunc(got, func(g string) bool {
				return strings.Contains(strings.Join(strings.Fields(g), " "), strings.Join(strings.Fields(w), " "))
			}) {
				t.Errorf("%s\n\thas become %q, and not %s", sql, got, w)
			}
		}
	}
}

func TestSQL_ComparisonsOfConditionsAreSwapped(t *testing.T) {
	t.Parallel()
	sql := "update a set x = 1, y = x < 2 from b where a.i = b.i and (t <= now() or u > $1) and v <> 1 and e ->> 'k' = '1 = 1'"
	var got []string
	for _, c := range conditions(sql) {
		if c.kind == "swap" {
			got = append(got, fmt.Sprintf("%s %s", sql[c.from:c.to], c.is))
			if !strings.Contains(c.around, sql[c.from:c.to]) {
				t.Errorf("%q is not in %q", sql[c.from:c.to], c.around)
			}
		}
	}
	if want := []string{"= >=", "<= <", "> >=", "= >="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSQL_MutantsOfASchemaAreOfItsFunctionsAndViews(t *testing.T) {
	t.Parallel()
	text := "create table holdfast.t (x int check (x > 1));\n\ncreate function holdfast.f() returns int as $$\nbegin\n    if a and b then return 1; end if;\nend $$;\n\ncreate view holdfast.v as\nselect 1 from holdfast.t where x;\n"
	var got []string
	for _, m := range schemaMutants("schema.sql", text) {
		got = append(got, fmt.Sprintf("%d %s", m.line, m.name))
		if !strings.Contains(text, m.sql.Was) || m.sql.Was == m.sql.Is {
			t.Errorf("%s turns %q into %q", m.name, m.sql.Was, m.sql.Is)
		}
	}
	want := []string{"5 schema.sql f: drop: a and", "5 schema.sql f: drop: and b", "9 schema.sql v: drop: x"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
