package dlq_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Letters have up to 64 MiB each: a page of a thousand would be 64 GiB.
func TestPage_APageOfLettersEndsByItsBytes(t *testing.T) {
	skip.InShort(t, "it takes 17 s beside the others")
	t.Parallel()
	b := setup(t)
	const letters = 40
	for i := range letters {
		rows.Dead(t, b.Pool, "", "k", fmt.Sprint(i))
	}
	for _, c := range []struct {
		name, set  string
		noPayloads bool
		pages      []int
	}{
		{"payloads of 1 MB", "payload = convert_to(repeat('x', 1000000), 'UTF8')", false, []int{34, 6}},
		{"payloads that are not read", "payload = convert_to(repeat('x', 1000000), 'UTF8')", true, []int{40}},
		{"one that is larger than a page", "payload = convert_to(repeat('x', case event_id when '1' then 40000000 else 1 end), 'UTF8')", false, []int{2, 38}},
		{"errors of 1.3 MB", "payload = null, errors = array_fill(repeat('x', 65536), array[20])", true, []int{26, 14}},
		{"headers of 0.5 MB", "errors = '{}', headers = (select jsonb_object_agg(n::text, md5(n::text || event_id)) from generate_series(1, 12500) n)", true, nil},
	} {
		pgtest.Exec(t, b.Pool, "update holdfast.letter set "+c.set)
		var pages []int
		read := 0
		for after := int64(0); ; {
			page, err := b.d.List(t.Context(), dlq.Filter{Limit: letters, After: after, NoPayloads: c.noPayloads})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			pages, read, after = append(pages, len(page)), read+len(page), page[len(page)-1].ID
		}
		if read != letters || c.pages != nil && fmt.Sprint(pages) != fmt.Sprint(c.pages) || c.pages == nil && len(pages) != 1 {
			t.Errorf("%s: pages of %v letters, want %v", c.name, pages, c.pages)
		}
	}
}

// A page ends after the letter with which it has 32 MiB, to the byte. A payload that is not read takes no room.
func TestPage_APageEndsWithTheLetterThatFillsIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 3 {
		rows.Dead(t, b.Pool, "", "k", fmt.Sprint(i))
	}
	sizes := func(noPayloads bool) (pages []int) {
		t.Helper()
		for after := int64(0); ; {
			page, err := b.d.List(t.Context(), dlq.Filter{After: after, NoPayloads: noPayloads})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				return pages
			}
			pages, after = append(pages, len(page)), page[len(page)-1].ID
		}
	}
	for _, c := range []struct{ less, first int }{{0, 1}, {1, 2}} {
		pgtest.Exec(t, b.Pool, `update holdfast.letter l set payload = convert_to(repeat('x', 33554432 - $1 - pg_column_size(l.headers) - octet_length(l.event_id)
			- octet_length(l.source) - octet_length(l.type) - octet_length(l.key) - (select sum(octet_length(e)) from unnest(l.errors) e)::int), 'UTF8')
			where l.event_id = '0'`, c.less)
		if got, want := fmt.Sprint(sizes(false)), fmt.Sprint([]int{c.first, 3 - c.first}); got != want {
			t.Errorf("with %d bytes less than a page has, pages are of %s letters, want %s", c.less, got, want)
		}
		if got := fmt.Sprint(sizes(true)); got != "[3]" {
			t.Errorf("without payloads, pages are of %s letters", got)
		}
	}
}
