package dlq_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A letter of a row that somebody wrote by SQL may hold what Go cannot. It is listed with the others, and says what it is.
func TestMalformed_AMalformedLetterHidesNoOther(t *testing.T) {
	skip.InShort(t, "it takes 18 s beside the others")
	t.Parallel()
	b := setup(t)
	first := rows.Dead(t, b.Pool, "", "k", "first")
	for i, c := range []struct{ set, says string }{
		{"headers = '[1, 2]'", "headers are [1, 2]"},
		{"headers = '\"text\"'", "headers are"},
		{"headers = jsonb_build_object('h', repeat('x', 200000000))", "headers have"},
		{"time = 'infinity'", "time is infinity"},
		{"time = '-infinity'", "time is -infinity"},
		{"time = '0044-03-15 00:00:00+00 BC'", "time is"},
		{"event_id = repeat('i', 5000000)", "is cut off"},
		{"payload = convert_to(repeat('x', 270000000), 'UTF8')", "payload has 270000000 bytes"},
		{"first_at = '-infinity', last_at = 'infinity'", ""},
		{"errors = array[array['a', null], array['b', 'c']]", ""},
		{`headers = '{"a": {"b": [null]}, "c": null, "d": 1e400}'`, ""},
	} {
		id := rows.Dead(t, b.Pool, "", "k", fmt.Sprintf("malformed-%d", i))
		pgtest.Exec(t, b.Pool, "update holdfast.letter set "+c.set+" where id = $1", id)
		l, err := b.d.Get(t.Context(), id)
		if err != nil {
			t.Errorf("%s: %v", c.set, err)
			continue
		}
		if (len(l.Malformed) > 0) != (c.says != "") || c.says != "" && !strings.Contains(l.Malformed[0], c.says) {
			t.Errorf("%s: malformed is %.200q, want %q", c.set, l.Malformed, c.says)
		}
	}
	last := rows.Dead(t, b.Pool, "", "k", "last")
	all, err := b.d.List(t.Context(), dlq.Filter{})
	if err != nil || len(all) != 13 || all[0].ID != first || all[12].ID != last {
		t.Errorf("%d letters, %v", len(all), err)
	}
	if nested := all[11].Event.Headers; nested["a"] != `{"b": [null]}` || len(nested) != 3 {
		t.Errorf("nested headers are %q", nested)
	}
	if groups, err := b.d.Groups(t.Context(), dlq.Filter{}); err != nil || len(groups) == 0 {
		t.Errorf("%d groups, %v", len(groups), err)
	}
}

// A replay says of every letter that cannot be sent why, and replays the others.
func TestMalformed_AReplayPassesOverMalformedLettersAndSaysWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	array := rows.Dead(t, b.Pool, "", "k1", "array")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set headers = '[]' where id = $1", array)
	never := rows.Dead(t, b.Pool, "", "k2", "never")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set time = 'infinity' where id = $1", never)
	rows.Dead(t, b.Pool, "", "k3", "good")
	moved, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "alice"})
	if moved != 1 || whyNot(err) != "malformed" {
		t.Fatalf("%d were moved, %v", moved, err)
	}
	for _, want := range []string{fmt.Sprintf("letter %d", array), "its headers are a JSON array", fmt.Sprintf("letter %d", never), "time is infinity"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	pgtest.Exec(t, b.Pool, "update holdfast.letter set headers = '{}', time = now()")
	if moved, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "alice"}); moved != 2 || err != nil {
		t.Errorf("once fixed, %d were moved, %v", moved, err)
	}
}

// Up to here a letter is whole, and from there on it is malformed.
func TestMalformed_TheLimitsOfALetterAreExact(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const large = "(select jsonb_object_agg(n::text, md5(n::text) || md5((-n)::text)) from generate_series(1, 20000) n)" // above 1 MiB also when it is compressed
	for _, c := range []struct{ set, says string }{
		{"time = '0001-01-01 00:00:00+00'", ""},
		{"time = '0001-12-31 23:59:59.999999+00 BC'", "time is"},
		{"time = '9999-12-31 23:59:59.999999+00'", ""},
		{"time = '10000-01-01 00:00:00+00'", "time is"},
		{"event_id = repeat('i', 65536)", ""},
		{"event_id = repeat('i', 65537)", "is cut off"},
		{"source = repeat('i', 65537)", "is cut off"},
		{"type = repeat('i', 65537)", "is cut off"},
		{"key = repeat('i', 65537)", "is cut off"},
		{"headers = " + large, "headers have"},
		{"errors = array['a', null, 'b']", ""},
	} {
		id := rows.Dead(t, b.Pool, "", "k", "e")
		pgtest.Exec(t, b.Pool, "alter table holdfast.letter alter column headers set storage external") // so that its size is known
		pgtest.Exec(t, b.Pool, "update holdfast.letter set "+c.set+" where id = $1", id)
		l, err := b.d.Get(t.Context(), id)
		if err != nil {
			t.Fatalf("%s: %v", c.set, err)
		}
		if (len(l.Malformed) > 0) != (c.says != "") || c.says != "" && !strings.Contains(l.Malformed[0], c.says) {
			t.Errorf("%s: malformed is %.200q, want %q", c.set, l.Malformed, c.says)
		}
		if c.says == "" && (l.Event.Time.IsZero() && !strings.Contains(c.set, "0001") || l.Event.Headers["a"] != "b" || string(l.Event.Payload) != "{}") {
			t.Errorf("%s: a whole letter is %+v", c.set, l)
		}
		if c.says == "time is" && !l.Event.Time.IsZero() {
			t.Errorf("%s: the time %v was read", c.set, l.Event.Time)
		}
		if c.says == "headers have" && len(l.Event.Headers) > 0 {
			t.Error("headers that are too large were read")
		}
		if strings.HasPrefix(c.set, "errors") && fmt.Sprint(l.Errors) != "[a b]" {
			t.Errorf("its errors are %q", l.Errors)
		}
	}
}
