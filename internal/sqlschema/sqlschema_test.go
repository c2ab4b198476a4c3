package sqlschema

import (
	"strings"
	"testing"
)

func TestSQLSchema_OnlyNamesThatNeedNoQuotingAreAllowed(t *testing.T) {
	for name, allowed := range map[string]bool{
		"": true, "holdfast": true, "_x9": true, "select": true, strings.Repeat("a", 63): true,
		"A": false, "a-b": false, "a.b": false, `a"b`: false, "9a": false, "pg_mine": false, "ä": false, "a\n": false, strings.Repeat("a", 64): false,
	} {
		if err := Validate(name); (err == nil) != allowed {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

func TestSQLSchema_InPutsTheNameWhereTheSchemaIsNamedAndNowhereElse(t *testing.T) {
	got := In("mine", "create schema if not exists holdfast;\n-- holdfast is a word here\nselect * from holdfast.event where note = 'a holdfast' and x in (select 1 from notholdfast.y); revoke all on all functions in schema holdfast from public")
	want := "create schema if not exists \"mine\";\n-- holdfast is a word here\nselect * from \"mine\".event where note = 'a holdfast' and x in (select 1 from notholdfast.y); revoke all on all functions in schema \"mine\" from public"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := In("", "select holdfast.lock($1)"); got != `select "holdfast".lock($1)` {
		t.Errorf("got %s", got)
	}
}

func FuzzValidate(f *testing.F) {
	f.Add("holdfast")
	f.Add(`x"; drop table y; --`)
	f.Add("")
	f.Add("pg_x")
	f.Add("a1_")
	f.Add("1a")
	f.Add("A")
	f.Add("a-b")
	f.Add("a\n")
	f.Add(strings.Repeat("a", 64))
	f.Fuzz(func(t *testing.T, name string) {
		// The rule once more, byte by byte.
		want := len(name) <= 63 && !strings.HasPrefix(name, "pg_")
		for i := range len(name) {
			c := name[i]
			want = want && (c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9')
		}
		if err := Validate(name); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	})
}

func TestSQLSchema_AStatementIsRewrittenOnceForItsSchema(t *testing.T) {
	t.Parallel()
	mine := For("mine")
	for range 2 {
		if got := mine.In("select holdfast.lock($1)"); got != `select "mine".lock($1)` {
			t.Errorf("it is %s", got)
		}
	}
	if got := For("").In("select holdfast.lock($1)"); got != `select "holdfast".lock($1)` {
		t.Errorf("without a name it is %s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("For accepted a bad name")
		}
	}()
	For("No!")
}
